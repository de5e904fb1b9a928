"""For the process that programs are forked from: what runs, reports and dashboards import or make on first use."""

import importlib

from cpfl.reports import writing

for name in (
    "cpfl.engines.lanes",
    "cpfl.engines.workers",
    "cpfl.sweeps.grid",
    "cpfl.terminal.views",
):
    importlib.import_module(name)

writing.vega()
