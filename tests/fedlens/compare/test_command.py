"""`fedlens compare` as a user meets it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fedlens.digits import write_digits
from tests.fedlens.compare.conftest import FEDLENS, STUDY, Carried, fedlens

pytestmark = pytest.mark.slow

CAMERAS = re.compile(r'name = "camera-iid".*\nper_class = 3')
# One in five has no client.
PEOPLE = 'name = "clients"\nunseen = 0.2'
GROUPS = {"own", "others", "unseen"}


def study_in(folder: Path, *more: str, carried: Carried | None = None, text: str = STUDY) -> list[str]:
    """Arguments for a study in a new folder, perhaps with the bundles that the study of the docs has left."""
    folder.mkdir()
    (folder / "small.toml").write_text("\n".join([text, *more]))
    if carried is not None:
        (folder / "out").mkdir()
        (folder / "out" / "bundles").symlink_to(carried.out / "bundles")
    cache = (folder if carried is None else carried.out.parent) / "cache"
    return ["compare", str(folder / "small.toml"), "--out", str(folder / "out"), "--cache", str(cache)]


def results_in(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


@pytest.mark.long
def test_runs_that_work_are_reported_beside_those_that_fail(carried: Carried) -> None:
    results = results_in(carried.out)

    assert carried.status == 1, carried.printed
    assert {(run["label"], run["seed"]) for run in results["runs"]} == {
        (label, seed) for label in ("plain", "small-updates") for seed in (1, 2)
    }
    assert set(results["failures"]) == {"broken, seed 1", "broken, seed 2"}
    assert "the task is failed" in results["failures"]["broken, seed 1"]
    assert "broken, seed 1 failed" in carried.printed


def test_the_raw_results_hold_settings_sums_bytes_and_times_of_each_round(carried: Carried) -> None:
    run = next(run for run in results_in(carried.out)["runs"] if (run["label"], run["seed"]) == ("small-updates", 1))
    assert run["settings"]["codec"] == "f16" and run["settings"]["rounds"] == 2
    # Two rounds, and one more in which every client evaluates.
    first, second, last = run["rounds"]
    assert [len(entry["members"]) for entry in (first, second, last)] == [3, 3, 4]
    # 10 classes with 5 test photos each, and the same sums by class.
    assert second["global"]["count"] == 50 == sum(map(sum, second["global"]["confusion"]))
    assert second["global"]["correct"] == sum(second["global"]["confusion"][c][c] for c in range(10))
    # One test photo of each class and client, a fifth of 3 but at least one.
    assert last["personal_before"]["count"] == last["personal_fine_tuned"]["count"] == 4 * 10
    assert first["bytes_up"] == sum(member["bytes_up"] for member in first["members"]) > 0
    assert first["bytes_down"] > 0
    assert run["made"]["seconds"].keys() == {"1", "2", "3"} and run["made"]["torch"] == version("torch")


def test_updates_of_half_the_size_are_half_the_bytes(carried: Carried) -> None:
    runs = results_in(carried.out)["runs"]

    sent = {run["label"]: run["rounds"][0]["bytes_up"] for run in runs if run["seed"] == 1}

    assert sent["small-updates"] == pytest.approx(sent["plain"] / 2, rel=0.05)


def test_the_tables_show_mean_and_deviation_the_papers_column_and_its_number(carried: Carried) -> None:
    table = (carried.out / "table.md").read_text()

    assert "global accuracy *" in table and "published global accuracy" in table
    line, _, by_seed = [line for line in table.splitlines() if line.startswith("| plain |")]
    assert re.search(r"\| \d+\.\d ± \d+\.\d \|", line) and "| 99.5 |" in line
    assert re.search(r"\| \d+\.\d, \d+\.\d \|", by_seed)
    assert "mean and deviation over 2 seeds" in table and "There are no results of broken (seed 1, 2)." in table
    assert "personal accuracy, after training" in table and "personal accuracy, last trained model" in table
    assert (carried.out / "differences.csv").read_text() == "method,baseline,column,seeds,difference,low,high,p\n"
    assert "A small study" in carried.printed and "99.5" in carried.printed


def test_the_line_of_a_finished_run_says_what_the_table_says(carried: Carried) -> None:
    table = (carried.out / "table.md").read_text()

    told = re.findall(r"plain, seed \d: done, global ([\d.]+)%, personal ([\d.]+)%", carried.printed)
    (by_seed,) = [line for line in table.split("Seed by seed")[1].splitlines() if line.startswith("| plain |")]
    _, _, of_model, of_clients, *_ = by_seed.split("|")

    # Two runs, side by side: in the order in which they end.
    by_seed = [values.strip().split(", ") for values in (of_model, of_clients)]
    assert sorted(told) == sorted(zip(*by_seed, strict=True))


def test_the_report_stands_alone_and_has_a_plot_for_each_question(carried: Carried) -> None:
    report = (carried.out / "report.html").read_text(encoding="utf-8")

    assert "default-src 'none'" in report
    tags = re.sub(r"(<script[^>]*>).*?</script>", r"\1", report, flags=re.DOTALL)
    assert not re.search(r"""<[a-z]+ [^>]*(src|href)=["'](?!data:)""", tags)
    for curve in ("global_accuracy", "pooled_accuracy"):
        for against in ("rounds", "bytes"):
            assert f'id="plot-{curve}-{against}"' in report


def test_a_run_leaves_its_result_and_model_and_is_not_repeated_by_the_same_command(carried: Carried) -> None:
    results = [carried.out / "runs" / "plain" / f"seed-{seed}" / "result.json" for seed in (1, 2)]
    assert {path.name for path in results[0].parent.iterdir()} == {"result.json", "model.blob", "fingerprint"}
    before = [path.stat().st_mtime_ns for path in results]

    again = fedlens(*carried.arguments, "--method", "plain")

    assert again.returncode == 0, again.stderr
    assert "2 of them done before" in again.stdout
    assert [path.stat().st_mtime_ns for path in results] == before
    assert "run anew" not in again.stdout


def test_a_run_that_failed_begins_anew_with_the_same_command(carried: Carried, tmp_path: Path) -> None:
    out = shutil.copytree(carried.out, tmp_path / "out")
    left = out / "runs" / "broken" / "seed-1" / "left"
    left.touch()

    again = fedlens(*carried.arguments, "--out", str(out), "--method", "broken", "--seed", "1")

    assert again.returncode == 1
    assert "broken, seed 1 failed: the task is failed after" in again.stderr + again.stdout
    assert not left.exists()


def test_a_run_with_other_settings_replaces_a_finished_one_and_says_so(carried: Carried, tmp_path: Path) -> None:
    arguments = study_in(tmp_path / "study", carried=carried)
    shutil.copytree(carried.out / "runs" / "plain", tmp_path / "study" / "out" / "runs" / "plain")

    again = fedlens(*arguments, "--method", "plain", "--seed", "1", "--set", "rounds=1")

    assert again.returncode == 0, again.stderr
    assert "plain, seed 1: its result is of other settings, photos or another version; it is run anew" in again.stdout
    (left,) = results_in(tmp_path / "study" / "out")["runs"]
    assert left["settings"]["rounds"] == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            'method = "pfedsim"\noptions = { varient = "paper" }',
            "methods.wrong: options.varient: found set, must be left out",
        ),
    ],
)
def test_a_task_that_cannot_be_made_ends_a_study_before_its_first_run(
    carried: Carried, tmp_path: Path, wrong: str, words: str
) -> None:
    done = fedlens(*study_in(tmp_path / "wrong", "[methods.wrong]", wrong, carried=carried), "--seed", "1")

    assert done.returncode == 1
    assert words in done.stdout + done.stderr
    assert not (tmp_path / "wrong" / "out" / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('objective = "proximate"', "objective 'proximate' is unknown; there are cross_entropy, proximal"),
        ("options.nu = 0.1", "options.nu: found set, must be left out: fedprox has no options"),
        ("hyper.nu = 0.1", "hyper.nu: found 0.1, must be a hyper-parameter of the bundle: lr_classifier"),
        ("hyper.mu = -1.0", "hyper.mu: found -1.0, must be from 0 to 1000"),
    ],
)
def test_a_wrong_name_or_value_ends_a_study_before_anything_is_exported(
    tmp_path: Path, setting: str, words: str
) -> None:
    wrong = f'method = "fedprox"\n{setting}'

    done = fedlens(*study_in(tmp_path / "wrong", "[methods.wrong]", wrong), "--seed", "1")

    assert done.returncode == 1
    assert f"methods.wrong: {words}" in done.stderr
    assert not any((tmp_path / "wrong" / "out" / name).exists() for name in ("bundles", "study.json"))


# Python imports a module of this name first. A run that has come so far without a signal waits for it: a busy machine
# could otherwise send it after the end.
HOLDS = """
import json, signal

really = json.dumps

def dumps(value, **others):
    if isinstance(value, list) and value[:1] == [{last} + 1]:  # the time of a round
        signal.pause()
    return really(value, **others)

json.dumps = dumps
"""


def interrupted(
    arguments: list[str], how: signal.Signals, when: Callable[[], bool], site: Path, last: int
) -> tuple[int, str]:
    """Send a signal to all processes of a study, which ends no round after `last`; the exit status and the output."""
    site.mkdir()
    (site / "sitecustomize.py").write_text(HOLDS.format(last=last))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [FEDLENS, *arguments], stdout=pipe, text=True, start_new_session=True, env=environment
    ) as running:
        try:
            while not when():
                assert running.poll() is None
                with suppress(subprocess.TimeoutExpired):
                    running.wait(0.02)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
        os.killpg(running.pid, how)
        printed, _ = running.communicate()
    return running.returncode, printed


# What is killed in a run, below, shows more of it.
@pytest.mark.long
def test_ctrl_c_ends_a_study_and_the_same_command_goes_on_to_the_same_results(carried: Carried, tmp_path: Path) -> None:
    arguments = [*study_in(tmp_path / "stopped"), "--method", "plain", "--workers", "1"]
    run = Path("out/runs/plain/seed-1")

    status, printed = interrupted(
        arguments, signal.SIGINT, (tmp_path / "stopped" / run / "server").exists, tmp_path / "site", 2
    )

    assert status == 130, printed
    assert "the same command goes on from here" in printed
    done = fedlens(*arguments)
    assert done.returncode == 0, done.stderr
    model = run / "model.blob"
    assert (tmp_path / "stopped" / model).read_bytes() == (carried.out.parent / model).read_bytes()


def test_a_study_killed_in_a_run_goes_on_to_the_results_of_one_that_was_not(tmp_path: Path) -> None:
    # Each client keeps its classifier, which only it has.
    kept = ["[methods.kept]", 'method = "fedper"', "rounds = 12"]
    killed, calm = ([*study_in(tmp_path / name, *kept), "--method", "kept", "--seed", "1"] for name in ("one", "other"))
    times = tmp_path / "one" / "out" / "runs" / "kept" / "seed-1" / "times.jsonl"

    def rounds_done() -> int:
        return len(times.read_text().splitlines()) if times.is_file() else 0

    status, _ = interrupted(killed, signal.SIGKILL, lambda: rounds_done() >= 3, tmp_path / "site", last=9)
    before = rounds_done()
    times.write_bytes(times.read_bytes()[:-3])  # as a full disk or a loss of power may cut it short
    done = [fedlens(*arguments) for arguments in (killed, calm)]

    assert status == -signal.SIGKILL
    assert 3 <= before < 10
    assert [each.returncode for each in done] == [0, 0], done
    results = [results_in(tmp_path / name / "out") for name in ("one", "other")]
    for found in results:
        (run,) = found["runs"]
        assert len(run["rounds"]) == 13
        del run["made"]
        for entry in run["rounds"]:
            del entry["bytes_down"]  # an interrupted round sends some again
    assert results[0] == results[1]


@pytest.mark.long
def test_a_study_of_people_tells_of_own_others_and_unseen_ones_by_camera(carried: Carried, tmp_path: Path) -> None:
    out = tmp_path / "people" / "out"
    digits = write_digits(tmp_path / "digits") / "train"
    # Five people with five photos of each digit, of which one is to test with; the last one has another camera.
    rows = [
        f"digits/train/{digit}/{path.name},p{i % 5},{'old' if i % 5 == 4 else 'new'}"
        for digit in range(10)
        for i, path in enumerate(sorted((digits / str(digit)).iterdir())[:25])
    ]
    (tmp_path / "people.csv").write_text("\n".join(["file,person,camera", *rows]) + "\n")
    values, replaced = CAMERAS.subn(PEOPLE, STUDY)
    assert replaced == 1
    pooled = ["[methods.pooled]", 'method = "fedavg"', "clients = 1"]
    study = study_in(tmp_path / "people", *pooled, carried=carried, text=values)

    done = fedlens(*study, "--photos", str(tmp_path), "--seed", "1", "--method", "plain", "--method", "pooled")

    assert done.returncode == 0, done.stdout + done.stderr
    plain, pooled = results_in(out)["runs"]
    counts = [{group: client[group]["count"] for group in client.keys() & GROUPS} for client in plain["examination"]]
    assert counts == [{"own": 10, "others": 30, "unseen": 50}] * 4
    (everybody,) = pooled["examination"]
    assert (everybody["people"], everybody["own"]["count"], everybody["unseen"]["count"]) == (4, 40, 50)
    header, _, *lines = (out / "table.md").read_text().split("\n\n")[1].splitlines()
    names, table = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (header, lines[1]))
    shown = dict(zip(names, table, strict=True))
    share = everybody["unseen"]["correct"] / everybody["unseen"]["count"]
    assert shown["people never met"] == f"{100 * share:.1f}" and shown["other clients' people"] == "-"
    (by_camera,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| method | own")]
    assert ("people never met, old" in by_camera) != ("own people, old" in by_camera)  # the same one's photos
    assert "By camera" in (out / "report.html").read_text()
