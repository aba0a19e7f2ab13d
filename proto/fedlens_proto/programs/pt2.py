"""Vetting `.pt2` programs before torch reads them, and giving each one canonical bytes.

`torch.export.load` on a foreign file is code execution: the archive may hold pickles, its JSON may hold expressions and
guards that torch evaluates, names that end up in generated source, and any existing operator, such as
`aten.from_file`. So no part of the file reaches torch. This module reads the parts that are known to be harmless,
writes a new archive from them, and refuses everything else. It limits a program's time and memory only roughly.

It needs no torch and refuses a program without loading it.
"""

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs.pt2_graph import Json, empty, fields_of, graph, integer, list_of, refuse

MAX_BYTES = 16 << 20

_FORMAT = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
_EMPTY_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_MODEL = "models/model.json"
_VERSION = ".data/version"
_NEEDED = frozenset({*_FORMAT, *_EMPTY_CONFIGS, _SAMPLE_INPUTS, _MODEL, _VERSION})
_DROPPED = frozenset({".data/serialization_id"})
_ROOT = "program"
_EARLIEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)

_TORCH_VERSION = re.compile(r"(\d{1,4}\.\d{1,4}\.\d{1,4})[A-Za-z0-9.+]{0,40}")


def canonical(raw: bytes) -> bytes:
    """The same program as a new archive: equal programs have equal bytes, and loading it runs no code from the file.

    Args:
        raw: A `.pt2` archive from torch or from this function.

    Raises:
        ProgramRefused: It holds more than plain operators on tensors; the text names what was found.
    """
    return read(raw)[0]


def read(raw: bytes) -> tuple[bytes, Json]:
    """The canonical bytes of a program and the graph in them; arguments and errors as in `canonical`."""
    members = _members(raw)
    for name, content in _FORMAT.items():
        if members[name] != content:
            refuse(f"{name} is {members[name][:20]!r}, not {content!r}")
    if not re.fullmatch(rb"\d{1,3}\n?", members[_VERSION]):
        refuse(f"{_VERSION} is {members[_VERSION][:20]!r}, no number")
    if members[_SAMPLE_INPUTS]:
        refuse("it holds sample inputs, which are a pickle")
    for name in _EMPTY_CONFIGS:
        if _parse(name, members[name]) != {"config": {}}:
            refuse(f"{name} names weights or constants; a program takes all of them as inputs")
    model = _program(_parse(_MODEL, members[_MODEL]))
    members[_MODEL] = json.dumps(model, separators=(",", ":"), allow_nan=False).encode()
    return _archive(members), model["graph_module"]["graph"]


def operators(raw: bytes) -> dict[str, int]:
    """Calls of each operator in a program, the most frequent first, by name such as `aten.mul.Tensor`.

    Raises:
        ProgramRefused: As in `canonical`.
    """
    targets = (node["target"].removeprefix("torch.ops.") for node in read(raw)[1]["nodes"])
    return by_frequency(Counter(targets))


def by_frequency(counts: Counter[str]) -> dict[str, int]:
    """Counts by name, the greatest first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _members(raw: bytes) -> dict[str, bytes]:
    if len(raw) > MAX_BYTES:
        refuse(f"it has {len(raw)} bytes; at most {MAX_BYTES} are allowed")
    found: dict[str, bytes] = {}
    roots: set[str] = set()
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for info in archive.infolist():
                root, _, name = info.filename.partition("/")
                roots.add(root)
                if name not in _NEEDED | _DROPPED:
                    refuse(f"it holds a member {info.filename[:80]!r}, which a program does not have")
                if name in found:
                    refuse(f"member {name!r} occurs twice")
                if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                    refuse(f"member {name!r} is compressed")
                found[name] = archive.read(info)
    except ProgramRefused:
        raise
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise ProgramRefused(f"program refused: it is no readable zip archive: {error}") from error
    if len(roots) != 1:
        refuse(f"its members stand under {len(roots)} roots, not under one")
    if missing := sorted(_NEEDED - found.keys()):
        refuse(f"member {missing[0]!r} is missing")
    return {name: found[name] for name in sorted(_NEEDED)}


def _archive(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{_ROOT}/{name}", _EARLIEST_ZIP_DATE), content)
    return stream.getvalue()


def _parse(where: str, raw: bytes) -> Json:
    def no_constant(text: str) -> NoReturn:
        refuse(f"{where} holds the number {text}")

    try:
        return json.loads(raw, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise ProgramRefused(f"program refused: {where} is no readable JSON: {error}") from error


def _program(model: Json) -> Json:
    fields = fields_of(
        "the program",
        model,
        ("graph_module", "opset_version", "range_constraints", "schema_version", "verifiers", "torch_version"),
        optional=("guards_code",),
    )
    empty("guards_code", fields.get("guards_code"))
    empty("range_constraints", fields["range_constraints"])
    opset = fields_of("opset_version", fields["opset_version"], ("aten",))
    schema = fields_of("schema_version", fields["schema_version"], ("major", "minor"))
    if fields["verifiers"] != ["TRAINING"]:
        refuse(f"verifiers are {str(fields['verifiers'])[:80]}, not TRAINING")
    version = fields["torch_version"]
    release = _TORCH_VERSION.fullmatch(version) if isinstance(version, str) else None
    if release is None:
        refuse(f"torch_version is {str(version)[:40]!r}")
    return {
        "graph_module": _graph_module(fields["graph_module"]),
        "opset_version": {"aten": integer("opset_version", opset["aten"])},
        "range_constraints": {},
        "schema_version": {key: integer("schema_version", schema[key]) for key in ("major", "minor")},
        "verifiers": ["TRAINING"],
        # Without the build's suffix (+cpu, +cu130), so that all builds of a release give the same bytes.
        "torch_version": release[1],
        "guards_code": [],
    }


def _graph_module(value: Json) -> Json:
    fields = fields_of(
        "graph_module",
        value,
        ("graph", "signature", "module_call_graph"),
        optional=("metadata", "treespec_namedtuple_fields"),
    )
    empty("treespec_namedtuple_fields", fields.get("treespec_namedtuple_fields"))
    rebuilt = graph(fields["graph"])
    inputs, outputs = rebuilt["inputs"], rebuilt["outputs"]
    signature = fields_of("signature", fields["signature"], ("input_specs", "output_specs"))
    for specs, kind, arguments in (("input_specs", "user_input", inputs), ("output_specs", "user_output", outputs)):
        if signature[specs] != [{kind: {"arg": argument}} for argument in arguments]:
            refuse(f"{specs} is not the graph's list of tensors, each a {kind}")
    names = [argument["as_tensor"]["name"] for argument in inputs]
    return {
        "graph": rebuilt,
        "signature": signature,
        "module_call_graph": [_call_signature(fields["module_call_graph"], names, len(outputs))],
        "metadata": {},
        "treespec_namedtuple_fields": {},
    }


def _call_signature(entries: Json, names: list[str], output_count: int) -> Json:
    root = list_of("module_call_graph", entries, lambda entry: entry)[:1]
    fields = fields_of("module_call_graph", root[0] if root else None, ("fqn", "signature"))
    signature = fields_of(
        "the call signature", fields["signature"], ("inputs", "outputs", "in_spec", "out_spec", "forward_arg_names")
    )
    arguments = _tree("builtins.tuple", [_tree(None, [])] * len(names))
    in_spec = [1, _tree("builtins.tuple", [arguments, _tree("builtins.dict", [], context="[]")])]
    out_spec = [1, _tree("builtins.tuple", [_tree(None, [])] * output_count)]
    for name, expected in (("in_spec", in_spec), ("out_spec", out_spec)):
        found = signature[name]
        if not isinstance(found, str) or _parse(name, found.encode(errors="replace")) != expected:
            refuse(f"its {name} is no flat tuple of tensors")
    expected_fields = {"fqn": fields["fqn"], "names": signature["forward_arg_names"]}
    if expected_fields != {"fqn": "", "names": names}:
        refuse("its call signature names other arguments than its graph")
    empty("the call signature's inputs", signature["inputs"])
    empty("the call signature's outputs", signature["outputs"])
    rebuilt = {"inputs": [], "outputs": [], "in_spec": json.dumps(in_spec), "out_spec": json.dumps(out_spec)}
    return {"fqn": "", "signature": {**rebuilt, "forward_arg_names": names}}


def _tree(kind: str | None, children: list[Json], context: str | None = None) -> Json:
    return {"type": kind, "context": context or (None if kind is None else "null"), "children_spec": children}
