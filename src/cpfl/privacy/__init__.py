"""Sums of label counts that reveal nothing of a single client; how the counts are used is in `distillation`."""
