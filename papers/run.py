"""Carry out the studies behind `docs/results` as far as their runs are missing: `make papers PHOTOS=DIR`.

`PHOTOS` holds the folders `cifar10-images` and `hand-signs`. Each finished run is kept at once, in `papers/results`.
Work goes on where it was stopped: in `OUT`, or without it from the kept runs.
"""

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papers.keeping import keep, restore

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CIFAR = "cifar10-images"
# Seconds between two looks for runs that have ended.
LOOK_S = 20.0


def studies() -> dict[str, Any]:
    """The studies by name, in the order in which they are carried out."""
    return tomllib.loads((HERE / "studies.toml").read_text(encoding="utf-8"))


def command(study: dict[str, Any], photos: Path, out: Path, workers: int) -> list[str]:
    """The command line of a study."""
    fedlens = str(Path(sys.executable).parent / "fedlens")
    where = ["--photos", str(photos / study.get("photos", CIFAR)), "--out", str(out), "--workers", str(workers)]
    return [fedlens, "compare", *study["arguments"], *where]


def carry_out(line: Sequence[str], out: Path, kept: Path) -> int:
    """Carry out a study by its command line, without the runs that are kept; keeps each new one when it has ended.

    Returns:
        The command's exit status.
    """
    restore(kept, out)
    # Other work on the machine goes first. A study says itself what runs and how long that will take.
    running = subprocess.Popen(["nice", "-n", "19", *line], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while True:
        try:
            status = running.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            keep(out, kept)
        else:
            keep(out, kept)
            return status


def chosen(parser: argparse.ArgumentParser, names: Sequence[str]) -> Sequence[str]:
    """The studies of these names, or all; ends the program with what is wrong if there is none of a name."""
    for name in names:
        if name not in studies():
            parser.error(f"found {name!r}, must be one of {', '.join(studies())}")
    return names or list(studies())


def main() -> int:
    """Carry out studies; returns the status of the last one that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("papers-out"), help="folder of unfinished work")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(studies())}; default: all")
    given = parser.parse_args()
    status = 0
    for name in chosen(parser, given.names):
        line = command(studies()[name], given.photos, given.out / name, given.workers)
        status = carry_out(line, given.out / name, RESULTS / name) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
