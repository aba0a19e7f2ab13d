"""The engine that runs `.pte` programs with ExecuTorch on one core, as phones do."""

from pathlib import Path

from fedlens_edge_client.engines import BundleUnusable
from fedlens_edge_client.engines.installed import runtime_version
from fedlens_edge_client.engines.loaded import LoadedProgram, read_intact
from fedlens_edge_client.engines.pte import PteProgram, check_for_phones
from fedlens_edge_client.engines.running import ProgramEngine
from fedlens_edge_client.engines.trial import try_program
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.manifest import Bundle
from fedlens_proto.programs import pte_rules
from fedlens_proto.v1 import manifest_pb2 as pb


class ExecutorchEngine(ProgramEngine):
    """An engine that tries each program in a separate process before it loads it in this one.

    A `.pte` contains the frozen tensors.
    """

    program_format = pb.PROGRAM_FORMAT_PTE

    def __init__(self, bundle: Bundle, tried: Path | None = None) -> None:
        """As `ProgramEngine`; ExecuTorch runs on one thread too.

        Args:
            bundle: Whose programs run.
            tried: Folder that records which programs have passed their trial, so that later processes skip it. Anyone
                who can write to this folder can make this process load hostile programs.

        Raises:
            BundleUnusable: The bundle has no programs for phones.
            RuntimeMissing: ExecuTorch is not installed.
        """
        runtime_version()
        check_for_phones(bundle.manifest)
        super().__init__(bundle)
        self._tried = tried

    def _load(self, name: str) -> LoadedProgram:
        message, raw = read_intact(self._bundle, name, self.program_format)
        try:
            pte_rules.check(raw)
        except ProgramRefused as error:
            raise BundleUnusable(f"program {name!r} cannot be used: {error}") from error
        try_program(message, raw, self._tried)
        return PteProgram(message, raw)
