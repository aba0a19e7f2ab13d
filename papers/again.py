"""Repeat a kept run of each study and compare both: `python -m papers.again --photos DIR [STUDY[/METHOD/seed-N] ...]`.

Everything must be the same but `made`, settings that FedLens did not have when the kept run was made, and the bytes
sent down: a run that was stopped sends some of them twice.
With `OUT`, work that was stopped goes on from there, and a run that has ended there is compared as it is.
"""

import argparse
import sys
import tempfile
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


def repeat(study: dict[str, Any], kept: Path, photos: Path, folder: Path) -> str:
    """Repeat the kept run in the file `kept`, in `folder`; returns what differs, empty if nothing does."""
    run = read(kept)
    label, seed = run["label"], str(run["seed"])
    out = folder / "out"
    line = [*command(without_choice(study), photos, out, 1), "--method", label, "--seed", seed]
    if status := carry_out(line, out, folder / "kept"):
        return f"the command failed with status {status}"
    again = read(out / RUNS / label / f"seed-{seed}" / RESULT_FILE)
    again["settings"] = {name: value for name, value in again["settings"].items() if name in run["settings"]}
    if not (places := differing(run, again)):
        return ""
    there, here = run["made"]["processor"], again["made"]["processor"]
    on = f"; it was made on {there}, and the repeated run on {here}, which may be the reason" if there != here else ""
    return f"differs in {', '.join(places[:5])}{on}"


def main() -> int:
    """Repeat the kept runs that are named, or a study's first one; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, help="folder of unfinished work; default: a temporary one")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(studies())}; default: all")
    given = parser.parse_args()
    chosen(parser, [each.partition("/")[0] for each in given.names])
    failed = False
    for each in given.names or studies():
        name, _, run = each.partition("/")
        pattern = f"{run}.json.gz" if run else KEPT
        found = sorted((RESULTS / name).glob(pattern))[:1]
        if not found:
            print(f"{name}: no run {pattern} is kept that could be repeated")
            failed = True
        for kept in found:
            with tempfile.TemporaryDirectory(prefix="fedlens-again-") as temporary:
                out = (given.out or Path(temporary)) / each
                different = repeat(studies()[name], kept, given.photos, out)
            print(f"{name}, {kept.parent.name}, {kept.name}: {different or 'the same'}")
            failed = failed or bool(different)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
