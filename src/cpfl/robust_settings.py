"""How many clients Krum needs to keep its promise that none of the byzantine ones decides the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpfl.experiment import Federation


def least(settings: Federation) -> int:
    """Results of a round without which the choice may be an attacker's; without attackers, as many as are chosen."""
    bad = settings.byzantine
    outvoted = 2 * bad + 3 if bad else 1  # Blanchard et al. 2017, Proposition 4.2: 2f + 2 < n
    return max(outvoted, bad + settings.chosen)  # of n the f farthest must be left out


def shortage(settings: Federation, participants: int, whose: str) -> str:
    """What is wrong if so many take part in a round, in one sentence; empty: nothing is. `whose` names the cohort."""
    bad, chosen = settings.byzantine, settings.chosen
    if settings.server != "krum" or participants >= least(settings):
        return ""
    if bad and participants < 2 * bad + 3:
        return (
            f"federation.byzantine = {bad} needs {2 * bad + 3} participants in every round, and {whose} "
            f"{participants}: allowed are 0 to {max(0, (participants - 3) // 2)}"
        )
    return (
        f"federation.chosen = {chosen} must leave out federation.byzantine = {bad} of a round's participants, and "
        f"{whose} {participants}: allowed are 1 to {participants - bad}"
    )
