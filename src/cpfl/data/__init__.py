"""Samples: where sets come from, how they are read, who holds which of them; models and training are elsewhere."""
