"""Studies that are carried out: their command lines, and runs that are kept while others go on."""

import argparse
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.kept import KEPT, load
from fedlens.compare.study import load as load_study
from papers import again
from papers.again import differing, repeat, without_choice
from papers.keeping import keep
from papers.run import carry_out, chosen, command, studies
from tests.fedlens.compare.test_kept import RUNS, folder, made

# Leaves one more finished run, if it finds those before it, and fails as a study does that was stopped.
STUDY = """
import shutil, sys
from pathlib import Path
source, out = map(Path, sys.argv[1:])
results = sorted(path.relative_to(source) for path in source.glob("runs/*/*/result.json"))
missing = [path for path in results if not (out / path).is_file()]
out.mkdir(exist_ok=True)
shutil.copy(source / "study.json", out)
(out / missing[0]).parent.mkdir(parents=True)
shutil.copy(source / missing[0], out / missing[0])
sys.exit(len(missing) - 1)
"""


def test_every_study_is_a_command_that_compare_understands(tmp_path: Path) -> None:
    for name, study in studies().items():
        _, verb, preset, *rest = command(study, Path("photos"), tmp_path / name, 2)
        assert verb == "compare"
        chosen = [value for option, value in itertools.pairwise(rest) if option == "--method"]
        known = load_study(preset, reduced="--reduced" in rest).methods
        assert set(chosen) <= set(known), name


def test_each_run_is_kept_and_a_new_folder_goes_on_from_the_kept_ones(tmp_path: Path) -> None:
    source, kept = folder(tmp_path / "source", *RUNS), tmp_path / "kept"
    seen = []

    for attempt in itertools.count():
        out = tmp_path / f"out {attempt}"  # as on another machine
        status = carry_out([sys.executable, "-c", STUDY, str(source), str(out)], out, kept)
        seen.append((status, len(load(kept).runs)))
        if status == 0:
            break

    assert seen == [(3, 1), (2, 2), (1, 3), (0, 4)]
    assert load(kept).summaries == load(source).summaries


def test_a_run_that_was_made_anew_is_kept_though_the_kept_one_was_checked_out_later(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    keep(folder(tmp_path / "first", RUNS[0]), kept)
    anew = folder(tmp_path / "anew", made("alone", 1, 9))
    os.utime(anew / "runs" / "alone" / "seed-1" / "result.json", (1, 1))

    assert keep(anew, kept) == 1


def test_kept_runs_of_earlier_settings_do_not_count_beside_new_ones(tmp_path: Path) -> None:
    kept, anew = tmp_path / "kept", made("together", 1, 9)
    keep(folder(tmp_path / "first", *RUNS), kept)
    out = folder(tmp_path / "out", anew)
    planned = [anew["fingerprint"], *(f"{run['label']} {run['seed']} anew" for run in RUNS if run is not RUNS[2])]
    (out / "planned.json").write_text(json.dumps(planned))

    keep(out, kept)

    assert [run["fingerprint"] for run in load(kept).runs] == [anew["fingerprint"]]


def test_a_name_without_a_study_ends_the_program_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chosen(argparse.ArgumentParser(), ["fedns", "fednss"])

    assert "found 'fednss', must be one of fedns," in capsys.readouterr().err


def test_what_differs_between_two_runs_is_named() -> None:
    first, second = RUNS[0], RUNS[0] | {"made": {"seconds": {}}, "seed": 7, "clients": 2}
    second = second | {"rounds": [{**second["rounds"][0], "bytes_down": 1, "bytes_up": 99}]}

    assert differing(first, first) == []
    assert differing(first, second) == ["seed", "rounds/0/bytes_up"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"settings": {"rounds": 1, "added": 2}}, ""),
        ({"settings": {"rounds": 9}}, "differs in settings/rounds"),
        ({"clients": 3}, "differs in clients"),
        (
            {"clients": 3, "made": {"processor": "2 x B"}},
            "differs in clients; it was made on 2 x A, and the repeated run on 2 x B, which may be the reason",
        ),
    ],
)
def test_a_repeated_run_says_what_differs_and_on_which_processors(
    change: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS[0] | {"made": {"processor": "2 x A"}, "settings": {"rounds": 1}}
    kept = tmp_path / "kept"
    keep(folder(tmp_path / "first", run), kept)

    def carried_out(_: object, out: Path, __: Path) -> int:
        folder(out, run | change)
        return 0

    monkeypatch.setattr(again, "carry_out", carried_out)

    assert repeat({"arguments": ["fedns"]}, next(kept.glob(KEPT)), tmp_path, tmp_path) == told


def test_a_repeated_run_is_the_only_one_of_its_study() -> None:
    study = {"arguments": ["fedconcat", "--paper", "--seed", "1", "--method", "a", "--method", "b", "--set", "x=1"]}

    assert without_choice(study)["arguments"] == ["fedconcat", "--paper", "--set", "x=1"]
