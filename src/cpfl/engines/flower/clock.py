"""The time by which calls to nodes end."""

import time


class Clock:
    """This machine's time in seconds. A test of time limits gives a clock of its own, which it advances itself."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return when there may be news, after so long at most."""
        time.sleep(seconds)
