"""`make bench`: run every measure, or those named, and print one table.

    python -m bench.run [--folder DIR] [MEASURE ...]

Every run writes `bench/results/latest.json`, anew after each row, so that one that is killed leaves what it has found.
A full run also writes `docs/benchmarks.md`, between its two markers. Each measure has a process of its own: what one
does to its process, as to take a single thread, must not meet the next.
"""

import argparse
import importlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

from bench import table
from bench.row import Row, Skipped
from fedlens.jobs import exit_text
from fedlens.whole_file import replacing

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "benchmarks.md"
RESULTS = REPOSITORY / "bench" / "results" / "latest.json"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

# Name: where the function is that takes a folder and gives rows, all at once or one by one.
MEASURES = {
    "bytes": "bench.wire_bytes:measure",
    "codecs": "bench.codecs:measure",
    "memory": "bench.large_rounds:memory",
    "commits": "bench.small_rounds:measure",
    "latency": "bench.large_rounds:latency",
    "enrolled": "bench.many_clients:enrolled",
    "polls": "bench.many_clients:polls",
    "throughput": "bench.many_clients:throughput",
    "elsewhere": "bench.elsewhere:measure",
    "takeover": "bench.takeover:measure",
    "dashboard": "bench.dashboard:measure",
    "fedavg": "bench.fedavg_on_disk:measure",
    "fedns": "bench.fedns_on_disk:measure",
    "rules": "bench.rules_on_disk:measure",
    "many_phones": "bench.many_phones:measure",
    "lenet5": "bench.emulated_round:measure",
    "study": "bench.study_overhead:measure",
    "ray": "bench.ray_study:measure",
    "flower": "bench.flower:measure",
    "head": "bench.head_training:measure",
    "child": "bench.child:measure",
    "vetting": "bench.vetting:measure",
    "pfedsim-training": "bench.pfedsim:training",
    "pfedsim-similarity": "bench.pfedsim:similarity",
    "pfedsim-disk": "bench.pfedsim_disk:measure",
    "clustering": "bench.fedconcat_clustering:measure",
    "derive": "bench.local_plans:derive",
    "ifca": "bench.local_plans:ifca",
    "phone-steps": "bench.phone_programs:steps",
    "phone-embed": "bench.phone_programs:embeddings",
    "phone-export": "bench.phone_programs:export",
    "phone-bytes": "bench.phone_bytes:measure",
    "demo": "bench.demo:measure",
    "jvm-engine": "bench.jvm_engine:measure",
    "phone-blobs": "bench.phone_blobs:measure",
    "phone-size": "bench.phone_size:measure",
}


def main() -> None:
    """Run the measures named on the command line."""
    parser = argparse.ArgumentParser(description="Measure FedLens against floors taken in the same run.")
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"any of {', '.join(MEASURES)}; default: all")
    parser.add_argument(
        "--folder", type=Path, help="on which disk to work; needs 9 GB; default: the system's temporary"
    )
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.measures) - set(MEASURES)):
        parser.error(f"found {unknown[0]!r}, must be one of {', '.join(MEASURES)}")
    names = arguments.measures or list(MEASURES)
    console = Console(width=None if Console().is_terminal else 180)
    rows: list[Row] = []
    skipped: list[str] = []
    before_all = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-", dir=arguments.folder) as folder:
        (Path(folder) / "shared").mkdir()
        for name in names:
            console.print(f"measuring {name} ...")
            try:
                for row in _rows(name, _folder(Path(folder), name)):
                    rows.append(row)
                    _keep(rows)
                    console.print("  " + "; ".join(table.cells(row)), soft_wrap=True)
            except Skipped as reason:
                skipped.append(f"{name} skipped: {reason}")
                console.print(skipped[-1])
    console.print(table.rich_table(rows))
    busy = f"load average {before_all:.1f} before, {os.getloadavg()[1]:.1f} during the last five minutes of it"
    busy = "; ".join([busy, *skipped])
    console.print(busy)
    for row in rows:
        if row.note:
            console.print(f"{row.measure}: {row.note}")
    if names == list(MEASURES):
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{table.markdown(rows, busy)}\n{END}{after}")


def _keep(rows: Sequence[Row]) -> None:
    """Write the results so far; the file is whole at any time."""
    RESULTS.parent.mkdir(exist_ok=True)
    with replacing(RESULTS) as partial:
        partial.write_text(table.as_json(rows) + "\n")


def _rows(name: str, folder: Path) -> Iterator[Row]:
    """The rows of a measure, as its process finds them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, name, folder))
    process.start()
    theirs.close()
    try:
        while (found := ours.recv()) is not None:
            if isinstance(found, Skipped):
                raise found
            yield found
    except EOFError:
        process.join()
        raise SystemExit(f"{name}: its process {exit_text(process.exitcode)}") from None
    finally:
        process.join()


def _send(theirs: Connection, name: str, folder: Path) -> None:
    """Send each row of a measure, at the end None, or why it is skipped."""
    try:
        for row in _measure(name)(folder):
            theirs.send(row)
    except Skipped as reason:
        theirs.send(reason)
    else:
        theirs.send(None)


def _measure(name: str) -> Callable[[Path], Iterable[Row]]:
    module, _, function = MEASURES[name].partition(":")
    found: Callable[[Path], Iterable[Row]] = getattr(importlib.import_module(module), function)
    return found


def _folder(root: Path, name: str) -> Path:
    """A folder of its own for each measure; the large blobs are made once and shared."""
    folder = root / name
    folder.mkdir()
    (root / "shared" / "blobs").mkdir(exist_ok=True)
    (folder / "blobs").symlink_to(root / "shared" / "blobs")
    return folder


if __name__ == "__main__":
    main()
