"""The engine of a real fleet: the same sessions, driven over a Flower grid."""
