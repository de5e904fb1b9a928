"""How large data may become in memory: small files can unpack to more than a machine has."""

import math
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError

VARIABLE = "CPFL_MAX_GB"
DEFAULT = 4.0  # GB of one split; the largest published set that is known here, STL-10, has 3


def max_bytes() -> int:
    """The limit: $CPFL_MAX_GB, or the default."""
    text = os.environ.get(VARIABLE) or str(DEFAULT)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < 1e9:
        raise DataError(f"${VARIABLE} = {text!r} is not allowed: gigabytes above 0, such as {DEFAULT:g}")
    return int(found * 1e9)


def check_size(what: object, size: int) -> None:
    """Refuse what would take more memory than is allowed, before it is unpacked."""
    if size > max_bytes():
        raise DataError(
            f"{what} unpacks to {size / 1e9:,.1f} GB or more, and {max_bytes() / 1e9:g} GB are allowed: "
            f"set {VARIABLE}={math.ceil(size / 1e9)} in the environment if the data are meant to be so large"
        )


def as_text(what: object, values: Sequence[str]) -> NDArray[np.str_]:
    """Text of a fixed width, which can be compared, sorted and saved without pickle: the longest one decides it."""
    check_size(what, 4 * len(values) * max(map(len, values), default=0))
    return np.asarray(values, dtype=np.str_)
