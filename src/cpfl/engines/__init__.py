"""Engines do the rounds that sessions open; what a round means is in `federation/`."""
