"""The engine of a real fleet: the same sessions over Flower's public API. `cpfl.deploy` has the apps that start it."""
