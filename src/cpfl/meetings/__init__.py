"""When cohorts wait for each other: they meet, by rules that make one model of theirs, or are evaluated together."""
