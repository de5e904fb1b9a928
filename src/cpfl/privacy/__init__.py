"""Sums of label counts that tell nothing of a single client."""
