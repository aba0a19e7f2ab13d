"""Every method in a study, with the bundles that the study exports for it; each bundle is exported once."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedlens_server.methods import METHODS, bundle_settings
from fedlens_server.planning.task_settings import TaskSettings
from tests.fedlens.compare.conftest import fedlens

STUDY = """
name = "methods"
clients = 4
rounds = 3
seeds = [1]

[photos]
source = "digits"
train_per_class = 12
test_per_class = 4
public_per_class = 1

[partition]
name = "camera-iid"
per_class = 3

[model]
names = ["lenet5_bn"]
input_size = 16
batch = 16
"""
OF_TWO = {"clusters": 2}
ALL: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in METHODS},
    "pfedsim": {"method": "pfedsim", "options": {"warm_up": 0.5}},
    "fedap-recomputed": {"method": "fedap", "options": {"statistics": "recomputed"}},
    "fedclassavg": {"method": "fedclassavg", "objective": "supcon"},
    "fedfomo": {"method": "fedfomo", "options": {"share_models": True, "others": 2}},
    "fedsoft": {"method": "fedsoft", "options": OF_TWO},
    "fesem": {"method": "fesem", "options": OF_TWO},
    "ifca": {"method": "ifca", "options": OF_TWO},
    "kt_pfl-weight": {"method": "kt_pfl", "options": {"weight": True}},
    "per_fedavg-hf": {"method": "per_fedavg", "objective": "meta_hf"},
    "fedconcat": {"method": "fedconcat", "concatenated": 2, "options": {**OF_TWO, "extractor_rounds": 1}},
    **{
        f"fedconcat-{name}": {
            "method": "fedconcat",
            "concatenated": 2,
            "options": {**OF_TWO, "extractor_rounds": 1, "clustering": name},
        }
        for name in ("fesem", "ifca", "fedsoft")
    },
    "fedconcat-bias": {
        "method": "fedconcat",
        "concatenated": 2,
        "options": {**OF_TWO, "extractor_rounds": 1, "labels": "bias"},
    },
}


def carried_out(folder: Path, methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The results of a study of these methods, by label."""
    tables = [
        f"[methods.{label}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in method.items())
        for label, method in methods.items()
    ]
    (folder / "study.toml").write_text(STUDY + "\n".join(tables))
    done = fedlens("compare", str(folder / "study.toml"), "--out", str(folder / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    return {run["label"]: run for run in json.loads((folder / "out" / "results.json").read_text())["runs"]}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def states(run: dict[str, Any]) -> set[str]:
    return {member["state"] for found in run["rounds"] for member in found["members"]}


@pytest.mark.long
def test_methods_with_tables_centres_and_public_photos_run_in_a_study(tmp_path: Path) -> None:
    methods = {label: ALL[label] for label in ("fedproto", "ifca", "kt_pfl")}

    runs = carried_out(tmp_path, methods)

    assert {label: states(run) for label, run in runs.items()} == {label: {"reported"} for label in methods}
    assert [run["bundles"][0]["objective"] for run in runs.values()] == ["prototypes", "cross_entropy", "distil"]
    # An evaluation that only this method has: with the nearest prototype.
    first = runs["fedproto"]["rounds"][0]
    assert all("nearest" in member for member in first["members"])
    assert first["personal_nearest"]["count"] == sum(member["nearest"]["count"] for member in first["members"])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_method_runs_in_a_study(tmp_path: Path) -> None:
    runs = carried_out(tmp_path, ALL)

    assert {label: states(run) for label, run in runs.items()} == {label: {"reported"} for label in ALL}
    for label in ("fedconcat", "fedconcat-bias", "fesem"):
        clusters = runs[label]["clusters"]
        assert sorted(client for found in clusters for client in found["clients"]) == [f"client {i}" for i in range(4)]
        assert all(found["photos"] == [3 * len(found["clients"])] * 10 for found in clusters)
    assert "clusters" not in runs["fedavg"]


@pytest.mark.parametrize("method", METHODS)
def test_the_bundle_of_a_method_can_be_exported(method: str, tmp_path: Path) -> None:
    from fedlens_export.exporting import ExportSpec, check_spec

    (tmp_path / "photo.png").write_bytes(b"looked at later")
    wanted = bundle_settings(TaskSettings(method=method, rounds=1, population=1))

    check_spec(
        ExportSpec(
            model="lenet5",
            class_names=("ant", "bee"),
            objective=wanted.objective,
            candidates=wanted.candidates,
            programs=wanted.programs,
            public=tmp_path if wanted.public else None,
        )
    )
