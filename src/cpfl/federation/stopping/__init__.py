"""When a cohort's training ends: stopping rules and limits; not which of its models becomes the teacher."""
