"""Which settings of selection and of rounds that do not go to plan go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpfl.part_settings import COUNTED

if TYPE_CHECKING:
    from cpfl.experiment import Federation


def discord(settings: Federation) -> str:
    """The first thing that is wrong, in one sentence; empty: nothing is."""
    everybody = settings.participation == 1 and not settings.participants
    if any(value is None for value in settings.selection_args.values()):
        return "selection_args has a value of None, which a file cannot hold: leave it out"
    if settings.selection == "all" and not everybody:
        return 'selection = "all" takes everybody: leave out participation and participants'
    if settings.over_selection and everybody:
        return "over_selection asks more clients than are needed: lower participation, or set participants"
    if settings.late == "partial" and not settings.deadline:
        return 'late = "partial" needs a deadline, in virtual seconds'
    if settings.late == "stale" and not (settings.deadline or settings.over_selection):
        return 'late = "stale" needs a deadline or over_selection: nobody is late without'
    if settings.concurrency and not settings.buffer:
        return "concurrency goes with buffer: set buffer, or leave it out"
    return _buffered(settings) or _aged(settings)


def _buffered(settings: Federation) -> str:
    if not settings.buffer:
        return ""
    for key, value, plain in (
        ("over_selection", settings.over_selection, 0),
        ("deadline", settings.deadline, 0),
        ("late", settings.late, "drop"),
        ("minimum", settings.minimum, 1),
        ("selection", settings.selection, "random"),
    ):
        if value != plain:
            return f"buffer knows no rounds, so {key} = {value!r} says nothing: leave it out"
    return ""


def _aged(settings: Federation) -> str:
    """Updates of different age are damped before a server part sees them, so some parts have no meaning there."""
    kind = aged(settings)
    if kind and settings.local in ("scaffold", "feddyn"):
        return f"local = {settings.local!r} corrects clients that begin from the same model: it does not go with {kind}"
    if kind and settings.server in (*COUNTED, "fednova"):
        return f"server = {settings.server!r} weighs whole updates of one round: it does not go with {kind}"
    return ""


def aged(settings: Federation) -> str:
    """What lets updates of different age meet; empty: nothing does."""
    return 'late = "stale"' if settings.late == "stale" else "buffer" if settings.buffer else ""
