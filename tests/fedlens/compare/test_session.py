"""A study whose runs have all ended, carried out again: what the command says of it."""

import json
from pathlib import Path

from fedlens.compare.study import choose, load
from tests.edge_client.photo_folders import write_files
from tests.fedlens.commands.cli import fedlens
from tests.fedlens.compare.conftest import STUDY
from tests.fedlens.compare.test_kept import made
from tests.fedlens.compare.test_plan import planned


def test_photos_that_are_left_out_and_classes_without_any_are_named(tmp_path: Path) -> None:
    photos = write_files(tmp_path / "photos", {"ant": 20, "bee": 20, "emu": 0})
    (photos / "ant" / "mine.heic").touch()
    file, out = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(STUDY)
    study = choose(load(str(file), changes=[("partition.name", "classes")]), photos=str(photos))
    for run in planned(study, tmp_path, out).runs:
        run.result.parent.mkdir(parents=True)
        run.result.write_text(json.dumps(made(run.label, run.seed, 5, fingerprint=run.fingerprint)))

    done = fedlens("compare", file, "--photos", photos, "--set", "partition.name=classes", "--out", out)

    assert done.exit_code == 0, done.output
    assert "6 of them done before" in done.stdout
    assert "left out 1 HEIC photos, which cannot be read here (export them as JPEG): ant/mine.heic" in done.stdout
    assert "no train photo of class 'emu': nobody learns it; add photos" in done.stdout
    assert "no test photo of class 'emu': results say nothing of it; add photos" in done.stdout
