"""Keys of publishers, and what they say of bundles."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedlens_export import signing
from fedlens_export.errors import NotSigned
from fedlens_export.signing import Terms
from fedlens_proto.manifest import STATEMENT_FILE, Bundle
from fedlens_proto.programs import statements
from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import statement_pb2 as pb
from tests.vectors.make import committed_bundle

NOW, DAY_S = 1_800_000_000.5, 86_400
KEY = ec.derive_private_key(17, ec.SECP256R1())
APP = "org.example.camera"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A bundle in a folder that a test may change."""
    committed = committed_bundle()
    return Bundle(committed.manifest, committed.raw, tmp_path)


def sign(bundle: Bundle, now: float = NOW, **terms: object) -> pb.Statement:
    """Sign a bundle as the command does; what its file then says, verified."""
    whole = signing.stated(bundle, KEY, Terms(**terms), now)  # type: ignore[arg-type]
    (bundle.folder / STATEMENT_FILE).write_bytes(whole)
    return statements.verified(whole, bundle.id, [Publisher.of(KEY.public_key())])


def test_a_new_statement_names_the_model_and_grows_with_time(bundle: Bundle) -> None:
    found = sign(bundle, audience=[APP])

    assert (found.name, found.serial, found.floor) == ("vectors", 1_800_000_000, 0)
    assert (list(found.audience), found.any_app) == ([APP], False)
    assert found.not_after == 1_800_000_000 + 90 * DAY_S


def test_signed_anew_it_says_the_same_for_longer(bundle: Bundle) -> None:
    first = sign(bundle, audience=[APP], name="digits", serial=7, floor=5)
    later = sign(bundle, NOW + 80 * DAY_S, days=30)

    assert later.not_after == first.not_after + 20 * DAY_S
    later.not_after = first.not_after
    assert later == first


def test_what_is_given_replaces_what_was_said(bundle: Bundle) -> None:
    sign(bundle, audience=[APP], serial=7, floor=5)
    for_all = sign(bundle, any_app=True, floor=0)
    again = sign(bundle, audience=["org.example.notes"])

    assert (for_all.any_app, list(for_all.audience), for_all.serial, for_all.floor) == (True, [], 7, 0)
    assert (again.any_app, list(again.audience)) == (False, ["org.example.notes"])


def test_a_statement_about_another_bundle_is_not_continued(bundle: Bundle) -> None:
    other = signing.signed(pb.Statement(manifest=bytes(32), name="other", any_app=True, serial=7, not_after=1), KEY)
    (bundle.folder / STATEMENT_FILE).write_bytes(other)

    with pytest.raises(NotSigned, match="the bundle is for nobody: give --audience"):
        sign(bundle)


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({}, "the bundle is for nobody"),
        ({"audience": [APP], "any_app": True}, "found an audience and --any-app, must be one of them"),
        ({"any_app": True, "serial": 4, "floor": 5}, "the floor is at most the serial"),
        ({"any_app": True, "name": "a" * 201}, "a name has 1 to 200 characters"),
        ({"audience": [""]}, "the audience has names"),
        ({"any_app": True, "serial": -1}, "serial: found -1"),
    ],
)
def test_terms_that_contradict_each_other_are_refused(bundle: Bundle, terms: dict[str, object], reason: str) -> None:
    with pytest.raises(NotSigned, match=reason):
        sign(bundle, **terms)
    assert not (bundle.folder / STATEMENT_FILE).exists()


def test_the_same_statement_gives_the_same_bytes(bundle: Bundle) -> None:
    one, two = (signing.stated(bundle, KEY, Terms(any_app=True), NOW) for _ in range(2))

    assert one == two


def test_a_key_is_read_as_it_was_made_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    made = signing.new_key(tmp_path / "ann")

    key = signing.private_key(tmp_path / "ann.key")
    assert Publisher.of(key.public_key()) == made == Publisher.of_pem((tmp_path / "ann.pub").read_bytes())
    assert (tmp_path / "ann.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("there", ["ann.key", "ann.pub"])
def test_a_key_replaces_nothing(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")

    with pytest.raises(NotSigned, match=f"{there} is there already"):
        signing.new_key(tmp_path / "ann")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


@pytest.mark.parametrize("name", [".", "", "/"])
def test_a_key_needs_a_name(name: str) -> None:
    with pytest.raises(NotSigned, match="names no file; give a name such as keys/publisher"):
        signing.new_key(Path(name))


def test_a_key_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = os.open

    def full(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = opens(path, flags, mode)
        if str(path).endswith(".key"):
            with Path("/dev/full").open("wb") as device:
                os.dup2(device.fileno(), descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(NotSigned, match=r"the key cannot be written: .*No space left on device"):
        signing.new_key(tmp_path / "ann")

    assert not list(tmp_path.iterdir())


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    signing.new_key(tmp_path / "ann")

    with pytest.raises(NotSigned, match="it holds none in PEM form"):
        signing.private_key(tmp_path / "ann.pub")
    with pytest.raises(NotSigned, match="No such file"):
        signing.private_key(tmp_path / "bob.key")
    with pytest.raises(NotSigned, match="the key cannot be written"):
        signing.new_key(tmp_path / "nowhere" / "ann")
