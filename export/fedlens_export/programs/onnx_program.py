"""Lowering of traced programs to ONNX, which the server runs without torch; weights are inputs there too.

torch puts stack traces with paths into every node; they are removed. onnx and onnxscript take seconds to import, so
they are imported only when a program is lowered.
"""

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fedlens_export.errors import NotExportable
from fedlens_export.programs import lowering

if TYPE_CHECKING:
    from onnx import GraphProto

PROGRAMS = ("embed", "predict")
"""Programs that the server may run; all others are for clients only."""


def missing() -> list[str]:
    """Names of the packages that `lower` needs and that are not installed."""
    return [name for name in ("onnx", "onnxscript") if find_spec(name) is None]


def lower(
    name: str,
    program: ExportedProgram,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The ONNX of a traced program, the same bytes each time.

    Args:
        name: For errors.
        program: From `lowering.trace`, or any other.
        inputs: Names of the inputs; empty: `input_0`, `input_1`, ... in slot order.
        outputs: Names of the outputs; empty: `output_0`, `output_1`, ...
        metadata: Written into the file.

    Raises:
        NotExportable: It uses an operator that ONNX cannot express.
    """
    inputs = inputs or [f"input_{i}" for i in range(len(program.graph_signature.user_inputs))]
    outputs = outputs or [f"output_{i}" for i in range(len(program.graph_signature.user_outputs))]
    try:
        with warnings.catch_warnings():
            # torch's own converter calls what torch deprecates.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            converted = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=inputs,
                output_names=outputs,
            )
    except Exception as error:  # whatever the converter raises for an operator it does not know
        raise NotExportable(f"program {name!r} cannot be expressed in ONNX: {_first_cause(error)}") from error
    assert converted is not None  # it was told of no file to write
    model = converted.model_proto
    model.producer_name = model.producer_version = model.doc_string = ""
    model.ClearField("metadata_props")
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    for tensor in (*model.graph.input, *model.graph.output):
        for size in tensor.type.tensor_type.shape.dim:
            if size.HasField("dim_param"):  # torch numbers the sizes that are not fixed; ours is the batch
                size.dim_param = "N"
    _strip(model.graph)
    raw: bytes = model.SerializeToString(deterministic=True)
    return raw


def load(raw: bytes) -> lowering.Function | None:
    """The function in an ONNX file, run by onnxruntime; None if that is not installed."""
    if find_spec("onnxruntime") is None:
        return None
    runtime: Any = import_module("onnxruntime")  # it ships no types
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    names = [slot.name for slot in session.get_inputs()]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})
        return tuple(torch.from_numpy(output) for output in found)

    return run


def _first_cause(error: BaseException) -> str:
    # Later errors in the chain are pages of advice.
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _strip(graph: "GraphProto") -> None:
    """Remove notes, and names that do not connect nodes."""
    graph.ClearField("value_info")
    described: tuple[Any, ...] = (graph, *graph.node, *graph.input, *graph.output, *graph.initializer)
    for part in described:
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for node in graph.node:
        node.ClearField("name")
