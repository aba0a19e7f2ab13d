"""The share of each class among the train photos, with noise that is made once and never again.

Each share gets Laplace noise of scale 1/epsilon; nothing is clipped or normalised (FedConcat, appendix D). Noise made
anew at each ask would average out, and noise that the server can compute could be subtracted. So it comes from the
operating system, or from a generator that only the client's owner can know, and the noisy answer is kept and given ever
after.
"""

import random
import struct
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import isfinite

from fedlens_edge_client.storage.state import State

_KEY = "label_distribution/"
PrivateGenerator = Callable[[bytes], random.Random]
"""A new generator for the noise of one answer, whose class names have this digest."""


def private_generator(secret: bytes, names: bytes) -> random.Random:
    """A generator for an emulated client: its noise is the same in each run of a study, and nobody else can know it.

    Args:
        secret: Of the client.
        names: Digest of the class names, 32 bytes. Each list has noise of its own, which does not depend on what was
            answered before.
    """
    return random.Random(sha256(b"fedlens/private/v2" + names + secret).digest())


def is_usable(epsilon: float) -> bool:
    """Whether noise of scale 1/epsilon can be made: a number above 0 whose noise is finite."""
    return isfinite(epsilon) and epsilon > 0 and isfinite(1000 / epsilon)


def noisy_shares(counts: Sequence[int], epsilon: float, generator: random.Random) -> tuple[float, ...]:
    """Each count's share of all with Laplace(0, 1/epsilon) noise; may be negative, need not add up to 1.

    Args:
        counts: Photos of each class, not all 0.
        epsilon: As `is_usable` allows.
        generator: Where the noise comes from.
    """
    total = sum(counts)
    # The difference of two exponential variables of one rate is Laplace distributed.
    return tuple(n / total + generator.expovariate(epsilon) - generator.expovariate(epsilon) for n in counts)


class KeptAnswers:
    """The noisy answers of one client to one server: one for each list of class names, for life."""

    def __init__(self, state: State, generator_of: PrivateGenerator | None = None) -> None:
        """Those in the database of `state`; without private generators noise comes from the operating system."""
        self._state = state
        self._generator_of = generator_of or (lambda names: random.SystemRandom())

    def has(self, class_names: Sequence[str]) -> bool:
        """Whether an answer was given for these class names."""
        return self._state.get(_KEY + _digest(class_names).hex()) is not None

    def answer(self, class_names: Sequence[str], counts: Sequence[int], epsilon: float) -> tuple[float, ...]:
        """The first answer ever given for these class names; made and stored if there is none.

        Whatever the photos and epsilon are now, an earlier answer is given again. It is on the disk when this returns.
        """
        names = _digest(class_names)
        key, form = _KEY + names.hex(), struct.Struct(f"<{len(class_names)}d")
        kept = self._state.get(key)
        if kept is not None:
            return form.unpack(kept)
        shares = noisy_shares(counts, epsilon, self._generator_of(names))
        self._state.set(key, form.pack(*shares))
        return shares


def _digest(class_names: Sequence[str]) -> bytes:
    encoded = [name.encode() for name in class_names]
    return sha256(b"".join(len(name).to_bytes(4, "little") + name for name in encoded)).digest()
