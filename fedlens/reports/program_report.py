"""What a program's file says about itself, read without running or loading it: operators, where they run, memory."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2, pte_plan
from fedlens_proto.v1 import manifest_pb2 as pb


def operator_values(raw: bytes, kind: pb.ProgramFormat) -> dict[str, Any]:
    """What is in a program's file, as JSON values.

    Every format has `operators`, how often each is called by the format's own names. A `.pte` has beside those that run
    as kernels of their own:

        xnnpack          how often each operator is called inside of XNNPACK, by its names, after fusion
        delegate_calls   how often XNNPACK is called; each call runs a graph of such operators
        delegated_share  of all these operators the share that XNNPACK runs, within 0..1
        memory           bytes: `planned` for outputs and what is in between outside of XNNPACK (inputs stay where the
                         caller has them); `file`, of which `segments` are constants and graphs; `total`, planned and
                         file. XNNPACK packs constants anew and has buffers of its own, which no file tells.

    Raises:
        ProgramRefused: The file is damaged, or holds what no program may.
    """
    read = _READERS.get(kind)
    return {"operators": None} if read is None else read(raw)


def _pt2(raw: bytes) -> dict[str, Any]:
    return {"operators": pt2.operators(raw)}


def _pte(raw: bytes) -> dict[str, Any]:
    plan = pte_plan.read(raw)
    return {
        "operators": dict(plan.portable),
        "xnnpack": dict(plan.delegated),
        "delegate_calls": sum(plan.delegates.values()),
        "delegated_share": plan.delegated_share,
        "memory": {
            "planned": plan.planned_bytes,
            "segments": plan.segment_bytes,
            "file": plan.file_bytes,
            "total": plan.planned_bytes + plan.file_bytes,
        },
    }


def _onnx(raw: bytes) -> dict[str, Any]:
    from google.protobuf.message import DecodeError

    try:
        from onnx import ModelProto
    except ModuleNotFoundError:
        return {"operators": None}
    try:
        model = ModelProto.FromString(raw)
    except DecodeError as error:
        raise ProgramRefused(f"program refused: it is no readable ONNX: {error}") from error
    if not model.graph.node:
        raise ProgramRefused("program refused: it is no readable ONNX: it has no operators")
    counts = Counter(node.op_type for node in model.graph.node)
    return {"operators": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))}


_READERS: dict[pb.ProgramFormat, Callable[[bytes], dict[str, Any]]] = {
    pb.PROGRAM_FORMAT_PT2: _pt2,
    pb.PROGRAM_FORMAT_PTE: _pte,
    pb.PROGRAM_FORMAT_ONNX: _onnx,
}
