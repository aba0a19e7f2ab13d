"""The schema's comments are part of the contract: what a field means when it is not set stands beside it."""

import re
from pathlib import Path

import pytest

from fedlens_proto.v1 import (
    admin_pb2,
    admission_pb2,
    assignment_pb2,
    check_in_pb2,
    enrolment_pb2,
    error_pb2,
    manifest_pb2,
    update_pb2,
)

SCHEMA = Path(__file__).parents[2] / "proto" / "fedlens_proto" / "v1"
FILES = sorted(SCHEMA.glob("*.proto"))
_FIELD = re.compile(r"^\s+(?:repeated )?[\w.]+ (\w+) = \d+;$")
_OBLIGATION = re.compile(r"\b(Unset|Always set)\b")


def fields_without_a_word_on_unset(text: str) -> list[str]:
    """Fields whose comment says nothing of it; those inside a `oneof` are spoken for by its comment."""
    silent: list[str] = []
    inside: list[str] = []
    comment = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("//"):
            comment += stripped
            continue
        if match := re.match(r"(oneof|message|enum) (\w+)", stripped):
            if match[1] == "oneof" and not _OBLIGATION.search(comment):
                silent.append(f"oneof {match[2]}")
            if not stripped.endswith("}"):
                inside.append(match[1])
        elif stripped == "}":
            inside.pop()
        elif (field := _FIELD.match(line)) and inside[-1] == "message" and not _OBLIGATION.search(comment):
            silent.append(field[1])
        comment = ""
    return silent


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_field_says_what_unset_means_and_generated_code_stands_beside_the_schema(file: Path) -> None:
    assert fields_without_a_word_on_unset(file.read_text(encoding="utf-8")) == []
    assert file.with_name(f"{file.stem}_pb2.py").is_file() and file.with_name(f"{file.stem}_pb2.pyi").is_file()


def test_a_field_without_a_word_on_unset_is_found() -> None:
    text = "message A {\n  // Unset: none.\n  bytes a = 1;\n  // Ascending.\n  repeated Thing b = 2;\n}\n"

    assert fields_without_a_word_on_unset(text) == ["b"]


def test_every_enum_begins_at_unspecified() -> None:
    modules = (
        admin_pb2,
        admission_pb2,
        assignment_pb2,
        check_in_pb2,
        enrolment_pb2,
        error_pb2,
        manifest_pb2,
        update_pb2,
    )
    enums = [enum for module in modules for enum in module.DESCRIPTOR.enum_types_by_name.values()]

    assert [enum.name for enum in enums if not enum.values_by_number[0].name.endswith("_UNSPECIFIED")] == []


def test_field_1_of_every_request_is_the_protocol() -> None:
    modules = (admin_pb2, admission_pb2, check_in_pb2, enrolment_pb2, update_pb2)
    messages = [message for module in modules for message in module.DESCRIPTOR.message_types_by_name.values()]
    requests = [message for message in messages if message.name.endswith("Request") or message.name == "UpdateHeader"]

    assert {message.name for message in requests} == {
        "BackupRequest",
        "BanRequest",
        "ChangeTaskRequest",
        "CheckInRequest",
        "CreateTaskRequest",
        "CreateTokenRequest",
        "EnrolRequest",
        "FailureRequest",
        "ForgetRequest",
        "RenewTaskRequest",
        "RoundRequest",
        "UpdateHeader",
    }
    assert {message.fields_by_number[1].name for message in requests} == {"protocol"}


def test_nothing_measured_by_a_clock_is_in_an_update() -> None:
    names = [field.name for field in update_pb2.UpdateHeader.DESCRIPTOR.fields]
    names += [field.name for field in update_pb2.EvaluationSums.DESCRIPTOR.fields]

    assert [name for name in names if re.search(r"time|_ms$|_s$|second|duration|_at$", name)] == []
