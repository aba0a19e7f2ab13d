"""Results that are read again: whole studies, runs kept one by one, and what does not belong together."""

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.kept import Kept, column, load, load_all
from fedlens.compare.report.summary import Run
from fedlens.compare.study import StudyError
from papers.keeping import keep, restore
from tests.fedlens.commands.cli import fedlens
from tests.fedlens.compare.conftest import PAGE
from tests.fedlens.compare.report.test_differences import study
from tests.fedlens.compare.report.test_summary import run


def made(label: str, seed: int, right: int, **changes: Any) -> dict[str, Any]:
    """A run that is right in so many of 10 photos."""
    named = {"form": 2, "label": label, "fingerprint": f"{label} {seed} {right}", "photos": "a" * 64}
    return run(seed, right) | named | {"class_names": ["0", "1"], "partition": "p", "clients": 2} | changes


def folder(path: Path, *runs: dict[str, Any]) -> Path:
    """A study's folder, as `fedlens compare` leaves it."""
    described = study(seeds=[1, 2]).model_dump(mode="json", exclude_defaults=True)
    described["photos"]["source"] = "/where/somebody/keeps/digits"
    path.mkdir()
    for each in runs:
        place = path / "runs" / each["label"] / f"seed-{each['seed']}"
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps(each))
    (path / "study.json").write_text(json.dumps(described))
    (path / "results.json").write_text(json.dumps({"study": described, "failures": {}, "runs": runs}))
    return path


RUNS = [made("alone", 1, 2), made("alone", 2, 2), made("together", 1, 3), made("together", 2, 5)]


def test_kept_runs_give_the_same_summaries_as_the_whole_study(tmp_path: Path) -> None:
    whole = folder(tmp_path / "out", *RUNS)

    assert keep(whole, tmp_path / "kept") == 4

    assert json.loads((tmp_path / "kept" / "study.json").read_text())["photos"]["source"] == "digits"
    assert {path.name for path in (tmp_path / "kept" / "alone").iterdir()} == {"seed-1.json.gz", "seed-2.json.gz"}
    (whole / "study.json").unlink()
    assert load(tmp_path / "kept").summaries == load(whole).summaries == load(whole / "results.json").summaries


def test_a_run_is_kept_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    out, kept = folder(tmp_path / "out", *RUNS[:1]), tmp_path / "kept"
    keep(out, kept)
    before = (kept / "alone" / "seed-1.json.gz").read_bytes()

    assert keep(out, kept) == 0
    (kept / "alone" / "seed-1.json.gz").touch()  # as a checkout does
    assert keep(out, kept) == 0
    assert (kept / "alone" / "seed-1.json.gz").read_bytes() == before
    (out / "runs" / "alone" / "seed-1" / "result.json").write_text(json.dumps(made("alone", 1, 9)))
    assert keep(out, kept) == 1
    assert json.loads(gzip.decompress((kept / "alone" / "seed-1.json.gz").read_bytes()))["fingerprint"] == "alone 1 9"


def test_kept_runs_go_back_to_where_a_study_finds_them(tmp_path: Path) -> None:
    keep(folder(tmp_path / "out", *RUNS), tmp_path / "kept")

    restore(tmp_path / "kept", tmp_path / "again")

    for label, seed in (("alone", 1), ("together", 2)):
        result = Path("runs") / label / f"seed-{seed}" / "result.json"
        assert json.loads((tmp_path / "again" / result).read_text()) == json.loads(
            (tmp_path / "out" / result).read_text()
        )


def test_studies_of_the_same_photos_are_read_as_one(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "one", *RUNS[:2]), folder(tmp_path / "other", *RUNS[2:])

    both = load_all([one, other])

    assert both.summaries == Kept(study(), RUNS).summaries
    assert both.study.seeds == (1, 2)


def test_studies_of_other_photos_are_refused(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "one", RUNS[0]), folder(tmp_path / "other", made("together", 1, 3, photos="b" * 64))

    with pytest.raises(StudyError, match=r"other: made with other photos than .*one; .* run with the same --photos"):
        load_all([one, other])


def test_an_empty_study_does_not_hide_that_others_are_of_other_photos(tmp_path: Path) -> None:
    empty, one = folder(tmp_path / "empty"), folder(tmp_path / "one", RUNS[0])
    other = folder(tmp_path / "other", made("together", 1, 3, photos="b" * 64))

    with pytest.raises(StudyError, match=r"other: made with other photos"):
        load_all([empty, one, other])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 9}, r"other: its setting clients is another than in .*one, so its seeds are no pairs"),
        ({"partition": {"name": "classes"}}, r"other: its setting partition is another than in .*one"),
        ({"rounds": 99}, r"other: its alone has other settings than in .*one: give one of both"),
    ],
)
def test_studies_that_share_no_clients_and_methods_of_other_settings_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    one, other = folder(tmp_path / "one", RUNS[0]), folder(tmp_path / "other", RUNS[1])
    results = json.loads((other / "results.json").read_text())
    (other / "results.json").write_text(json.dumps(results | {"study": results["study"] | change}))

    with pytest.raises(StudyError, match=words):
        load_all([one, other])


def test_runs_of_an_earlier_commands_settings_are_left_out_while_a_study_goes_on(tmp_path: Path) -> None:
    out = folder(tmp_path / "out", *RUNS)
    (out / "results.json").unlink()
    (out / "planned.json").write_text(json.dumps([run["fingerprint"] for run in RUNS[2:]]))

    assert [run["label"] for run in load(out).runs] == ["together", "together"]
    assert keep(out, tmp_path / "kept") == 2


def marks(runs: Sequence[Run]) -> list[str]:
    return [run["fingerprint"] for run in runs]


def test_results_of_an_earlier_command_do_not_hide_runs_that_a_later_one_has_finished(tmp_path: Path) -> None:
    out, anew = folder(tmp_path / "out", *RUNS[:1]), made("alone", 1, 9)
    # The same study with more runs, of which one has ended, and then with another number of rounds.
    (out / "planned.json").write_text(json.dumps(marks(RUNS)))
    (out / "runs" / "together" / "seed-1").mkdir(parents=True)
    (out / "runs" / "together" / "seed-1" / "result.json").write_text(json.dumps(RUNS[2]))

    assert marks(load(out).runs) == marks([RUNS[0], RUNS[2]])

    described = json.loads((out / "study.json").read_text())
    (out / "study.json").write_text(json.dumps(described | {"rounds": 9}))
    (out / "planned.json").write_text(json.dumps([anew["fingerprint"]]))
    (out / "runs" / "alone" / "seed-1" / "result.json").write_text(json.dumps(anew))

    assert marks(load(out).runs) == marks([anew])
    assert load(out).study.settings["rounds"] == 9
    assert marks(load(out / "results.json").runs) == marks(RUNS[:1])


def test_runs_of_a_study_are_in_the_order_of_its_results_and_a_version_that_it_has_left_behind_does_not_matter(
    tmp_path: Path,
) -> None:
    runs = [made("together", seed, 3) for seed in (2, 10)]
    out = folder(tmp_path / "out", *runs, made("gone", 1, 3, form=1))
    (out / "planned.json").write_text(json.dumps(marks(runs)))

    assert marks(load(out).runs) == marks(runs)


def test_two_runs_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "one", RUNS[0]), folder(tmp_path / "other", made("alone", 1, 7))

    with pytest.raises(StudyError, match=r"other: another alone, seed 1, than in .*one: give one of both"):
        load_all([one, other])


def test_results_of_an_older_form_are_refused_with_what_to_do(tmp_path: Path) -> None:
    older = made("alone", 1, 2)
    del older["form"]

    with pytest.raises(StudyError, match=r"out: results of form 1, but this version reads form 2: run the study again"):
        load(folder(tmp_path / "out", older))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing", None, "there are no results; give the folder of a study"),
        ("results.json", "[", "cannot be read as results"),
        ("results.json", '{"study": {}, "runs": []}', "not the results of a study: name: found nothing, must be"),
        ("results.json", "[]", "not the results of a study: found None, must be a table"),
        ("results.json", '{"study": {}, "runs": 5}', "not the results of a study: its runs are no list"),
        ("results.json", '{"study": {}, "runs": [{"form": 2}]}', "a run has no 'label'; its file is damaged"),
    ],
)
def test_what_is_not_results_is_refused(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)

    with pytest.raises(StudyError, match=words):
        load(tmp_path / name)


def test_a_damaged_kept_run_is_named(tmp_path: Path) -> None:
    keep(folder(tmp_path / "out", RUNS[0]), tmp_path / "kept")
    kept = tmp_path / "kept" / "alone" / "seed-1.json.gz"
    raw = bytearray(kept.read_bytes())
    for at in range(12, len(raw)):
        kept.write_bytes(raw[:at] + bytes([raw[at] ^ 255]) + raw[at + 1 :])
        with pytest.raises(StudyError, match=r"seed-1\.json\.gz: cannot be read"):
            load(tmp_path / "kept")


def test_a_column_has_a_name_and_a_title() -> None:
    assert column("pooled_accuracy") == column("pooled accuracy") == "pooled_accuracy"
    with pytest.raises(StudyError, match=r"--column: found 'accuracy', must be one of global_accuracy, "):
        column("accuracy")


def test_the_command_shows_chosen_columns_against_a_baseline_and_writes_csv(tmp_path: Path) -> None:
    whole = folder(tmp_path / "out", *RUNS)
    chosen = ["--column", "global_accuracy", "--baseline", "together", "--csv", str(tmp_path / "csv")]

    done = fedlens("results", whole, *chosen)

    assert done.exit_code == 0, done.stderr
    assert "| alone | 20.0 ± 0.0 | -20.0 (-147.1 to +107.1) | 0.3 |" in done.stdout
    lines = (tmp_path / "csv" / "results.csv").read_text().splitlines()
    assert lines[0] == "method,seed,column,value" and "together,2,global_accuracy,0.5" in lines
    assert (tmp_path / "csv" / "differences.csv").read_text().startswith("method,baseline,column,seeds,difference,")
    assert "together,1,1,100,200,0.75,0.3," in (tmp_path / "csv" / "rounds.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--column", "accuracy"], "--column: found 'accuracy', must be one of"),
        (["--baseline", "best"], "--baseline: found 'best', must be one of alone, together"),
        (["--csv", "out/results.json"], "out/results.json/results.csv cannot be written: "),
    ],
)
def test_a_wrong_name_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedlens("results", str(folder(tmp_path / "out", *RUNS)), *arguments)

    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedlens: ") and words in line


def test_runs_that_have_not_ended_are_told_and_seeds_are_those_of_the_studies(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "one", *RUNS[:1]), folder(tmp_path / "other", *RUNS[2:])

    alone, both = fedlens("results", str(one)).stdout, fedlens("results", str(one), str(other)).stdout

    assert "There are no results of alone (seed 2); together (seed 1, 2)." in alone
    assert "over 2 seeds" in alone
    assert "There are no results of alone (seed 2)." in both


def test_a_study_of_which_no_run_has_ended_has_no_table(tmp_path: Path) -> None:
    done = fedlens("results", str(folder(tmp_path / "out")))

    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{tmp_path / 'out'}: no run has ended" in done.stderr


def test_the_recipe_for_pandas_reads_what_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    recipe = re.search(r"<!-- pandas -->\n```python\n(?P<text>.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert recipe is not None
    fedlens("results", str(folder(tmp_path / "out", *RUNS)), "--csv", str(tmp_path / "small"))
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}

    exec(recipe["text"], found)

    # Every client of these runs is right in 4 of 4 or 3 of 6 photos.
    assert found["final"]["personal_accuracy"].tolist() == [0.75] * 4
    assert found["rounds"]["global_accuracy"].tolist() == [0.2, 0.2, 0.3, 0.5]
