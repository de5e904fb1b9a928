"""The clients' devices: how fast they are and when they are available; what clients do with them is in `federation`."""
