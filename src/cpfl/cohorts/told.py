"""Plans that somebody tells: by a value that every client has, or client by client in a csv."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpfl.cohorts import CohortPlan
from cpfl.cohorts.members import Members
from cpfl.errors import DataError, SettingError

COLUMNS = ("client", "cohort")


def by_value(values_M: Sequence[str], cohorts: int, column: str) -> CohortPlan:
    """Clients with the same value stay together. More values than cohorts share them out: the value with most clients
    first, each to the cohort that has fewest. Cohorts are in the order of their first value."""
    names, inverse, counts = np.unique(np.asarray(values_M), return_inverse=True, return_counts=True)
    if cohorts > len(names):
        some = ", ".join(map(str, names[:8])) + (" …" if len(names) > 8 else "")
        raise SettingError(
            f"cohorts = {cohorts} is more than the {len(names)} values of cohorting.column = {column!r} ({some}): "
            f"1 to {len(names)}"
        )
    members: list[list[int]] = [[] for _ in range(cohorts)]  # values by cohort
    clients = np.zeros(cohorts, np.int64)
    for value in np.argsort(-counts, kind="stable").tolist():
        smallest = int(clients.argmin())
        members[smallest].append(value)
        clients[smallest] += counts[value]
    ordered = sorted(members, key=min)
    return [Members(np.flatnonzero(np.isin(inverse, own))) for own in ordered]


def from_csv(path: Path, clients: int, cohorts: int) -> CohortPlan:
    """The plan in a csv with the columns client (a number from 0) and cohort (a number or a name)."""
    cohort_of: dict[int, str] = {}
    for line, client, cohort in _rows(path):
        number = int(client) if client.isascii() and client.isdigit() else -1
        if not 0 <= number < clients:
            raise DataError(f"line {line} of {path} names client {client!r}: clients are 0 to {clients - 1}")
        if number in cohort_of:
            raise DataError(f"line {line} of {path} names client {number} again: each belongs to one cohort")
        if not cohort:
            raise DataError(f"line {line} of {path} gives client {number} no cohort")
        cohort_of[number] = cohort
    missing = [k for k in range(clients) if k not in cohort_of]
    if missing:
        some = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
        raise DataError(f"{path} lacks {len(missing)} of the {clients} clients: {some}")
    names = set(cohort_of.values())
    if len(names) != cohorts:
        raise SettingError(f"{path} has {len(names)} cohorts and cohorts = {cohorts}: set cohorts={len(names)}")
    numbers = all(name.isascii() and name.isdigit() for name in names)
    ordered = sorted(names, key=lambda name: (int(name) if numbers else 0, name))
    place = {name: i for i, name in enumerate(ordered)}
    plan: list[list[int]] = [[] for _ in names]
    for k in range(clients):
        plan[place[cohort_of[k]]].append(k)
    return plan


def to_csv(plan: CohortPlan) -> str:
    """A plan as `from_csv` reads it, client after client."""
    rows = sorted((client, cohort) for cohort, clients in enumerate(plan) for client in clients)
    return "".join(f"{one},{other}\n" for one, other in [COLUMNS, *rows])


def _rows(path: Path) -> list[tuple[int, str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            names = [name.strip() for name in reader.fieldnames or []]
            lacking = next((name for name in COLUMNS if name not in names), None)
            if lacking:
                near = difflib.get_close_matches(lacking, names, n=1)
                meant = f" (is {near[0]!r} meant?)" if near else ""
                raise DataError(f"{path} needs the columns client and cohort; it lacks {lacking}{meant}")
            reader.fieldnames = names
            return [(reader.line_num, *((row[name] or "").strip() for name in COLUMNS)) for row in reader]  # type: ignore[misc]
    except OSError as error:
        raise DataError(f"cohorting.file = {str(path)!r} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a csv: {error}") from None
