"""Publishers' statements, as the test vectors have them for every language."""

import json
from typing import Any

import pytest

from fedlens_proto.errors import StatementRefused
from fedlens_proto.programs import statements
from fedlens_proto.programs.statements import Publisher
from tests.vectors.make import FOLDER

INDEX = json.loads((FOLDER / "statements" / "statements.json").read_text())
PUBLISHERS = {name: Publisher.of_pem(pem.encode()) for name, pem in INDEX["publishers"].items()}


def outcome(case: dict[str, Any]) -> str:
    signed = (FOLDER / "statements" / case["file"]).read_bytes()
    trusted = [PUBLISHERS[name] for name in case["publishers"]]
    try:
        found = statements.verified(signed, bytes.fromhex(case["manifest"]), trusted)
        statements.check(found, case["audience"], case["floor"])
        statements.check_time(found, case["now"])
    except StatementRefused as refusal:
        return refusal.code
    return "taken"


@pytest.mark.parametrize("case", INDEX["cases"], ids=lambda case: case["name"])
def test_a_statement_is_taken_or_refused_for_its_reason(case: dict[str, Any]) -> None:
    assert outcome(case) == case["outcome"]


def test_every_reason_occurs() -> None:
    found = {case["outcome"] for case in INDEX["cases"]}

    assert found == {"taken", "malformed", "publisher", "signature", "bundle", "audience", "serial", "expired"}


@pytest.mark.parametrize("pem", INDEX["not_publishers"], ids=range(len(INDEX["not_publishers"])))
def test_what_is_no_key_of_p256_is_no_publisher(pem: str) -> None:
    with pytest.raises(StatementRefused, match="key") as refused:
        Publisher.of_pem(pem.encode())

    assert refused.value.code == "key"


def test_any_changed_byte_is_refused() -> None:
    good = (FOLDER / "statements" / "good.bin").read_bytes()
    manifest = bytes.fromhex(INDEX["cases"][0]["manifest"])
    for place in range(len(good)):
        damaged = good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :]
        with pytest.raises(StatementRefused):
            statements.verified(damaged, manifest, PUBLISHERS.values())


def test_refusals_say_who_is_trusted_and_who_is_not() -> None:
    signed = (FOLDER / "statements" / "of-bob.bin").read_bytes()
    ids = {name: each.id.hex()[:12] for name, each in PUBLISHERS.items()}

    with pytest.raises(StatementRefused, match=f"published by {ids['bob']}, trusted is {ids['ann']}"):
        statements.verified(signed, bytes(32), [PUBLISHERS["ann"]])
    with pytest.raises(StatementRefused, match="trusted is nobody"):
        statements.verified(signed, bytes(32), [])
