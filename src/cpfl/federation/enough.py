"""Whether every round of a cohort brings as many results as its server part needs."""

from __future__ import annotations

from cpfl.errors import SettingError
from cpfl.federation.parts import server_part
from cpfl.federation.selection import Cohort, size
from cpfl.robust_settings import shortage


def check(cohort: Cohort, crash_rate: float) -> None:
    """By who takes part in it, and by how few of them may be left when others are lost on the way."""
    settings, name = cohort.federation, f"cohort {cohort.number}"
    most = settings.buffer or size(settings, len(cohort.clients))
    if trouble := shortage(settings, most, f"{name} has"):
        raise SettingError(trouble)
    least, server = server_part(settings).least, f"federation.server = {settings.server!r}"
    if most < least:
        raise SettingError(f"{server} needs {least} participants in every round, and {name} has {most}")
    loses = crash_rate or settings.deadline or cohort.fleet.availability is not None
    if loses and not settings.buffer and settings.minimum < least:
        raise SettingError(
            f"federation.minimum = {settings.minimum} lets a round of {name} count with fewer than the {least} results "
            f"that {server} needs, and rounds here can lose clients: allowed are {least} to {most}"
        )
