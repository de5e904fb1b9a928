"""CPFL on a real fleet: the two halves of a Flower app, and what starts them.

server_app(model, test, public, experiment)   runs at the SuperLink
client_app(model, data)                       runs at every SuperNode
"""

from cpfl.deploy.client import client_app
from cpfl.deploy.server import server_app

__all__ = ["client_app", "server_app"]
