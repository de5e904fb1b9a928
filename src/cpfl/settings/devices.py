"""[devices]: how fast every client is, and when it is available."""

from typing import Annotated

from cpfl.settings.types import Positive, Section, Share, when


class Devices(Section):
    """How fast every client is, and when it is available."""

    trace: str = "synthetic"
    """Device speeds: "fedscale" (in the data folder), a csv or pickle file, "synthetic", or "fixed"."""
    compute_ms: Annotated[Positive, when("trace = fixed")] = 50.0
    """Milliseconds of inference per sample, for all clients."""
    network_kbps: Annotated[Positive, when("trace = fixed")] = 6000.0
    """Network speed in kbit/s, for all clients."""
    availability: str = "always"
    """When clients are available: "fedscale" (in the data folder), a json file like it, "synthetic", or "always"."""
    online_hours: Annotated[Positive, when("availability = synthetic")] = 4.0
    """Mean hours of a client's online periods; their lengths are exponential."""
    offline_hours: Annotated[Positive, when("availability = synthetic")] = 8.0
    """Mean hours between two online periods."""
    crash_rate: Share = 0.0
    """Probability that a client crashes in a round and its work is lost."""
