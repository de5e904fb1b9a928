"""Measurements and checks of this machine. They use the library as a user does."""
