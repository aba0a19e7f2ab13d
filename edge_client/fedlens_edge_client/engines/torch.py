"""The engine that runs `.pt2` programs with torch on one core."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedlens_edge_client.engines import NoSuchDevice
from fedlens_edge_client.engines.loaded import LoadedProgram, read
from fedlens_edge_client.engines.program import Program
from fedlens_edge_client.engines.running import ProgramEngine
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


class TorchEngine(ProgramEngine):
    """An engine that vets each program and runs it with torch's own operators."""

    program_format = pb.PROGRAM_FORMAT_PT2

    def __init__(self, bundle: Bundle, device: str = "cpu") -> None:
        """As `ProgramEngine`.

        Args:
            bundle: Whose programs run.
            device: By torch's name. Only on a CPU are results the same to the last bit in every run.

        Raises:
            NoSuchDevice: This machine has no such device.
        """
        super().__init__(bundle)
        self._device = device_of(device)

    def _load(self, name: str) -> LoadedProgram:
        return Program(*read(self._bundle, name, self.program_format), self._device)

    def _read_frozen(self, program: LoadedProgram) -> Mapping[str, Tensor]:
        frozen = super()._read_frozen(program)
        if self._device is None:
            return frozen
        return {name: value.to(self._device) for name, value in frozen.items()}


def device_of(name: str) -> torch.device | None:
    """The device of that name; None for the CPU, where tensors are by default.

    Raises:
        NoSuchDevice: This machine has no such device.
    """
    if name == "cpu":
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NoSuchDevice(f"device {name!r} is not known; cpu, cuda and cuda:N are") from error
    if device.type != "cuda" or not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise NoSuchDevice(f"there is no device {name!r} here that torch can use; take cpu")
    return device
