"""Assignment that is given: by a value that every client has, or client by client in a csv file."""

import csv
import re
from pathlib import Path

import numpy as np

from cpfl.cohorts.base import ClientView, CohortAssignment, Cohorts, Index
from cpfl.errors import DataError, SettingError
from cpfl.registry import did_you_mean
from cpfl.user_files import check_readable, expanded

COLUMNS = ("client", "cohort")
NUMBER = re.compile("[0-9]{1,18}")  # one with more digits is none of ours, and Python refuses to read thousands


class FromColumn(CohortAssignment):
    """Clients with the same value in a column of the training data stay together."""

    needs = ("column",)

    def __init__(self, column: str) -> None:
        self.column = column

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """The value with most clients first, each to the smallest cohort; cohorts in order of their first value."""
        names, value_of, counts = np.unique(np.asarray(clients.column), return_inverse=True, return_counts=True)
        if cohorts > len(names):
            some = ", ".join(map(str, names[:8])) + (" …" if len(names) > 8 else "")
            raise SettingError(
                f"cohorts = {cohorts} is more than the {len(names)} values of assignment.rule_args.column = "
                f"{self.column!r} ({some}): 1 to {len(names)}"
            )
        cohort_of_value = np.empty(len(names), np.int64)
        size_N = np.zeros(cohorts, np.int64)
        for value in np.argsort(-counts, kind="stable").tolist():
            cohort_of_value[value] = size_N.argmin()
            size_N[cohort_of_value[value]] += counts[value]
        first_value = np.unique(cohort_of_value, return_index=True)[1]
        rank = np.argsort(np.argsort(first_value))
        return rank[cohort_of_value][value_of]


class FromCsv(CohortAssignment):
    """The cohorts in a csv file with the columns client (a number from 0) and cohort (a number or a name)."""

    reveals = "Cohorts come from a file: cpfl asks clients for nothing, and the file shows what its author knew."

    def __init__(self, file: str) -> None:
        self.path = expanded(Path(file), "assignment.rule_args.file")

    def assign(self, clients: ClientView, cohorts: int) -> list[int]:
        """Cohorts in the order of their numbers or names."""
        path, count = self.path, clients.count
        name_of: dict[int, str] = {}
        for line, client, cohort in _rows(path):
            number = int(client) if NUMBER.fullmatch(client) else -1
            if not 0 <= number < count:
                raise DataError(f"line {line} of {path} names client {client!r}: clients are 0 to {count - 1}")
            if number in name_of:
                raise DataError(f"line {line} of {path} names client {number} again: each belongs to one cohort")
            if not cohort:
                raise DataError(f"line {line} of {path} gives client {number} no cohort")
            name_of[number] = cohort
        if missing := [k for k in range(count) if k not in name_of]:
            some = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
            raise DataError(f"{path} lacks {len(missing)} of the {count} clients: {some}")
        names = set(name_of.values())
        if len(names) != cohorts:
            raise SettingError(f"{path} has {len(names)} cohorts and cohorts = {cohorts}: set cohorts={len(names)}")
        numbers = all(map(NUMBER.fullmatch, names))
        ordered = sorted(names, key=lambda name: (int(name) if numbers else 0, name))
        rank = {name: cohort for cohort, name in enumerate(ordered)}
        return [rank[name_of[k]] for k in range(count)]


def to_csv(cohorts: Cohorts) -> str:
    """Cohorts as `FromCsv` reads them, client after client."""
    rows = sorted((client, cohort) for cohort, clients in enumerate(cohorts) for client in clients)
    return "".join(f"{client},{cohort}\n" for client, cohort in [COLUMNS, *rows])


def _rows(path: Path) -> list[tuple[int, str, str]]:
    try:
        check_readable(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            names = [name.strip() for name in reader.fieldnames or []]
            for lacking in [name for name in COLUMNS if name not in names]:
                hint = did_you_mean(lacking, names)
                raise DataError(f"{path} needs the columns client and cohort; {hint}it lacks {lacking}")
            reader.fieldnames = names
            return [(reader.line_num, *((row[name] or "").strip() for name in COLUMNS)) for row in reader]  # type: ignore[misc]
    except OSError as error:
        raise DataError(f"assignment.rule_args.file = {str(path)!r} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a csv: {error}") from None
