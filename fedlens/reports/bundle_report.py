"""The output of `fedlens bundle show`: a bundle as JSON values, and as rows of tables."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlens.reports.blob_report import shape_text
from fedlens.reports.program_report import operator_values
from fedlens.reports.statement_report import statement_lines, statement_values
from fedlens_proto import slots, wire
from fedlens_proto.errors import ManifestError, ProgramRefused
from fedlens_proto.manifest import MANIFEST_FILE, Bundle
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

PROGRAM_COLUMNS: Sequence[str] = ("program", "format", "bytes", "operators", "in XNNPACK", "memory", "sha256")
TENSOR_COLUMNS: Sequence[str] = ("tensor", "shape", "dtype", "kind", "role")
HYPER_COLUMNS: Sequence[str] = ("hyper-parameter", "default", "allowed")
_LISTED_OPERATORS = 4


def open_bundle(path: Path) -> Bundle:
    """Open the bundle in a folder, or of a `manifest.pb`, even if parts are missing or damaged.

    Raises:
        ManifestError: There is no bundle, or its manifest is damaged.
    """
    if path.is_file() and path.name != MANIFEST_FILE:
        raise ManifestError(f"{path} is no bundle; name a bundle's folder, or the {MANIFEST_FILE} in it")
    return Bundle.described(path.parent if path.name == MANIFEST_FILE else path)


def bundle_values(bundle: Bundle) -> dict[str, Any]:
    """A bundle as JSON values, with hexadecimal digests and None for unset fields; runs no program.

    A damaged part or unreadable program has an `error`, None for all others. `unused` lists parts of the manifest
    without a reference to them.
    """
    manifest = bundle.manifest
    sizes = {part.sha256: part.size for part in manifest.parts}
    damages = dict(bundle.damaged_parts())
    used = {manifest.initial, manifest.frozen, manifest.public.sha256}
    used.update(file.sha256 for program in manifest.programs for file in program.files)

    def part(digest: bytes) -> dict[str, Any] | None:
        return {"sha256": digest.hex(), "bytes": sizes[digest], "error": damages.get(digest)} if digest else None

    return {
        "id": bundle.id.hex(),
        "folder": str(bundle.folder),
        "model": manifest.model or None,
        "class": wire.word(pb.BundleClass, manifest.bundle_class),
        "batch": manifest.batch,
        "last_batch": wire.word(pb.LastBatch, manifest.last_batch),
        "views": manifest.views or None,
        "stored_views": manifest.stored_views or None,
        "concatenated": manifest.concatenated or None,
        "preprocessing": {
            "version": manifest.preprocessing.version,
            "height": manifest.preprocessing.height,
            "width": manifest.preprocessing.width,
        },
        "class_names": list(manifest.class_names),
        "display_names": {each.language: list(each.names) for each in manifest.display_names},
        "programs": [_program(bundle, program, sizes, damages) for program in manifest.programs],
        "tensors": [tensor_values(tensor) for tensor in manifest.tensors],
        "hyper_parameters": [
            {"name": h.name, "default": h.default_value, "minimum": h.minimum, "maximum": h.maximum}
            for h in manifest.hyper_parameters
        ],
        "initial": part(manifest.initial),
        "frozen": part(manifest.frozen),
        "public": part(manifest.public.sha256),
        "public_rows": manifest.public.rows or None,
        "unused": [part(digest) for digest in sizes if digest not in used],
        "manifest_bytes": len(bundle.raw),
        "part_bytes": sum(sizes.values()),
        "statement": statement_values(bundle.statement, bundle.id),
        "tools": {tool.name: tool.version for tool in manifest.tools},
    }


def tensor_values(tensor: pb.ExchangeableTensor) -> dict[str, Any]:
    """A tensor of a manifest as JSON values."""
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": _dtype(tensor.dtype),
        "kind": wire.word(pb.TensorKind, tensor.kind),
        "role": wire.word(pb.TensorRole, tensor.role),
    }


def format_name(number: pb.ProgramFormat) -> str:
    """The name of a program's format: `pte`."""
    return wire.word(pb.ProgramFormat, number)


def unreadable(values: Mapping[str, Any]) -> list[str]:
    """A line for each unreadable part."""
    parts = [(word, values[key]) for key, word in _PARTS.items()]
    parts += [("unused", part) for part in values["unused"]]
    programs = [
        f"program {program['name']!r} as .{file['format']}: {file['error']}"
        for program in values["programs"]
        for file in program["files"]
        if file["error"]
    ]
    parts.append(("statement", values["statement"]))
    return programs + [f"{word}: {part['error']}" for word, part in parts if part and part["error"]]


def summary(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Headings and texts of everything that is not in a table."""
    photo = values["preprocessing"]
    extent = [f"batches of {values['batch']}", f"the last one {values['last_batch']}"]
    extent += [f"{values[key]} {word}" for key, word in _COUNTS.items() if values[key]]
    trains = [f"{each['name']}: {each['objective']}, {each['optimiser']}" for each in _with(values, "objective")]
    derives = [f"{each['name']}: {each['makes']}" for each in _with(values, "makes")]
    references = [
        f"{program['name']}: {each['name']} ({len(each['tensors'])} tensors{', optional' if each['optional'] else ''})"
        for program in values["programs"]
        for each in program["references"]
    ]
    return [
        ("bundle id", values["id"]),
        ("folder", values["folder"]),
        ("model", f"{values['model'] or 'unnamed'}, {values['class'].replace('_', ' ')}"),
        ("trains by", f"{'; '.join(trains) or 'nothing'}; {', '.join(extent)}"),
        ("derives", "; ".join(derives) or "nothing"),
        ("photos", f"{photo['height']} x {photo['width']} pixels, preprocessing version {photo['version']}"),
        ("classes", f"{len(values['class_names'])}: {', '.join(values['class_names'])}"),
        *((f"shown in {language}", ", ".join(names)) for language, names in values["display_names"].items()),
        ("references", "; ".join(references) or "none"),
        *((word, _part(values[key])) for key, word in _PARTS.items()),
        ("all parts", f"{values['part_bytes']:,} bytes, and a manifest of {values['manifest_bytes']:,}"),
        *statement_lines(values["statement"]),
        ("made with", ", ".join(f"{name} {version}" for name, version in values["tools"].items()) or "unknown"),
    ]


def program_rows(values: Mapping[str, Any]) -> Iterable[list[str]]:
    """Rows under `PROGRAM_COLUMNS`, one for each file."""
    for program in values["programs"]:
        for file in program["files"]:
            fraction = file.get("delegated_share")
            yield [
                program["name"],
                file["format"],
                f"{file['bytes']:,}",
                "cannot be read" if file["error"] else _operators(file["operators"]),
                "-" if fraction is None else f"{fraction:.0%}: {_operators(file['xnnpack'])}",
                f"{file['memory']['total']:,}" if "memory" in file else "-",
                file["sha256"][:12],
            ]


def tensor_rows(values: Mapping[str, Any]) -> Iterable[list[str]]:
    """Rows under `TENSOR_COLUMNS`."""
    for tensor in values["tensors"]:
        yield [tensor["name"], shape_text(tensor["shape"]), *(tensor[key] for key in ("dtype", "kind", "role"))]


def hyper_rows(values: Mapping[str, Any]) -> Iterable[list[str]]:
    """Rows under `HYPER_COLUMNS`."""
    for hyper in values["hyper_parameters"]:
        yield [hyper["name"], f"{hyper['default']:g}", f"{hyper['minimum']:g} to {hyper['maximum']:g}"]


_PARTS = {"initial": "initial weights", "frozen": "frozen tensors", "public": "public rows"}
_COUNTS = {"views": "views", "stored_views": "stored views", "concatenated": "extractors side by side"}


def _program(
    bundle: Bundle, program: pb.Program, sizes: Mapping[bytes, int], damages: Mapping[bytes, str]
) -> dict[str, Any]:
    files = []
    for file in program.files:
        values: dict[str, Any] = {
            "format": format_name(file.format),
            "sha256": file.sha256.hex(),
            "bytes": sizes[file.sha256],
            "error": None,
        }
        try:
            if damage := damages.get(file.sha256):
                raise ProgramRefused(damage)
            values |= operator_values(bundle.part(file.sha256).read_bytes(), file.format)
        except ProgramRefused as error:
            values |= {"error": str(error), "operators": None}
        files.append(values)
    return {
        "name": program.name,
        "objective": program.objective or None,
        "optimiser": program.optimiser or None,
        "makes": program.makes or None,
        "references": [
            {"name": name, "tensors": [slots.tensor_of(slot) for slot in taken], "optional": name in program.optional}
            for name, taken in slots.references(program).items()
        ],
        "inputs": [_slot(slot) for slot in program.inputs],
        "outputs": [_slot(slot) for slot in program.outputs],
        "files": files,
    }


def _slot(slot: pb.Slot) -> dict[str, Any]:
    return {
        "kind": wire.word(pb.SlotKind, slot.kind),
        "name": slot.name or None,
        "dtype": _dtype(slot.dtype),
        "shape": list(slot.shape),
    }


def _operators(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "unknown"
    listed = [f"{name} {count}" for name, count in list(counts.items())[:_LISTED_OPERATORS]]
    more = len(counts) - len(listed)
    names = ", ".join([*listed, *([f"{more} more"] if more else [])])
    return f"{sum(counts.values())} ({names})" if counts else "0"


def _with(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The programs that have this."""
    return [program for program in values["programs"] if program[key]]


def _part(part: Mapping[str, Any] | None) -> str:
    return "none" if part is None else f"{part['bytes']:,} bytes, {part['sha256']}"


def _dtype(number: blob_pb2.Dtype) -> str:
    return wire.word(blob_pb2.Dtype, number)
