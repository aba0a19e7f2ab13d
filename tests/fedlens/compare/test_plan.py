"""Inputs on which a study's runs depend; and the photos that pre-train a backbone."""

import tomllib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.photos import StudyPhotos, study_photos
from fedlens.compare.plan import StudyPlan, plan
from fedlens.compare.study import PhotosSection, Study, StudyError, parse_study
from tests.edge_client.photo_folders import add_photos, write_files
from tests.fedlens.compare.conftest import STUDY

CLASSES = ("ant", "bee", "cat", "dog")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "photos", dict.fromkeys(CLASSES, 30))


def study(source: Path, *, pretrain_classes: int = 0, tables: dict[str, Any] | None = None, **model: Any) -> Study:
    values = tomllib.loads(STUDY)
    values["photos"] = {"source": str(source), "pretrain_classes": pretrain_classes}
    values["model"] |= {"names": ["resnet18"], "input_size": 32, **model}
    return parse_study(values | (tables or {}), Path(), "small.toml")


def planned(wanted: Study, folder: Path, out: Path) -> StudyPlan:
    return plan(wanted, study_photos(wanted.photos, folder / "cache", folder / "made"), out)


def fingerprints(found: StudyPlan) -> list[str]:
    return [run.fingerprint for run in found.runs]


def test_a_study_whose_folder_was_moved_has_the_same_runs(tmp_path: Path, source: Path) -> None:
    wanted = study(source, pretrain_classes=2)

    before, after = (planned(wanted, tmp_path, tmp_path / name) for name in ("here", "there"))

    assert [bundle.folder for bundle in before.bundles] == [bundle.folder for bundle in after.bundles]
    assert fingerprints(before) == fingerprints(after)


def test_a_run_depends_on_what_is_in_the_file_of_weights_and_not_on_where_it_is(tmp_path: Path, source: Path) -> None:
    for name, content in (("one.pt", b"1"), ("same.pt", b"1"), ("other.pt", b"2")):
        (tmp_path / name).write_bytes(content)

    one, same, other = (
        fingerprints(planned(study(source, backbone_weights=str(tmp_path / name)), tmp_path, tmp_path / "out"))
        for name in ("one.pt", "same.pt", "other.pt")
    )

    assert one == same
    assert not set(one) & set(other)


def test_faults_that_are_ruled_out_in_words_make_no_other_runs(tmp_path: Path, source: Path) -> None:
    none, zero, some = (
        fingerprints(planned(study(source, tables={"faults": faults}), tmp_path, tmp_path / "out"))
        for faults in ({}, {"rates": {"loss": 0.0}}, {"rates": {"loss": 0.5}})
    )

    assert none == zero
    assert not set(none) & set(some)


def test_a_planned_fault_needs_a_method_that_has_its_client(tmp_path: Path, source: Path) -> None:
    plain = {"method": "fedavg"}
    tables = {"faults": {"fault": [{"client": 5, "round": 1, "kind": "vanish"}]}, "methods": {"plain": plain}}

    with pytest.raises(StudyError, match=r"faults.fault: found client 5, must be 0 to 3: no method has more clients"):
        planned(study(source, tables=tables), tmp_path, tmp_path / "out")

    tables["methods"] = {"plain": plain, "many": plain | {"clients": 6}}
    assert planned(study(source, tables=tables), tmp_path, tmp_path / "out").runs


def test_a_method_may_have_clients_and_a_head_of_its_own(tmp_path: Path, source: Path) -> None:
    plain = {"method": "fedavg"}
    methods = {"plain": plain, "pooled": plain | {"clients": 1}, "linear": plain | {"head": "linear"}}

    found = planned(study(source, head="hidden", tables={"methods": methods}), tmp_path, tmp_path / "out").runs

    first = {run.label: run for run in reversed(found)}
    fleets = {label: (run.fleet.clients, run.fleet.partition.clients) for label, run in first.items()}
    assert fleets == {"plain": (4, 4), "pooled": (1, 1), "linear": (4, 4)}
    heads = {label: run.bundles[0].head for label, run in first.items()}
    assert heads == {"plain": "hidden", "pooled": "hidden", "linear": "linear"}
    assert len({run.fingerprint for run in found}) == len(found)


def test_a_run_depends_on_whose_the_photos_are(tmp_path: Path) -> None:
    for label in CLASSES:
        add_photos(tmp_path / "photos", label, 4)
    photos = sorted(path.relative_to(tmp_path) for path in (tmp_path / "photos").glob("*/*.png"))
    section = PhotosSection(source=str(tmp_path))

    def digest(people: Sequence[str]) -> str:
        rows = [f"{photo},{person}\n" for photo, person in zip(photos, people, strict=True)]
        (tmp_path / "people.csv").write_text("file,person\n" + "".join(rows))
        return study_photos(section, tmp_path / "cache", tmp_path / "made").digest

    two = ["ann", "bob"] * 8
    assert digest(two) == digest(two) != digest(["ann", "cleo"] * 8)


def digests(photos: StudyPhotos) -> list[bytes]:
    return [photo.digest for side in (photos.pool.train, photos.pool.test) for of in side for photo in of]


def test_no_client_has_a_public_photo(tmp_path: Path, source: Path) -> None:
    with_all = PhotosSection(source=str(source), public_per_class=3)
    private = study_photos(with_all.model_copy(update={"public_per_class": 0}), tmp_path / "cache", tmp_path / "none")

    photos = study_photos(with_all, tmp_path / "cache", tmp_path / "made")

    assert photos.public is not None and private.public is None
    files = sorted(photos.public.folder.glob("*/*"))
    public = [sha256(file.read_bytes()).digest() for file in files]
    assert [file.parent.name for file in files] == [name for name in CLASSES for _ in range(3)]
    assert sorted([*public, *digests(photos)]) == sorted(digests(private))


def test_public_photos_are_those_that_clients_leave_if_they_leave_any(tmp_path: Path, source: Path) -> None:
    limited = PhotosSection(source=str(source), train_per_class=20)

    before, after = (
        study_photos(limited.model_copy(update={"public_per_class": count}), tmp_path / "cache", tmp_path / "made")
        for count in (0, 2)
    )

    assert (after.public is not None, after.digest) == (True, before.digest)
    with pytest.raises(
        StudyError, match=r"photos.public_per_class: found 30, must be at most \d+, the train photos of"
    ):
        study_photos(limited.model_copy(update={"public_per_class": 30}), tmp_path / "cache", tmp_path / "made")


def test_only_a_method_that_wants_public_photos_gets_them_and_without_any_says_so(tmp_path: Path, source: Path) -> None:
    methods = {"plain": {"method": "fedavg"}, "distilled": {"method": "kt_pfl"}, "again": {"method": "kt_pfl"}}
    wanted = study(source, names=["lenet5"], tables={"methods": methods})
    photos = wanted.photos.model_copy(update={"public_per_class": 1})

    found = planned(wanted.model_copy(update={"photos": photos}), tmp_path, tmp_path / "out").runs

    assert {run.label: run.bundles[0].public is not None for run in found} == {
        "plain": False,
        "distilled": True,
        "again": True,
    }
    assert found[1].bundles == found[2].bundles
    with pytest.raises(StudyError, match=r"photos.public_per_class: found 0, .* for methods.distilled"):
        planned(wanted, tmp_path, tmp_path / "out")


def test_a_file_of_weights_that_is_not_there_is_named(tmp_path: Path, source: Path) -> None:
    wanted = study(source, backbone_weights=str(tmp_path / "none.pt"))

    with pytest.raises(
        StudyError, match=r"model.backbone_weights: found .*none.pt, which cannot be read: No such file"
    ):
        planned(wanted, tmp_path, tmp_path / "out")


def test_all_runs_of_a_study_share_the_photos_that_its_partition_makes(tmp_path: Path) -> None:
    for label in CLASSES:
        add_photos(tmp_path / "photos", label, 10)
    skewed = study(tmp_path / "photos", tables={"partition": {"name": "feature-skew"}})
    runs = planned(skewed, tmp_path, tmp_path / "out").runs

    first, other = ([photo.path for photo in run.fleet.album(1).photos(0).photos] for run in runs[:2])

    assert (runs[0].label, runs[0].seed) != (runs[1].label, runs[1].seed)
    assert {path.parents[1] for path in first} == {tmp_path / "out" / "made-photos"}
    assert first == other


def copied(photos: StudyPhotos) -> dict[str, bytes]:
    assert photos.pretraining is not None
    folder = photos.pretraining.folder
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/[!.]*")}


def test_a_photo_for_pretraining_is_there_in_whole_or_not_at_all(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = study(source, pretrain_classes=2).photos

    def cut_off(original: Path, copy: Path) -> None:
        copy.write_bytes(original.read_bytes()[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("fedlens.compare.photos.copyfile", cut_off)
        study_photos(section, tmp_path / "cache", tmp_path / "killed")

    again = study_photos(section, tmp_path / "cache", tmp_path / "killed")
    assert copied(again) == copied(study_photos(section, tmp_path / "cache", tmp_path / "calm"))
