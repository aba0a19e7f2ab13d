"""Repeat a kept run of each study and compare both: `python -m papers.again --photos DIR [STUDY ...]`.

Everything must be the same but `made`, and the bytes sent down: a run that was stopped sends some of them twice.
Work that was stopped goes on from `OUT`; a run that has ended there is not repeated once more.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedlens.compare.kept import KEPT, read
from fedlens.compare.plan import RESULT_FILE, RUNS
from papers.run import RESULTS, carry_out, chosen, command, studies


def differing(one: Any, other: Any, place: str = "") -> list[str]:
    """The places in which the values of two runs differ, such as `rounds/3/bytes_up`."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if key not in ("made", "bytes_down")]
        return [found for key in keys for found in differing(one.get(key), other.get(key), f"{place}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for i, (a, b) in pairs for found in differing(a, b, f"{place}/{i}")]
    return [] if one == other else [place.removeprefix("/")]


def without_choice(study: dict[str, Any]) -> dict[str, Any]:
    """The study without the methods and seeds that its arguments choose."""
    given = study["arguments"]
    chosen = {i + k for i, each in enumerate(given) if each in ("--method", "--seed") for k in (0, 1)}
    return study | {"arguments": [each for i, each in enumerate(given) if i not in chosen]}


def repeat(study: dict[str, Any], kept: Path, photos: Path, folder: Path) -> list[str]:
    """Repeat the kept run in the file `kept`, in `folder`; returns the places that differ."""
    run = read(kept)
    label, seed = run["label"], str(run["seed"])
    out = folder / "out"
    line = [*command(without_choice(study), photos, out, 1), "--method", label, "--seed", seed]
    if status := carry_out(line, out, folder / "kept"):
        return [f"the command failed with status {status}"]
    return differing(run, read(out / RUNS / label / f"seed-{seed}" / RESULT_FILE))


def main() -> int:
    """Repeat the first kept run of each study; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("papers-again"), help="folder of unfinished work")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(studies())}; default: all")
    given = parser.parse_args()
    failed = False
    for name in chosen(parser, given.names):
        found = sorted((RESULTS / name).glob(KEPT))[:1]
        if not found:
            print(f"{name}: no run is kept that could be repeated")
            failed = True
        for kept in found:
            places = repeat(studies()[name], kept, given.photos, given.out / name)
            shown = f"differs in {', '.join(places[:5])}" if places else "the same"
            print(f"{name}, {kept.parent.name}, {kept.name}: {shown}")
            failed = failed or bool(places)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
