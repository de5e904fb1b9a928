"""In which order does a run enter the packages of cpfl? Every package at its first call.

python benchmarks/trace.py digits
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1] / "src" / "cpfl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", nargs="?", default="digits")
    words = parser.parse_args()
    first: dict[str, str] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(str(ROOT)) or frame.f_code.co_name.startswith("<"):
            return
        inside = Path(path).relative_to(ROOT)
        package = inside.parts[0] if len(inside.parts) > 1 else inside.name
        caller = frame.f_back
        while caller is not None and "importlib" not in caller.f_code.co_filename:
            caller = caller.f_back
        if caller is None and package not in first:  # calls while a module is imported do not count
            first[package] = f"{inside}: {frame.f_code.co_qualname}"

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["cpfl", "run", words.preset, "--engine", "reference", "--set", "max_rounds=2", "--set",
                    "distillation.epochs=2", "--out", f"{folder}/run"]  # fmt: skip
        from cpfl.cli import main as program

        sys.setprofile(profile)
        try:
            program()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    for number, (package, where) in enumerate(first.items(), start=1):
        print(f"{number:2d}  {package:14s} {where}")


if __name__ == "__main__":
    main()
