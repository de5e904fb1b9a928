"""A page that shows runs while they train: follows their folders and serves the report, kept fresh. Writes nothing."""
