"""CPFL on a real fleet: the two halves of a Flower app, and the programs that start them.

server_app(model, test, public, experiment)      runs at the SuperLink
client_app(model, data)                          runs at every SuperNode
collector_app(model, test, public, experiment)   collects the models of cohorts that have their own SuperLinks
site_app()                                       runs beside each of those SuperLinks
"""

from cpfl.deploy.client import client_app
from cpfl.deploy.server import server_app
from cpfl.deploy.sites import collector_app, site_app

__all__ = ["client_app", "collector_app", "server_app", "site_app"]
