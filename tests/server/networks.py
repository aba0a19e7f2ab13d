"""A tiny network of every kind of tensor: convolution, BatchNorm with its buffers, FC classifier. Nobody runs it."""

import numpy as np

from fedlens_proto import blob
from tests.server.bundles import TinyBundle, sealed, tiny_bundle


def weights(value: float, fc: tuple[tuple[float, ...], ...] | None = None, width: int = 3) -> dict[str, blob.Array]:
    """Every float `value` and the counter so too, but for the classifier's weight `fc`, [2, 2]."""
    return {
        "bn.batches": np.array(int(value), np.int64),
        "bn.mean": np.full(2, value, np.float32),
        "bn.weight": np.full(2, value, np.float32),
        "conv.weight": np.full((2, width), value, np.float32),
        "fc.bias": np.full(2, value, np.float32),
        "fc.weight": np.full((2, 2), value, np.float32) if fc is None else np.float32(fc),
    }


def network(width: int = 3) -> TinyBundle:
    """Its bundle, all weights 0; a blob is a file for a width of 10,000."""
    bundle = tiny_bundle()
    return sealed(bundle.parsed, weights(0.0, width=width), bundle.parts[1])
