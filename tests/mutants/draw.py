"""Draw mutants of one operator each, over files in proportion to their operators.

python -m tests.mutants.draw --seed N --count 240

writes `drawn.json` beside this module: a list of `finding.record`, with an `id` each.
"""

import argparse
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.mutants.finding import record
from tests.mutants.operators import functions

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# The rooms from which mutants are drawn.
ROOMS = (
    *("server/fedlens_server/engine", "server/fedlens_server/store", "server/fedlens_server/http"),
    *("edge_client/fedlens_edge_client/client", "edge_client/fedlens_edge_client/training"),
    *("edge_client/fedlens_edge_client/storage", "edge_client/fedlens_edge_client/engines"),
    "proto/fedlens_proto",
)


def draw(sources: Mapping[str, str], seed: int, count: int) -> list[dict[str, Any]]:
    """`count` operators, or all if there are fewer; a file has its share, rounded to the largest remainders."""
    found = {path: functions(path, source) for path, source in sorted(sources.items())}
    places = {path: [(f, i) for f in some for i in range(len(f.operators))] for path, some in found.items()}
    drawn = []
    for path, share in shares({path: len(some) for path, some in places.items()}, count).items():
        # A generator for each file: what changes in one file leaves the draw of the others, but for their shares.
        chosen = set(random.Random(f"{seed} {path}").sample(range(len(places[path])), share))
        drawn += [record(*place) for index, place in enumerate(places[path]) if index in chosen]
    return [{"id": f"{number:03}", **one} for number, one in enumerate(drawn, 1)]


def shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` split in proportion to `sizes`."""
    total = sum(sizes.values())
    count = min(count, total)
    whole = {name: size * count // total for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: (-(sizes[name] * count % total), name))
    return whole | {name: whole[name] + 1 for name in by_remainder[: count - sum(whole.values())]}


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--tree", type=Path, default=ROOT)
    arguments = parser.parse_args()
    paths = [path for room in ROOMS for path in (arguments.tree / room).glob("*.py")]
    sources = {path.relative_to(arguments.tree).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    drawn = draw(sources, arguments.seed, arguments.count)
    lines = ",\n".join(json.dumps(one) for one in drawn)
    (HERE / "drawn.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(drawn)} mutants of {len({one['path'] for one in drawn})} files")


if __name__ == "__main__":
    main()
