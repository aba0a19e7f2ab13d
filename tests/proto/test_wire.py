"""Messages over HTTP: what is read, and what is refused."""

import struct

import pytest

from fedlens_proto import wire
from fedlens_proto.errors import WireError
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, error_pb2, update_pb2

REQUEST = check_in_pb2.CheckInRequest(protocol=1, task=7, num_examples=3, hold_ms=1000)


def test_a_request_comes_back_as_it_was() -> None:
    assert wire.decode_request(check_in_pb2.CheckInRequest, REQUEST.SerializeToString()) == REQUEST


@pytest.mark.parametrize(("protocol", "found"), [(0, "unset"), (2, "2"), (4294967295, "4294967295")])
def test_another_protocol_version_is_refused(protocol: int, found: str) -> None:
    body = check_in_pb2.CheckInRequest(protocol=protocol).SerializeToString()

    with pytest.raises(WireError, match=rf"CheckInRequest\.protocol is {found}; this version speaks 1"):
        wire.decode_request(check_in_pb2.CheckInRequest, body)


def test_an_empty_body_has_no_protocol_version() -> None:
    with pytest.raises(WireError, match="protocol is unset"):
        wire.decode_request(enrolment_pb2.ForgetRequest, b"")


def test_a_truncated_message_is_refused_by_name() -> None:
    body = enrolment_pb2.EnrolRequest(protocol=1, enrolment_token="a token").SerializeToString()

    with pytest.raises(WireError, match="no readable EnrolRequest"):
        wire.decode_request(enrolment_pb2.EnrolRequest, body[:-1])


@pytest.mark.parametrize("body", [b"\xff", b"\x0b", b"<html>", b"\x08"])
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="no readable Error"):
        wire.decode(error_pb2.Error, body)


def test_fields_of_a_later_version_are_ignored() -> None:
    # Field 1000, a varint: tag 1000 * 8 = 8000 = 0xc0 0x3e.
    found = wire.decode_request(check_in_pb2.CheckInRequest, REQUEST.SerializeToString() + b"\xc0\x3e\x01")

    assert (found.task, found.num_examples, found.hold_ms) == (7, 3, 1000)


def test_an_update_header_stands_behind_its_length() -> None:
    header = update_pb2.UpdateHeader(protocol=1, bundle=bytes(32), num_examples=5)

    framed = wire.frame_update(header)

    assert struct.unpack_from("<I", framed) == (len(framed) - 4,)
    assert update_pb2.UpdateHeader.FromString(framed[4:]) == header


def test_the_same_update_header_gives_the_same_bytes() -> None:
    first = update_pb2.UpdateHeader(protocol=1, num_examples=5, class_counts=[2, 3])
    second = update_pb2.UpdateHeader(class_counts=[2, 3], num_examples=5, protocol=1)

    assert wire.frame_update(first) == wire.frame_update(second)
