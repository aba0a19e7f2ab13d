"""The share of each class among the train photos, with noise that is drawn only once.

Each share gets Laplace noise of scale 1/epsilon; nothing is clipped or normalised (FedConcat, appendix D). Fresh noise
for each request would average out, and the server could subtract noise that it can compute. So the noise comes from the
operating system, or from a generator that only the client's owner can know, and the first answer is stored and repeated
for ever.
"""

import random
import struct
from collections.abc import Callable, Sequence
from hashlib import sha256

from fedlens_edge_client.storage.state_folder import StateFolder

_KEY = "label_distribution/"
PrivateGenerator = Callable[[bytes], random.Random]
"""Makes a generator for the noise of one answer from the digest of its class names."""


def private_generator(secret: bytes, names: bytes) -> random.Random:
    """A generator for an emulated client: the same noise in each run of a study, unknown to everybody else.

    Args:
        secret: Of the client.
        names: Digest of the class names, 32 bytes. Each list has its own noise, independent of earlier answers.
    """
    return random.Random(sha256(b"fedlens/private/v2" + names + secret).digest())


def noisy_shares(counts: Sequence[int], epsilon: float, generator: random.Random) -> tuple[float, ...]:
    """Each count's share of all with Laplace(0, 1/epsilon) noise; may be negative, need not add up to 1.

    Args:
        counts: Photos of each class, not all 0.
        epsilon: As `plan_check.is_usable` allows.
        generator: Source of the noise.
    """
    total = sum(counts)
    # The difference of two exponential variables of one rate is Laplace distributed.
    return tuple(n / total + generator.expovariate(epsilon) - generator.expovariate(epsilon) for n in counts)


class NoisyAnswers:
    """The noisy label distributions that one client has sent to its server: one per list of class names, for life."""

    def __init__(self, state: StateFolder, generator_of: PrivateGenerator | None = None) -> None:
        """Use the database of `state`; without `generator_of`, the operating system provides the noise."""
        self._state = state
        self._generator_of = generator_of or (lambda names: random.SystemRandom())

    def has(self, class_names: Sequence[str]) -> bool:
        """Tell whether there is an answer for these class names."""
        return self._state.get(_KEY + _digest(class_names).hex()) is not None

    def answer(self, class_names: Sequence[str], counts: Sequence[int], epsilon: float) -> tuple[float, ...]:
        """The first answer for these class names, whatever the photos and epsilon are now.

        If there is none, it is made from the arguments; it is on disk when this returns.
        """
        names = _digest(class_names)
        key, form = _KEY + names.hex(), struct.Struct(f"<{len(class_names)}d")
        stored = self._state.get(key)
        if stored is not None:
            return form.unpack(stored)
        shares = noisy_shares(counts, epsilon, self._generator_of(names))
        self._state.set(key, form.pack(*shares))
        return shares


def _digest(class_names: Sequence[str]) -> bytes:
    encoded = [name.encode() for name in class_names]
    return sha256(b"".join(len(name).to_bytes(4, "little") + name for name in encoded)).digest()
