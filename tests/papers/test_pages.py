"""Pages from kept runs: every function of a template, on a small study."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import pytest

from fedlens.compare.report.summary import MethodSummary
from fedlens.compare.study import choose, load
from papers.keeping import keep
from papers.pages import TEMPLATES, Numbers, p_value, page
from papers.run import studies
from tests.fedlens.compare.test_kept import RUNS, folder, made


@pytest.fixture
def results(tmp_path: Path) -> Path:
    keep(folder(tmp_path / "out", *RUNS), tmp_path / "results" / "small")
    return tmp_path / "results"


def rendered(results: Path, text: str) -> str:
    template = results / "small.md"
    template.write_text(text)
    text = page(template, results)
    assert text is not None
    note, _, found = text.partition("\n")
    assert note == "<!-- Made by `make results` from papers/templates/small.md: change that file. -->"
    return found


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        # Of ten photos 3 and 5 are right, alone 2 and 2.
        ("mean('small', 'together', 'global_accuracy')", "40.0 ± 14.1"),
        ("mean('small', 'together', 'global accuracy', deviation=False)", "40.0"),
        ("seeds('small', 'together', 'global_accuracy')", "30.0, 50.0"),
        ("seeds('small', 'together', 'global_accuracy', over='alone')", "+10.0, +30.0"),
        ("gain('small', 'together', 'alone', 'global_accuracy')", "+20.0 (-107.1 to +147.1, p = .3, n = 2)"),
        ("gain('small', 'together', 'together', 'global_accuracy')", "-"),
        ("sent('small', 'together')", "100 bytes"),
        ("runs('small')", "4"),
        ("mean('small', 'together', 'unseen_accuracy')", "-"),
        ("mean('small', 'other', 'global_accuracy')", "-"),
        ("classes('small', 'alone')", "-"),
        ("agreement('small', 'alone', 'together')", "-"),
        ("camera('small', 'alone', 'unseen_accuracy', 'iPhone 7')", "-"),
    ],
)
def test_a_number_comes_from_the_kept_runs_and_what_was_not_run_is_a_dash(
    results: Path, call: str, expected: str
) -> None:
    assert rendered(results, f"It is {{{{ {call} }}}}.\n") == f"It is {expected}.\n"


def clusters(*members: str, photos: tuple[list[int], ...]) -> dict[str, Any]:
    """Clusters of clients with names of one letter, and their photos by class."""
    pairs = zip(members, photos, strict=True)
    return {"clusters": [{"clients": list(names), "photos": counts} for names, counts in pairs]}


def test_clusters_are_compared_seed_by_seed(tmp_path: Path) -> None:
    exact = clusters("ab", "cd", photos=([5, 0, 5, 0], [0, 5, 0, 5]))
    other_numbers = clusters("cd", "ab", photos=([0, 5, 0, 5], [5, 0, 5, 0]))
    # One client has no cluster; of the others one has moved.
    moved = clusters("a", "bc", photos=([5, 0, 0, 0], [5, 5, 0, 5]))
    runs = [made("alone", seed, 2) | exact for seed in (1, 2)]
    runs += [made("together", 1, 3) | other_numbers, made("together", 2, 3) | moved]
    keep(folder(tmp_path / "out", *runs), tmp_path / "small")
    numbers = Numbers(tmp_path)

    assert numbers.agreement("small", "alone", "alone") == "1.00 ± 0.00"
    assert numbers.agreement("small", "together", "alone") == "0.25 ± 1.06"  # 1 and -0.5
    assert numbers.classes("small", "together") == "2.00 ± 0.00"


@pytest.mark.parametrize(
    "call",
    [
        "mean('nothing', 'alone', 'global_accuracy')",
        "gain('nothing', 'together', 'alone', 'global_accuracy')",
        "published('nothing', ['alone'])",
        "runs('nothing')",
        "made('nothing')",
    ],
)
def test_what_is_of_a_study_without_runs_is_not_in_yet(results: Path, call: str) -> None:
    beside = "mean('small', 'alone', 'global_accuracy')"

    assert rendered(results, f"{{{{ {beside} }}}}, {{{{ {call} }}}}\n") == "20.0 ± 0.0, *not in yet*\n"


def test_a_study_that_is_going_on_has_the_seeds_that_all_its_methods_have_finished(results: Path) -> None:
    (results / "small" / "together" / "seed-2.json.gz").unlink()

    calls = ("mean('small', 'together', 'global_accuracy')", "seeds('small', 'alone', 'global_accuracy')")
    gain, runs = "gain('small', 'together', 'alone', 'global_accuracy')", "runs('small')"
    text = " | ".join(f"{{{{ {call} }}}}" for call in (*calls, gain, runs))
    assert rendered(results, f"{text}\n") == "30.0 | 20.0 | +10.0 (n = 1) | 2 of 4\n"


def test_there_is_no_page_while_none_of_its_studies_has_a_whole_seed(results: Path) -> None:
    (results / "small" / "together" / "seed-2.json.gz").unlink()
    (results / "small" / "alone" / "seed-1.json.gz").unlink()
    template = results / "small.md"
    template.write_text("{{ mean('small', 'alone', 'global_accuracy') }}\n")

    assert page(template, results) is None


def test_a_table_has_a_line_for_each_method_with_its_difference(results: Path) -> None:
    found = rendered(results, "{{ table('small', ['alone', 'together'], ['global accuracy'], baseline='alone') }}\n")

    assert found.splitlines() == [
        "| method | global accuracy | over alone |",
        "| --- | ---: | ---: |",
        "| alone | 20.0 ± 0.0 | - |",
        "| together | 40.0 ± 14.1 | +20.0 (-107.1 to +147.1, p = .3, n = 2) |",
    ]


def test_a_misspelt_function_fails_instead_of_leaving_a_hole(results: Path) -> None:
    with pytest.raises(jinja2.UndefinedError, match="'men' is undefined"):
        rendered(results, "{{ men('small', 'alone', 'global_accuracy') }}")


@pytest.fixture(scope="module")
def every_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kept runs of every study behind the pages, all alike."""
    kept, runs = tmp_path_factory.mktemp("kept"), Path("runs")
    for name, entry in studies().items():
        given = entry["arguments"]
        options = list(pairwise(given))
        planned = choose(
            load(given[0], reduced="--reduced" in given),
            methods=tuple(value for option, value in options if option == "--method"),
            seeds=tuple(int(value) for option, value in options if option == "--seed"),
            photos="photos",
        )
        out = kept.parent / "out" / name
        for label in planned.methods:
            for seed in planned.seeds:
                place = out / runs / label / f"seed-{seed}"
                place.mkdir(parents=True)
                (place / "result.json").write_text(json.dumps(made(label, seed, seed % 10)))
        (out / "study.json").write_text(planned.model_dump_json(exclude_defaults=True))
        keep(out, kept / name)
    return kept


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.md")), ids=lambda path: path.stem)
def test_a_template_names_methods_of_its_studies(
    template: Path, every_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, unknown = Numbers._summary, set()

    def noting(self: Numbers, study: str, label: str) -> MethodSummary | None:
        found = ask(self, study, label)
        if found is None:
            unknown.add((study, label))
        return found

    monkeypatch.setattr(Numbers, "_summary", noting)

    text = page(template, every_study)

    assert text is not None
    assert unknown == set()
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    ("p", "text"), [(0.0004, "p < .001"), (0.0042, "p = .0042"), (0.31, "p = .31"), (1.0, "p = 1")]
)
def test_small_ps_are_bounds(p: float, text: str) -> None:
    assert p_value(p) == text
