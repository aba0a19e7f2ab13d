"""Engines: the runtimes that execute a bundle's programs; this file has the interface and the errors of all of them.

A module here imports torch or ExecuTorch only if its engine needs it, and neither `client`, `training` nor `storage`.
Read `running.py` next.

EdgeClientError
└── EngineError
    ├── BundleUnusable  this engine cannot load or run the bundle
    │   └── ProgramCrashed  the process that ran its programs has ended
    ├── BadInput        weights, rows, batches or hyper-parameters that the bundle does not allow
    ├── RuntimeMissing  the library that the engine needs is not installed
    ├── NoSuchDevice    this machine has no such device
    └── NonFinite       a program gave a NaN or an infinity
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.errors import EdgeClientError
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


class EngineError(EdgeClientError):
    """A program of a bundle failed."""


class BundleUnusable(EngineError):
    """This engine cannot load or run the bundle; give up the assignment."""


class ProgramCrashed(BundleUnusable):
    """The process that ran the bundle's programs ended, or had to be ended; the text says how, and what follows."""


class BadInput(EngineError):
    """The bundle does not allow these weights, rows, batches or hyper-parameters; the text names the first fault."""


class RuntimeMissing(EngineError):
    """The library that the engine needs is not installed; install it, or choose another engine."""


class NoSuchDevice(EngineError):
    """Programs cannot run on this device; name another one."""


class NonFinite(EngineError):
    """A result holds a NaN or an infinity; nothing of this training may be uploaded."""


class Views(Protocol):
    """Augmented views of each row's photo, for a bundle whose `step` takes several per photo."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, V, ...], V the manifest's `views`."""
        ...

    def take(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the views of these rows, int64 [n] within 0 .. N - 1, to `out`, float32 [n, V, ...].

        Raises:
            EngineError: The views cannot be computed.
        """
        ...


@dataclass(frozen=True)
class Rows:
    """Inputs and labels for training or evaluation, one row per photo.

    Attributes:
        inputs: float32 [N, ...]: features of a frozen backbone, or photos [N, 3, H, W] in 0..1.
        labels: int64 [N], each in 0 .. classes - 1.
        views: Replace the inputs in training, if the bundle has views.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    views: Views | None = None


class Engine(Protocol):
    """A runtime for the programs of one bundle; it keeps no state between calls."""

    @property
    def bundle(self) -> Bundle:
        """The bundle that was given."""
        ...

    @property
    def program_format(self) -> pb.ProgramFormat:
        """The format of program files that it runs."""
        ...

    def embed(self, photo: NDArray[np.float32]) -> NDArray[np.float32]:
        """The frozen backbone's features of one photo.

        Args:
            photo: float32 [1, 3, H, W] in 0..1.

        Returns:
            float32 [F].

        Raises:
            BadInput: The shape is wrong, or the bundle has no frozen backbone.
            NonFinite: The features hold a NaN or an infinity.
        """
        ...

    def view(self, photos: NDArray[np.float32], uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
        """One augmented view of each photo, float32 [N, 3, H, W] in 0..1.

        Args:
            photos: float32 [N, 3, H, W] in 0..1, N >= 1.
            uniforms: float32 [N, r] in 0..1, 1 excluded.

        Raises:
            BadInput: A shape is wrong, or the bundle has no views.
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
        uniforms: Callable[[int, int, int], NDArray[np.float32]] | None = None,
    ) -> dict[str, Array]:
        """Run a program that trains; optimiser state and step counters start at zero.

        Args:
            program: Name of the program, such as `step`.
            weights: Every exchangeable tensor of the manifest; not modified.
            rows: The photos to train on.
            batches: For each step the indices into `rows`, int64 [n], 1 <= n <= the program's batch. The engine pads
                and masks shorter batches; with `LAST_BATCH_FILLED` in the manifest, each batch must be full.
            hyper: Hyper-parameters by name; others have the manifest's defaults.
            references: The tensors of each reference of the program. One that the program lists as optional may be
                missing: its tensors are then zeros, its presence 0. A reference of which the program takes the rows of
                a batch has a tensor with a row for each of `rows`.
            on_step: Called after every step with its loss, the mean over the real rows. An exception that it raises
                ends the training and reaches the caller; this is how to cancel.
            uniforms: From number of the step, number of the input (both from 0) and n to float32 [n] in 0..1, for a
                program that takes random numbers.

        Returns:
            New arrays for every exchangeable tensor.

        Raises:
            BadInput: An argument that the manifest does not allow.
            NonFinite: A loss or a resulting tensor holds a NaN or an infinity.
        """
        ...

    def derive(
        self,
        program: str,
        hyper: Mapping[str, float],
        references: Mapping[str, Mapping[str, Array]],
        rows: Rows | None = None,
    ) -> dict[str, Array]:
        """Run a program that derives a table or weights, over rows as they stand, or once without rows.

        Args:
            program: Name of the program.
            hyper: As in `train`.
            references: As in `train`.
            rows: At least one row, if the program runs over rows; their views are not used. The last batch is short.

        Returns:
            New arrays, by name of tensor: accumulators after the last batch, or results, [N, ...] if the program gives
            one for each row.

        Raises:
            BadInput: An argument that the manifest does not allow.
            NonFinite: A resulting tensor holds a NaN or an infinity.
        """
        ...

    def predict(
        self,
        weights: Mapping[str, Array],
        inputs: NDArray[np.float32],
        program: str = "predict",
        references: Mapping[str, Mapping[str, Array]] = MappingProxyType({}),
    ) -> NDArray[np.float32]:
        """The logits of these weights, float32 [N, classes].

        Args:
            weights: Every exchangeable tensor of the manifest.
            inputs: As `Rows.inputs`, N >= 1.
            program: Name of a program that predicts.
            references: As in `train`.

        Raises:
            BadInput: Weights, inputs or references do not match the manifest.
            NonFinite: The logits hold a NaN or an infinity.
        """
        ...

    def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs of program `extract` with an extractor's tensors, float32 [N, d].

        Args:
            extractor: Every tensor of kind `SLOT_KIND_EXTRACTOR` that the program takes.
            inputs: Photos or features of the frozen backbone, float32 [N, ...], N >= 1. Row i is computed at
                position i mod batch; its outputs depend on nothing but its content and its position.

        Raises:
            BadInput: Tensors or inputs do not match the manifest.
            NonFinite: The outputs hold a NaN or an infinity.
        """
        ...
