"""`cpfl dashboard` for runs that a test holds: it calls none of them quiet, and looks at them every second.

A test may be so slow that a run seems to have been interrupted, and the dashboard so slow that it saves its core.
"""

import math

from tests import processes

from cpfl.dashboard import dashboard as pages
from cpfl.dashboard import state


def dashboard() -> None:
    """The program."""
    state.QUIET = math.inf
    pages.SHARE = math.inf
    processes.cpfl()
