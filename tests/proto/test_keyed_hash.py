"""The server's formulas of randomness, written out once more; `tests/vectors` has those that clients share."""

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_proto import keyed_hash

DIGESTS = st.binary(min_size=32, max_size=32)
SEED = bytes(range(32))
CLIENT = bytes(range(100, 132))
PHOTO = bytes(range(200, 232))


def h(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"secret must have 32 bytes, found {length}"):
        keyed_hash.client_id(bytes(length))


def test_a_fleet_secret_is_an_hmac_over_seed_and_index() -> None:
    # 258 = 0x0102, little-endian 02 01 00 ...
    message = b"fedlens/fleet/v1" + b"\1\0\0\0\0\0\0\0" + b"\2\1\0\0\0\0\0\0"

    assert keyed_hash.fleet_secret(b"key", 1, 258) == hmac.new(b"key", message, hashlib.sha256).digest()


def test_an_assignment_seed_depends_on_task_seed_round_and_client() -> None:
    expected = h(b"fedlens/assignment/v1" + SEED + (3).to_bytes(8, "little") + CLIENT)

    assert keyed_hash.assignment_seed(SEED, 3, CLIENT) == expected


def test_the_ranks_of_an_epoch_are_those_of_its_photos_and_their_copies() -> None:
    entries = [(PHOTO, 0), (PHOTO, 258), (CLIENT, 0)]

    ranks = keyed_hash.photo_ranks(SEED, 1, 2, entries)

    # 258 = 0x0102, little-endian 02 01 00 00.
    beginning = b"fedlens/order/v1" + SEED + b"\1\0\0\0" + b"\2\0\0\0"
    assert ranks == [
        h(beginning + PHOTO + bytes(4)),
        h(beginning + PHOTO + b"\2\1\0\0"),
        h(beginning + CLIENT + bytes(4)),
    ]
    assert keyed_hash.photo_ranks(SEED, 1, 2, [(PHOTO, 258)]) == [ranks[1]]


def test_the_servers_generator_is_pcg64_of_a_hash() -> None:
    seed = int.from_bytes(h(b"fedlens/server/v1" + SEED + (9).to_bytes(8, "little")), "little")

    expected = np.random.Generator(np.random.PCG64(seed)).random(4)

    np.testing.assert_array_equal(keyed_hash.server_generator(SEED, 9).random(4), expected)


@given(DIGESTS, DIGESTS, st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_view_uniforms_lie_in_the_unit_interval_and_begin_alike(
    seed: bytes, photo: bytes, view: int, count: int
) -> None:
    found = keyed_hash.view_uniforms(seed, photo, view, count)

    assert found.shape == (count,) and found.dtype == np.float32
    assert ((found >= 0) & (found < 1)).all()
    assert found.tolist() == keyed_hash.view_uniforms(seed, photo, view, count + 9)[:count].tolist()


def test_the_cohort_is_made_of_the_smallest_ranks() -> None:
    clients = [bytes([i]) * 32 for i in range(20)]
    ranks = {c: h(b"fedlens/cohort/v1" + SEED + (4).to_bytes(8, "little") + c) for c in clients}
    five_smallest = sorted(clients, key=lambda c: ranks[c])[:5]

    assert keyed_hash.cohort(SEED, 4, clients, 5) == sorted(five_smallest)


@given(DIGESTS, st.integers(0, 2**64 - 1), st.sets(DIGESTS, max_size=12), st.integers(0, 15))
def test_a_cohort_is_sorted_has_its_size_and_ignores_the_order_of_clients(
    seed: bytes, round_number: int, clients: set[bytes], size: int
) -> None:
    found = keyed_hash.cohort(seed, round_number, sorted(clients), size)

    assert found == sorted(found)
    assert len(found) == min(size, len(clients))
    assert set(found) <= clients
    assert found == keyed_hash.cohort(seed, round_number, sorted(clients, reverse=True), size)


@given(DIGESTS, st.sets(DIGESTS, min_size=1, max_size=12), st.integers(0, 11))
def test_a_larger_cohort_holds_the_smaller_one(seed: bytes, clients: set[bytes], size: int) -> None:
    assert set(keyed_hash.cohort(seed, 1, clients, size)) <= set(keyed_hash.cohort(seed, 1, clients, size + 1))


def test_every_client_is_drawn_about_equally_often() -> None:
    # 400 rounds, 5 of 20 clients: each 100 times on average, standard deviation sqrt(400 * 1/4 * 3/4) = 8.7;
    # the draws are fixed by the seed, and five deviations leave room for any seed.
    clients = [bytes([i]) * 32 for i in range(20)]

    drawn = [member for number in range(400) for member in keyed_hash.cohort(SEED, number, clients, 5)]

    assert all(56 < drawn.count(client) < 144 for client in clients)


@given(DIGESTS, DIGESTS, st.integers(1, 64), st.integers(0, 64))
def test_the_chosen_views_are_different_ones(seed: bytes, photo: bytes, stored: int, count: int) -> None:
    found = keyed_hash.view_choice(seed, photo, stored, min(count, stored))

    assert len(set(found)) == min(count, stored)
    assert set(found) <= set(range(stored))
