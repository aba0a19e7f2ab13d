"""The operators in a program's file, where they run and the memory they need, read without running or loading it."""

from collections import Counter
from typing import Any

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2, pte_plan
from fedlens_proto.v1 import manifest_pb2 as pb


def operator_values(raw: bytes, kind: pb.ProgramFormat) -> dict[str, Any]:
    """The content of a program's file, as JSON values.

    Every format has `operators`: calls of each operator, by the format's own names; None if the package that reads the
    format is not installed. For a `.pte` these are the operators that run as kernels of their own, and it also has:

        xnnpack          calls of each operator inside XNNPACK, by its names, after fusion
        delegate_calls   calls of XNNPACK; each runs a graph of such operators
        delegated_share  XNNPACK's share of all these calls, in 0..1
        memory           bytes: `planned` for outputs and intermediate results outside XNNPACK (inputs stay where the
                         caller has them); `file`, of which `segments` are constants and graphs; `total`, planned and
                         file. XNNPACK also packs constants and has buffers of its own; the file does not tell their
                         size.

    Raises:
        ProgramRefused: The file is damaged, or it has content that programs may not have.
    """
    try:
        match kind:
            case pb.PROGRAM_FORMAT_PT2:
                return {"operators": pt2.operators(raw)}
            case pb.PROGRAM_FORMAT_PTE:
                return _pte(raw)
            case pb.PROGRAM_FORMAT_ONNX:
                return {"operators": _onnx(raw)}
    except ModuleNotFoundError:
        pass
    return {"operators": None}


def _pte(raw: bytes) -> dict[str, Any]:
    plan = pte_plan.read(raw)
    return {
        "operators": dict(plan.portable),
        "xnnpack": dict(plan.delegated),
        "delegate_calls": plan.delegate_calls,
        "delegated_share": plan.delegated_share,
        "memory": {
            "planned": plan.planned_bytes,
            "segments": plan.segment_bytes,
            "file": len(raw),
            "total": plan.planned_bytes + len(raw),
        },
    }


def _onnx(raw: bytes) -> dict[str, int]:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        model = ModelProto.FromString(raw)
    except DecodeError as error:
        raise ProgramRefused(f"program refused: it is no readable ONNX: {error}") from error
    if not model.graph.node:
        raise ProgramRefused("program refused: it is no readable ONNX: it has no operators")
    return pt2.by_frequency(Counter(node.op_type for node in model.graph.node))
