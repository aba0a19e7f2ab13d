"""The pages of `docs/results`, made from templates so that every number in them comes from a kept run: `make results`.

A template is a page in Markdown in which `{{ ... }}` calls one of the functions of `Numbers`. What was not run is a
dash. A study that is going on has the seeds that all of its methods have finished; what is of a study without one is
`not in yet`, and a page of such studies alone is left as it is.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2
import numpy as np
from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]  # scikit-learn comes without types

from fedlens.compare.columns import TITLES, Column
from fedlens.compare.kept import Kept, column, load
from fedlens.compare.report.differences import Difference, differences
from fedlens.compare.report.summary import MethodSummary, Value
from fedlens.compare.report.tables import markdown_table, percent
from fedlens.compare.study import with_baseline
from fedlens.reports.tables import readable_bytes

HERE = Path(__file__).parent
TEMPLATES, RESULTS = HERE / "templates", HERE / "results"
PAGES = HERE.parent / "docs" / "results"
MISSING, NOT_YET = "-", "*not in yet*"
_NOTE = "<!-- Made by `make results` from papers/templates/{}: change that file. -->\n"


class RunMissing(Exception):
    """A study that a page asks for has no seed with a run of each method."""


class Numbers:
    """The functions of a template; all accuracies and differences are in percent.

    Each raises `RunMissing` for a study without a seed of which every method has a run.
    """

    def __init__(self, results: Path) -> None:
        """`results` has a folder of kept runs for each study."""
        self._results = results
        self._kept = cache(self._load)

    def mean(self, study: str, label: str, name: str, *, deviation: bool = True) -> str:
        """The mean of a column over seeds, with its deviation."""
        value = self._columns(study, label).get(column(name))
        return percent(value if deviation or value is None else replace(value, deviation=None))

    def seeds(self, study: str, label: str, name: str, over: str | None = None) -> str:
        """A column of every seed, in order; with `over` its difference to another method."""
        own, other = (self._by_seed(study, each, column(name)) for each in (label, over or label))
        if over is None:
            return ", ".join(f"{100 * value:.1f}" for value in own.values()) or MISSING
        return ", ".join(f"{100 * (own[seed] - other[seed]):+.1f}" for seed in own if seed in other) or MISSING

    def gain(self, study: str, label: str, over: str, name: str) -> str:
        """The paired difference to another method: `+2.1 (0.4 to 3.8, p = .03, n = 3)`."""
        found = self._difference(study, label, over, column(name))
        if found is None:
            return MISSING
        text = f"{100 * found.mean:+.1f}"
        if found.interval is None or found.p is None:
            return f"{text} (n = {found.seeds})"
        low, high = (100 * bound for bound in found.interval)
        return f"{text} ({low:+.1f} to {high:+.1f}, {p_value(found.p)}, n = {found.seeds})"

    def camera(self, study: str, label: str, name: str, camera: str) -> str:
        """The accuracy of a group of people on the photos of one camera, with its deviation over seeds."""
        summary = self._summary(study, label)
        return percent(None if summary is None else summary.by_camera.get((column(name), camera)))

    def agreement(self, study: str, label: str, other: str) -> str:
        """How far two methods' clusters agree, by the adjusted Rand index: 1: the same; about 0: as by chance."""
        own, others = (self._clusters(study, each) for each in (label, other))
        found = []
        for seed in sorted(own.keys() & others.keys()):
            one, two = (
                {client: i for i, cluster in enumerate(clusters) for client in cluster["clients"]}
                for clusters in (own[seed], others[seed])
            )
            both = sorted(one.keys() & two.keys())
            found.append(float(adjusted_rand_score([one[each] for each in both], [two[each] for each in both])))
        return over_seeds(found)

    def classes(self, study: str, label: str) -> str:
        """The number of classes of which a cluster's clients have photos, mean over clusters."""
        runs = self._clusters(study, label).values()
        return over_seeds([fmean(np.count_nonzero(cluster["photos"]) for cluster in clusters) for clusters in runs])

    def sent(self, study: str, label: str) -> str:
        """The bytes that a client sends in a round in which it trains."""
        summary = self._summary(study, label)
        return MISSING if summary is None or summary.bytes_up_each is None else readable_bytes(summary.bytes_up_each)

    def runs(self, study: str) -> str:
        """The number of a study's runs in the pages; `15 of 45` while it is going on."""
        kept = self._kept(study)
        all_runs = len(kept.study.methods) * len(kept.study.seeds)
        return f"{all_runs}" if len(kept.runs) == all_runs else f"{len(kept.runs)} of {all_runs}"

    def made(self, study: str) -> str:
        """With what and on what the kept runs were made."""
        runs = [run["made"] for run in self._kept(study).runs]
        found = {
            key: sorted({run[key] for run in runs if key in run})
            for key in ("processor", "python", "torch", "numpy", "commit")
        }
        commits = [commit[:10] + "-dirty" * commit.endswith("-dirty") for commit in found.pop("commit")]
        listed = [
            " and ".join(values) if key == "processor" else f"{key} {' and '.join(values)}"
            for key, values in found.items()
        ]
        return f"{', '.join(listed)}; commit {' and '.join(commits)}; {self.runs(study)} runs"

    def table(self, study: str, labels: Sequence[str], columns: Sequence[str], baseline: str | None = None) -> str:
        """A table of methods and columns; with a baseline, each one's paired difference to it."""
        titles = [title for name in columns for title in (name, *([f"over {baseline}"] if baseline else []))]
        lines = [["method", *titles]]
        for label in labels:
            line = [label]
            for name in columns:
                line.append(self.mean(study, label, name))
                if baseline:
                    line.append(self.gain(study, label, baseline, name))
            lines.append(line)
        return markdown_table(lines)

    def published(self, study: str, labels: Sequence[str]) -> str:
        """A table of the columns in which the paper has numbers, each beside its own and the difference of both."""
        lines = [["method", "measured", "here", "paper", "difference"]]
        for label in labels:
            for name, number in self._kept(study).study.methods[label].published.items():
                value = self._columns(study, label).get(name)
                difference = MISSING if value is None else f"{100 * value.mean - number:+.1f}"
                lines.append([label, TITLES[name], self.mean(study, label, name), f"{number:g}", difference])
        return markdown_table(lines)

    def _load(self, study: str) -> Kept:
        folder = self._results / study
        if not folder.is_dir() or not (kept := load(folder).whole_seeds).runs:
            raise RunMissing(study)
        return kept

    def _clusters(self, study: str, label: str) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        """By seed the clusters of a method's runs, as `fedlens.compare.results` writes them; of runs that have any."""
        runs = [run for run in self._kept(study).runs if run["label"] == label and "clusters" in run]
        return {run["seed"]: run["clusters"] for run in runs}

    def _summary(self, study: str, label: str) -> MethodSummary | None:
        return next((summary for summary in self._kept(study).summaries if summary.label == label), None)

    def _columns(self, study: str, label: str) -> Mapping[Column, Value]:
        summary = self._summary(study, label)
        return {} if summary is None else summary.columns

    def _by_seed(self, study: str, label: str, name: Column) -> dict[int, float]:
        summary = self._summary(study, label)
        by_seed = {} if summary is None else summary.by_seed
        return {seed: values[name] for seed, values in sorted(by_seed.items()) if name in values}

    def _difference(self, study: str, label: str, over: str, name: Column) -> Difference | None:
        kept = self._kept(study)
        if over not in kept.study.methods:
            return None
        found = differences(with_baseline(kept.study, over), kept.summaries, [name])
        return next((each for each in found if each.label == label), None)


def over_seeds(values: Sequence[float]) -> str:
    """The mean of one value for each seed, with its deviation: `0.37 ± 0.12`; a dash for none."""
    if not values:
        return MISSING
    found = Value.of(values)
    return f"{found.mean:.2f}" + ("" if found.deviation is None else f" ± {found.deviation:.2f}")


def p_value(p: float) -> str:
    """`p = .03`; below a thousandth `p < .001`."""
    return "p < .001" if p < 0.001 else f"p = {p:.2g}".replace("0.", ".")


def page(template: Path, results: Path) -> str | None:
    """The page that a template gives with these kept runs; None while no study that it asks for has a whole seed."""
    numbers = Numbers(results)
    complete = set[str]()

    def of(call: Callable[..., str]) -> Callable[..., str]:
        def found(study: str, *arguments: Any, **options: Any) -> str:
            try:
                text = call(study, *arguments, **options)
            except RunMissing:
                return NOT_YET
            complete.add(study)
            return text

        return found

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    functions = {name: of(getattr(numbers, name)) for name in vars(Numbers) if not name.startswith("_")}
    text = environment.from_string(template.read_text(encoding="utf-8"), globals=functions).render()
    return _NOTE.format(template.name) + text if complete else None


def main() -> int:
    """Write the pages, or with `--check` say which of them are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    stale = 0
    for template in sorted(TEMPLATES.glob("*.md")):
        place, text = PAGES / template.name, page(template, RESULTS)
        if text is None:
            continue
        if check and place.read_text(encoding="utf-8") != text:
            print(f"{place} is stale: run `make results`", file=sys.stderr)
            stale += 1
        elif not check:
            place.write_text(text, encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
