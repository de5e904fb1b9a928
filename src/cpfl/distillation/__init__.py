"""Distillation: teacher weights, the ensemble's targets, the student; who is a teacher is decided in `runs`."""
