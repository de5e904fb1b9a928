"""CPFL on a real fleet: the two halves of a Flower app, and what starts them.

server_app(model, test, public, experiment)      runs at the SuperLink
client_app(model, data)                          runs at every SuperNode
collector_app(model, test, public, experiment)   collects cohorts that have SuperLinks of their own
site_app()                                       runs beside each of those
"""

from cpfl.deploy.client import client_app
from cpfl.deploy.server import server_app
from cpfl.deploy.sites import collector_app, site_app

__all__ = ["client_app", "collector_app", "server_app", "site_app"]
