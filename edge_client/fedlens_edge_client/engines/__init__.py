"""Engines run the programs of a bundle; what they all promise.

EdgeClientError
└── EngineError
    ├── BundleUnusable  the bundle cannot be loaded or run by this engine
    ├── BadInput        weights, rows, batches or hyper-parameters that the bundle does not allow
    ├── RuntimeMissing  what the engine runs programs with is not installed
    ├── NoSuchDevice    there is no such device in this machine
    └── NonFinite       training or evaluation gave a NaN or an infinity
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.errors import EdgeClientError
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


class EngineError(EdgeClientError):
    """A bundle's program could not do what was asked."""


class BundleUnusable(EngineError):
    """The bundle cannot be loaded or run by this engine; give up the assignment."""


class BadInput(EngineError):
    """Weights, rows, batches or hyper-parameters are not what the bundle allows; the text names the first one."""


class RuntimeMissing(EngineError):
    """What the engine runs programs with is not installed; install it, or take another engine."""


class NoSuchDevice(EngineError):
    """Programs cannot run where they are to; name another device."""


class NonFinite(EngineError):
    """A NaN or an infinity came out; nothing of this training may be uploaded."""


class Views(Protocol):
    """Augmented views of each row's photo, for a bundle whose `step` takes several."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, V, ...], V the manifest's `views`."""
        ...

    def take(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the views of these rows, int64 [n] within 0 .. N - 1, to `out`, float32 [n, V, ...].

        Raises:
            EngineError: They could not be made.
        """
        ...


@dataclass(frozen=True)
class Rows:
    """What a client trains on or evaluates, one row a photo.

    Attributes:
        inputs: float32 [N, ...]: features of a frozen backbone, or photos [N, 3, H, W] in 0..1.
        labels: int64 [N], each in 0 .. classes - 1.
        views: What training takes instead of the inputs, where the bundle has views.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    views: Views | None = None


class Engine(Protocol):
    """Runs the programs of one bundle; keeps no state between calls."""

    @property
    def bundle(self) -> Bundle:
        """The bundle whose programs run."""
        ...

    @property
    def program_format(self) -> pb.ProgramFormat:
        """Which file of each program it runs."""
        ...

    def embed(self, photo: NDArray[np.float32]) -> NDArray[np.float32]:
        """The frozen backbone's features of one photo.

        Args:
            photo: float32 [1, 3, H, W] in 0..1.

        Returns:
            float32 [F].

        Raises:
            BadInput: Another shape, or the bundle has no frozen backbone.
            NonFinite: The features hold a NaN or an infinity.
        """
        ...

    def view(self, photos: NDArray[np.float32], uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
        """One augmented view of each photo, float32 [N, 3, H, W] in 0..1.

        Args:
            photos: float32 [N, 3, H, W] in 0..1, N >= 1.
            uniforms: float32 [N, r] in 0..1, 1 excluded.

        Raises:
            BadInput: Another shape, or the bundle has no views.
            NonFinite: A view holds a NaN or an infinity.
        """
        ...

    def train(
        self,
        program: str,
        weights: Mapping[str, Array],
        rows: Rows,
        batches: Iterable[NDArray[np.int64]],
        hyper: Mapping[str, float],
        references: Mapping[str, Mapping[str, Array]],
        on_step: Callable[[float], None] | None = None,
    ) -> dict[str, Array]:
        """Run one stage of a local plan; optimiser state and step counters start at zero.

        Args:
            program: Name of a step program, such as `step`.
            weights: Every exchangeable tensor of the manifest; not modified.
            rows: The photos to train on.
            batches: For each step the indices into `rows`, int64 [n], 1 <= n <= batch. Shorter ones are padded
                and masked here; where the manifest says `LAST_BATCH_FILLED`, each must have exactly `batch`.
            hyper: Hyper-parameters by name; those left out take the manifest's default.
            references: For each reference of the manifest its tensors.
            on_step: Called after every step with its loss, a mean over the real rows. What it raises ends the
                training and goes to the caller: so a training is cancelled.

        Returns:
            New arrays for every exchangeable tensor.

        Raises:
            BadInput: Anything that the manifest does not allow.
            NonFinite: A loss or a resulting tensor holds a NaN or an infinity.
        """
        ...

    def predict(self, weights: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits of these weights, float32 [N, classes].

        Args:
            weights: Every exchangeable tensor of the manifest.
            inputs: As `Rows.inputs`, N >= 1.

        Raises:
            BadInput: Weights or inputs are not what the manifest says.
            NonFinite: The logits hold a NaN or an infinity.
        """
        ...

    def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs of program `extract` with an extractor's tensors, float32 [N, d].

        Args:
            extractor: Every tensor of kind `SLOT_KIND_EXTRACTOR` that the program takes.
            inputs: Photos or features of the frozen backbone, float32 [N, ...], N >= 1. Row i is computed at place
                i mod batch, and its outputs depend on its content and its place alone.

        Raises:
            BadInput: Tensors or inputs are not what the manifest says.
            NonFinite: The outputs hold a NaN or an infinity.
        """
        ...
