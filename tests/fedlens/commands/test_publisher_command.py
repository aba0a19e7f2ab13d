"""`fedlens keys`, `fedlens sign`, and what `fedlens bundle show` says of a statement."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedlens_proto.manifest import STATEMENT_FILE
from fedlens_proto.programs.statements import Publisher
from tests.fedlens.commands.cli import error_text, fedlens
from tests.vectors.make import FOLDER

APP = "org.example.camera"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle's folder, beside which lie the keys `ann.key` and `ann.pub`."""
    made = fedlens("keys", "new", tmp_path / "ann")
    assert made.exit_code == 0, made.output
    return Path(shutil.copytree(FOLDER / "bundle", tmp_path / "bundle"))


def shown(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fedlens("bundle", "show", folder, "--json").stdout)["statement"]
    return found


def test_a_bundle_is_signed_and_shows_by_whom_for_whom_and_until_when(folder: Path) -> None:
    key, publisher = folder.parent / "ann.key", Publisher.of_pem((folder.parent / "ann.pub").read_bytes())

    signed = fedlens("sign", folder, "--key", key, "--audience", APP, "--serial", 7, "--floor", 5)
    listed = fedlens("bundle", "show", folder).stdout

    assert signed.exit_code == 0, signed.output
    for line in signed.stdout.splitlines():
        assert line in listed
    assert "vectors, serial 7; those below 5 are withdrawn" in listed and APP in listed
    assert shown(folder)["publisher"] == publisher.id.hex()
    assert publisher.id.hex() in fedlens("keys", "show", folder.parent / "ann.pub").stdout


def test_a_bundle_without_a_statement_says_so(folder: Path) -> None:
    assert shown(folder) is None
    assert "not signed" in fedlens("bundle", "show", folder).stdout


def test_a_statement_that_is_damaged_or_about_another_bundle_is_an_error_of_the_bundle(folder: Path) -> None:
    shutil.copyfile(FOLDER / "statements" / "good.bin", folder / STATEMENT_FILE)
    other = error_text(fedlens("bundle", "show", folder))
    (folder / STATEMENT_FILE).write_bytes(b"\xff")
    damaged = error_text(fedlens("bundle", "show", folder))

    assert "statement: it is about bundle" in other
    assert "statement: no readable statement" in damaged


def test_what_cannot_be_signed_is_left_as_it_was(folder: Path) -> None:
    key = folder.parent / "ann.key"

    nobody = error_text(fedlens("sign", folder, "--key", key))
    no_key = error_text(fedlens("sign", folder, "--key", folder.parent / "ann.pub", "--any-app"))
    no_bundle = error_text(fedlens("sign", folder.parent, "--key", key, "--any-app"))
    twice = error_text(fedlens("keys", "new", folder.parent / "ann"))

    assert "the bundle is for nobody" in nobody
    assert "`fedlens keys new` makes one" in no_key
    assert "is no bundle" in no_bundle
    assert "is there already" in twice
    assert not (folder / STATEMENT_FILE).exists()


def test_an_export_that_cannot_be_signed_ends_before_it_begins(tmp_path: Path, folder: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)

    def refusal(*options: object) -> str:
        where = ("--classes-from", tmp_path / "photos", "--out", tmp_path / "exported")
        return error_text(fedlens("export", "--model", "lenet5", *where, *options))

    assert "no.key cannot be read as a private key" in refusal("--sign", tmp_path / "no.key", "--any-app")
    assert "the bundle is for nobody" in refusal("--sign", folder.parent / "ann.key")
    assert "give --sign, too" in refusal("--audience", APP)
    assert not (tmp_path / "exported").exists()


@pytest.mark.slow
def test_an_exported_bundle_is_signed(tmp_path: Path, folder: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    where = ("--classes-from", tmp_path / "photos", "--out", tmp_path / "exported", "--no-onnx")

    first = fedlens("export", "--model", "lenet5", *where, "--sign", folder.parent / "ann.key", "--any-app")
    again = fedlens("export", "--model", "lenet5", *where, "--sign", folder.parent / "ann.key", "--audience", APP)

    assert (first.exit_code, again.exit_code) == (0, 0), first.output + again.output
    assert "every application" in first.output and APP in again.output
    assert shown(tmp_path / "exported")["audience"] == [APP]
