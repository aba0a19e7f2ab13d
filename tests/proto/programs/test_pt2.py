"""Vetting programs: what is harmless gets canonical bytes, everything else is refused and runs nothing."""

import io
import json
import subprocess
import sys
import typing
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2, pt2_loading
from fedlens_proto.programs.pt2_graph import OPERATORS
from tests.proto.programs.pt2_attacks import ATTACKS, MODEL, Members, genuine, members_of, pack, sample_inputs


@pytest.fixture(scope="module")
def program() -> bytes:
    return genuine()


def test_a_vetted_program_computes_what_the_original_did(program: bytes) -> None:
    # relu([[-1, 2, 3]] * [2, 2, 0]) + 1 = [[1, 5, 1]], in both rows
    loaded = pt2_loading.load(pt2.canonical(program))

    (found,) = loaded.module(check_guards=False)(torch.tensor([[-1.0, 2, 3]] * 2), torch.tensor([2.0, 2, 0]))

    assert found.tolist() == [[1, 5, 1]] * 2


def test_vetting_twice_changes_nothing_more(program: bytes) -> None:
    once = pt2.canonical(program)

    assert pt2.canonical(once) == once


def test_what_torch_adds_to_each_file_does_not_show(program: bytes) -> None:
    # The root is the file's stem, and the id comes from the content as it was saved.
    members = {**members_of(program), ".data/serialization_id": b"0" * 40}

    assert pt2.canonical(pack(members, root="elsewhere")) == pt2.canonical(program)


def test_the_build_of_torch_does_not_show(program: bytes) -> None:
    members = members_of(program)
    model = json.loads(members[MODEL])
    release = model["torch_version"].partition("+")[0]
    builds = [
        pt2.canonical(pack({**members, MODEL: json.dumps({**model, "torch_version": f"{release}+{build}"}).encode()}))
        for build in ("cpu", "cu130")
    ]

    assert builds[0] == builds[1]


def test_stack_traces_and_paths_are_left_out(program: bytes) -> None:
    here = str(Path(__file__).parent).encode()

    assert here in program
    assert here not in pt2.canonical(program)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_by_what_was_found_and_runs_nothing(name: str, program: bytes, tmp_path: Path) -> None:
    attack, reason = ATTACKS[name]
    marker = tmp_path / "marker"
    raw = pack(attack(members_of(program), marker))

    with pytest.raises(ProgramRefused, match=reason):
        pt2.canonical(raw)

    assert not marker.exists()


@pytest.mark.slow
def test_the_attacks_are_real_without_the_vetting(program: bytes, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    raw = pack(sample_inputs(members_of(program), marker))
    script = tmp_path / "load.py"
    script.write_text("import sys, torch\ntry:\n    torch.export.load(sys.argv[1])\nexcept Exception:\n    pass\n")
    (tmp_path / "attack.pt2").write_bytes(raw)

    subprocess.run([sys.executable, script, tmp_path / "attack.pt2"], check=True, capture_output=True)

    assert marker.exists()


def under_two_roots(members: Members) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for i, (name, content) in enumerate(members.items()):
            archive.writestr(f"{'ab'[i % 2]}/{name}", content)
    return stream.getvalue()


def with_a_member_twice(members: Members) -> bytes:
    stream = io.BytesIO(pack(members))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(f"a/{MODEL}", b"{}")
    return stream.getvalue()


def bomb(members: Members) -> bytes:
    """200 MB of zeros, which are 200 kB compressed; they must not be unfolded."""
    return pack({**members, MODEL: bytes(200_000_000)}, compression=zipfile.ZIP_DEFLATED)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (under_two_roots, "under 2 roots"),
        (with_a_member_twice, "occurs twice"),
        (bomb, "is compressed"),
        (lambda _: bytes(pt2.MAX_BYTES + 1), "at most 16777216 are allowed"),
        (lambda _: b"", "no readable zip"),
        (lambda members: pack(members)[:10], "no readable zip"),
        (lambda members: pack(members)[:1000], "no readable zip"),
        (lambda members: pack(members)[:-1], "no readable zip"),
    ],
)
def test_another_archive_is_refused(program: bytes, archive: Callable[[Members], bytes], reason: str) -> None:
    with pytest.raises(ProgramRefused, match=reason):
        pt2.canonical(archive(members_of(program)))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_json_that_is_no_program_is_refused(program: bytes, text: bytes) -> None:
    with pytest.raises(ProgramRefused):
        pt2.canonical(pack({**members_of(program), MODEL: text}))


def test_vetting_needs_no_torch() -> None:
    code = "import sys, fedlens_proto.programs.pt2; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_operator_on_the_list_writes_to_its_arguments_or_looks_at_memory() -> None:
    for operator in OPERATORS:
        name, _, overload = operator.removeprefix("torch.ops.aten.").partition(".")
        schema = getattr(getattr(torch.ops.aten, name), overload)._schema

        assert not schema.is_mutable, operator
        assert not {"empty", "as_strided", "from_file", "set", "resize"} & {name.strip("_")}
        assert not any(isinstance(result.type, torch.ListType) for result in schema.returns), operator
        assert not any("str" in str(argument.type) for argument in schema.arguments), operator


def test_of_all_programs_a_class_of_torch_tells_its_hints_once(program: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    canonical, asked = pt2.canonical(program), list[type]()
    pt2_loading.load(canonical)
    monkeypatch.setattr(typing, "get_type_hints", lambda cls, *_, **__: asked.append(cls))

    pt2_loading.load(canonical)

    assert asked == []
