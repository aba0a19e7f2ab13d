"""A `.pte` program of a bundle, run by ExecuTorch's runtime."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fedlens_edge_client.engines import BundleUnusable, RuntimeMissing
from fedlens_edge_client.engines.installed import runtime_version
from fedlens_edge_client.engines.loaded import OwnProgram, check_slots
from fedlens_proto.programs import pte_runtime
from fedlens_proto.programs.pte import METHOD
from fedlens_proto.v1 import manifest_pb2 as pb

# ExecuTorch's numbers for the dtypes of inputs and outputs.
_SCALAR_TYPES = {4: torch.int64, 6: torch.float32}


class PteProgram(OwnProgram):
    """A `.pte` that has passed a trial: loading a foreign one can end the process."""

    def __init__(self, message: pb.Program, raw: bytes) -> None:
        """Load the file of the program that `message` describes.

        Raises:
            BundleUnusable: The runtime refuses it, or it contradicts the manifest.
            RuntimeMissing: ExecuTorch is not installed.
        """
        super().__init__(message, contains_frozen=True)
        self._raw = raw  # the runtime reads from these bytes as long as the program lives
        try:
            library = runtime()
            checks = library.Verification.InternalConsistency
            self._program = library._load_program_from_buffer(raw, program_verification=checks)
            self._method = self._program.load_method(METHOD)
            _check_slots(self.name, self.inputs, self.outputs, self._method.method_meta())
        except RuntimeError as error:
            raise BundleUnusable(f"program {self.name!r} cannot be used: ExecuTorch says: {error}") from error
        where = {(slot.kind, slot.name): i for i, slot in enumerate(self.inputs)}
        self._replaced = [where.get((slot.kind, slot.name)) for slot in self.outputs]
        self._turn = threading.Lock()

    def prepare(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """An empty tuple: the runtime computes everything anew in each run."""
        return ()

    def run(self, arguments: Sequence[Tensor], prepared: Sequence[Tensor]) -> Sequence[Tensor]:
        """As `OwnProgram.run`."""
        with self._turn:
            try:
                # The results are in the runtime's memory: the next run overwrites it, and inputs may share it.
                results = self._method.call(arguments, False)
            except RuntimeError as error:
                raise self._contradiction(error) from error
            self._check_results(results)
            return [
                result.clone() if target is None else arguments[target].copy_(result)
                for target, result in zip(self._replaced, results, strict=True)
            ]


def check_for_phones(manifest: pb.Manifest) -> None:
    """Check that ExecuTorch can run the bundle of this manifest.

    Raises:
        BundleUnusable: It has no programs for phones.
    """
    if manifest.bundle_class != pb.BUNDLE_CLASS_FROZEN_BACKBONE:
        raise BundleUnusable(
            "the bundle trains all layers of its model, which takes ExecuTorch a hundred times as long as torch: "
            "take engine torch, or a bundle with a frozen backbone"
        )
    for program in manifest.programs:
        if all(file.format != pb.PROGRAM_FORMAT_PTE for file in program.files):
            raise BundleUnusable(
                f"the bundle has program {program.name!r}, but not for phones (.pte): export it with --target pte, "
                "or take engine torch"
            )


@lru_cache(maxsize=1)
def runtime() -> Any:
    """ExecuTorch's compiled module, on one thread.

    Raises:
        RuntimeMissing: ExecuTorch is not installed, or not for this machine.
    """
    runtime_version()
    try:
        library = pte_runtime.library()
        # XNNPACK lacks some operators of quantised programs; the runtime of phones has them built in.
        import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise RuntimeMissing(f"engine executorch needs ExecuTorch, which cannot be loaded: {error}") from error
    return library


def _check_slots(name: str, inputs: Sequence[pb.Slot], outputs: Sequence[pb.Slot], meta: Any) -> None:
    taken = [meta.input_tensor_meta(i) for i in range(meta.num_inputs())]
    given = [meta.output_tensor_meta(i) for i in range(meta.num_outputs())]
    for what, slots, tensors in (("inputs", inputs, taken), ("outputs", outputs, given)):
        found = [(tuple(t.sizes()), _SCALAR_TYPES.get(t.dtype(), f"type {t.dtype()}")) for t in tensors]
        check_slots(name, what, slots, found)
