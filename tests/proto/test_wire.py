"""Messages over HTTP; `tests/vectors` has requests that are refused, each with its reason."""

import struct

import pytest

from fedlens_proto import wire
from fedlens_proto.errors import WireError
from fedlens_proto.v1 import admin_pb2, check_in_pb2, error_pb2, update_pb2

REQUEST = check_in_pb2.CheckInRequest(protocol=1, task=7, num_examples=3, hold_ms=1000)


def test_a_request_comes_back_as_it_was() -> None:
    assert wire.decode_request(check_in_pb2.CheckInRequest, REQUEST.SerializeToString()) == REQUEST


@pytest.mark.parametrize("body", [b"\xff", b"\x0b", b"<html>", b"\x08"])
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="no readable Error"):
        wire.decode(error_pb2.Error, body)


def test_fields_of_a_later_version_are_ignored() -> None:
    # Field 1000, a varint: tag 1000 * 8 = 8000 = 0xc0 0x3e.
    found = wire.decode_request(check_in_pb2.CheckInRequest, REQUEST.SerializeToString() + b"\xc0\x3e\x01")

    assert (found.task, found.num_examples, found.hold_ms) == (7, 3, 1000)


def test_a_value_of_an_enum_is_one_word_without_the_enums_name() -> None:
    assert wire.word(update_pb2.FailureReason, update_pb2.FAILURE_REASON_BUNDLE) == "bundle"
    assert wire.word(admin_pb2.MemberState, 0) == "unspecified"


def test_an_update_header_stands_behind_its_length() -> None:
    header = update_pb2.UpdateHeader(protocol=1, bundle=bytes(32), num_examples=5)

    framed = wire.frame_update(header)

    assert struct.unpack_from("<I", framed) == (len(framed) - 4,)
    assert update_pb2.UpdateHeader.FromString(framed[4:]) == header
