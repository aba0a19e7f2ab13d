"""Identity and client randomness: hashes that must be equal in every language.

`H` is SHA-256 and `||` concatenation; integers are little-endian; ids, seeds and digests are 32 raw bytes.
Each use has its own domain string, so that a hash made for one purpose cannot serve another.

    client id         H("fedlens/client/v1" || secret)
    assignment seed   s = H("fedlens/assignment/v1" || task seed || u64 round || id)
    cohort            the m smallest ids by H("fedlens/cohort/v1" || task seed || u64 round || id)
    server generator  PCG64 seeded from H("fedlens/server/v1" || task seed || u64 round)
    photo order       ascending H("fedlens/order/v1" || s || u32 t || u32 epoch || photo digest || u32 copy)
    step uniforms     words of H("fedlens/step/v1" || s || u32 t || u32 step || u32 slot || u32 block)
    validation photo  first 8 bytes, big-endian, of H("fedlens/validation/v1" || photo digest)
    view uniforms     words of H("fedlens/view/v1" || s || photo digest || u32 view || u32 block)
    choice of views   as in `view_choice`, by the words of view 0 as integers
    fleet secret      HMAC-SHA256(fleet key, "fedlens/fleet/v1" || u64 seed || u64 index)
"""

import hmac
import struct
from collections.abc import Iterable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 32
_WORDS_PER_BLOCK = 8
_pack_copy = struct.Struct("<I").pack


def client_id(secret: bytes) -> bytes:
    """The public id, 32 bytes, of the client with this secret of 32 bytes."""
    if len(secret) != DIGEST_BYTES:
        raise ValueError(f"secret must have {DIGEST_BYTES} bytes, found {len(secret)}")
    return sha256(b"fedlens/client/v1" + secret).digest()


def fleet_secret(fleet_key: bytes, seed: int, index: int) -> bytes:
    """The secret, 32 bytes, of emulated client `index` in the fleet with this key and seed."""
    message = b"fedlens/fleet/v1" + struct.pack("<QQ", seed, index)
    return hmac.digest(fleet_key, message, "sha256")


def assignment_seed(task_seed: bytes, round_number: int, client: bytes) -> bytes:
    """The seed, 32 bytes, of all randomness in a client's local plan."""
    return _round_hash(b"fedlens/assignment/v1", task_seed, round_number, client)


def cohort(task_seed: bytes, round_number: int, eligible: Iterable[bytes], size: int) -> list[bytes]:
    """The members of a round: the `size` smallest ids by keyed hash, or all if there are fewer, ascending by id."""

    def rank(client: bytes) -> bytes:
        return _round_hash(b"fedlens/cohort/v1", task_seed, round_number, client)

    return sorted(sorted(eligible, key=rank)[:size])


def server_generator(task_seed: bytes, round_number: int) -> np.random.Generator:
    """The random generator of a method in one round."""
    digest = sha256(b"fedlens/server/v1" + task_seed + struct.pack("<Q", round_number)).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def photo_ranks(seed: bytes, training: int, epoch: int, entries: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """The keys by which the (photo, copy) entries of one epoch are sorted, ascending.

    All at once, because hashing can take most of a short epoch. `training` is the number, from 0, of the instruction
    `train` in the local plan.
    """
    header = b"fedlens/order/v1" + seed + struct.pack("<II", training, epoch)
    return [sha256(header + photo + _pack_copy(copy)).digest() for photo, copy in entries]


def view_uniforms(seed: bytes, photo: bytes, view: int, count: int) -> NDArray[np.float32]:
    """Random numbers for one augmented view of one photo, float32[count] in [0, 1), multiples of 2^-24."""
    return _uniforms(_view_words(seed, photo, view, count))


def step_uniforms(seed: bytes, training: int, step: int, slot: int, count: int) -> NDArray[np.float32]:
    """Random numbers for one step of training, float32[count] in [0, 1), multiples of 2^-24.

    Args:
        seed: Of the assignment.
        training: As in `photo_ranks`.
        step: Number of the step, from 0.
        slot: Number of the input among those of kind `SLOT_KIND_UNIFORM`, from 0.
        count: How many.
    """
    header = b"fedlens/step/v1" + seed + struct.pack("<III", training, step, slot)
    return _uniforms(_words(header, count))


def view_choice(seed: bytes, photo: bytes, stored: int, count: int) -> list[int]:
    """Choose `count` different of a photo's `stored` views, each in 0 .. stored - 1.

    These are the first `count` entries of a Fisher-Yates shuffle of 0, 1, ...: step i exchanges entry i with entry
    i + (word i modulo (stored - i)).
    """
    order = list(range(stored))
    for i, word in enumerate(_view_words(seed, photo, 0, count)):
        other = i + int(word) % (stored - i)
        order[i], order[other] = order[other], order[i]
    return order[:count]


def is_test_photo(photo: bytes) -> bool:
    """True if a photo of a real album is for evaluation: one in five, by its digest."""
    return int.from_bytes(photo[:8], "big") % 5 == 0


def is_validation_photo(photo: bytes, percent: int) -> bool:
    """True if a photo outside the test set is for validation, the same in every round, for about `percent` of 100."""
    return int.from_bytes(sha256(b"fedlens/validation/v1" + photo).digest()[:8], "big") % 100 < percent


def _uniforms(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    return (words >> 8).astype(np.float32) / np.float32(2**24)


def _view_words(seed: bytes, photo: bytes, view: int, count: int) -> NDArray[np.uint32]:
    return _words(b"fedlens/view/v1" + seed + photo + struct.pack("<I", view), count)


def _words(header: bytes, count: int) -> NDArray[np.uint32]:
    blocks = range(-(-count // _WORDS_PER_BLOCK))
    stream = b"".join(sha256(header + struct.pack("<I", block)).digest() for block in blocks)
    return np.frombuffer(stream, "<u4", count)


def _round_hash(domain: bytes, task_seed: bytes, round_number: int, client: bytes) -> bytes:
    return sha256(domain + task_seed + struct.pack("<Q", round_number) + client).digest()
