"""The test vectors are what this version gives, and what a second implementation reads out of them."""

import json
import re
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import ParseDict
from numpy.typing import NDArray
from PIL import Image

from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.programs import pte_program
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto import wire
from fedlens_proto.blob import Blob, encode
from fedlens_proto.difference import Differences
from fedlens_proto.manifest import program
from fedlens_proto.v1 import blob_pb2, manifest_pb2, update_pb2
from tests.vectors import make, port, port_plans, programs
from tests.vectors.forms import Files, array_of

README = (make.FOLDER / "README.md").read_text(encoding="utf-8")


def read(name: str) -> Any:
    return json.loads((make.FOLDER / name).read_bytes())


def raw(name: str) -> bytes:
    return (make.FOLDER / name).read_bytes()


def differing(found: Files, expected: Files) -> list[str]:
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def is_computed(name: str) -> bool:
    """Tell whether an exporter or a program made a file: another machine may give other last bits."""
    return name == "programs.json" or name.startswith(("bundle/", "plan/"))


def assert_close(found: Any, expected: Any, where: str = "") -> None:
    """Equal, but for float32 arrays, which may differ by the vectors' tolerance, and for what follows from them."""
    if isinstance(expected, dict) and expected.get("dtype") == "float32":
        left, right = array_of(found), array_of(expected)
        scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0)))
        np.testing.assert_allclose(left, right, rtol=0, atol=programs.TOLERANCE * scale, err_msg=where)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected.keys() - {"loss"} if "evaluations" in where else expected.keys():
            assert_close(found[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, (left, right) in enumerate(zip(found, expected, strict=True)):
            assert_close(left, right, f"{where}/{index}")
    elif not where.endswith("/sha256"):
        assert found == expected, where


def test_the_committed_vectors_are_what_this_version_gives() -> None:
    committed = {name: content for name, content in make.written().items() if not is_computed(name)}

    assert differing(make.exact(), committed) == [], "run `make vectors` and look at what has changed"


def test_programs_and_the_plan_give_what_is_committed() -> None:
    bundle = make.committed_bundle()

    found = programs.files(bundle, TorchEngine(bundle))

    assert found.keys() == {name for name in make.written() if is_computed(name) and not name.startswith("bundle/")}
    for name in ("programs.json", "plan/plan.json"):
        assert_close(json.loads(found[name]), read(name), name)
    unchanged = [name for name in found if name.startswith("plan/album/")]
    assert {name: found[name] for name in unchanged} == {name: raw(name) for name in unchanged}


def test_the_plans_uploads_follow_from_their_tensors_to_the_byte() -> None:
    listing = read("plan/plan.json")
    base = Blob.from_bytes(raw("plan/global.blob"))
    tensors = {name: {key: array_of(form) for key, form in forms.items()} for name, forms in listing["uploads"].items()}

    blobs = {name: encode(each) for name, each in tensors.items()}
    difference = Differences(tensors["weights"], base)
    blobs["weights"] = encode(difference, floats=blob_pb2.DTYPE_FLOAT16, base=base.digest)

    header = ParseDict(listing["header"], update_pb2.UpdateHeader())
    assert {name: raw(f"plan/upload-{name}.blob") for name in blobs} == blobs
    assert [(each.name, each.sha256) for each in header.uploads] == [
        (name, sha256(blob).digest()) for name, blob in blobs.items()
    ]
    assert raw("plan/update.bin") == wire.frame_update(header) + b"".join(blobs.values())


@pytest.mark.slow
def test_the_committed_bundle_is_what_this_version_exports() -> None:
    committed = {name: content for name, content in make.written().items() if name.startswith("bundle/")}

    assert differing(programs.bundle_files(), committed) == [], "run `make vectors`"


@pytest.mark.slow
def test_programs_for_phones_give_what_is_committed() -> None:
    listing, bundle = read("programs.json"), make.committed_bundle()

    def run(name: str, given: Mapping[str, Mapping[str, NDArray[Any]]]) -> list[NDArray[Any]]:
        content = bundle.program_file(name, manifest_pb2.PROGRAM_FORMAT_PTE).read_bytes()
        slots = program(bundle.manifest, name)
        source = ProgramSource(name, tuple(slots.inputs), tuple(slots.outputs), lambda *tensors: tensors)
        inputs = [torch.from_numpy(np.array(given[programs.kind_of(slot)][slot.name])) for slot in slots.inputs]
        return [output.numpy() for output in pte_program.load(source, content)(*inputs)]

    def close(found: NDArray[Any], form: Mapping[str, Any]) -> None:
        expected = array_of(form)
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=listing["tolerance"] * scale)

    def named(forms: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        return {name: array_of(form) for name, form in forms.items()}

    frozen = dict(Blob.open(bundle.part(bundle.manifest.frozen)))
    for case in listing["embed"]:
        close(run("embed", {"frozen": frozen, "input": {"": array_of(case["photo"])}})[0], case["features"])
    step = listing["step"]
    carried = {kind: named(step[kind]) for kind in ("weight", "optimiser", "reference")}
    hyper = {name: np.array(value, np.float32) for name, value in step["hyper"].items()}
    for batch in step["batches"]:
        rows = {kind: {"": array_of(batch[kind])} for kind in ("input", "label", "mask")}
        found = run("step", {**carried, **rows, "hyper": hyper})
        for slot, output in zip(program(bundle.manifest, "step").outputs, found, strict=True):
            expected = batch["outputs"][programs.kind_of(slot)]
            close(output, expected[slot.name] if slot.name else expected)
            if slot.name:
                carried[programs.kind_of(slot)][slot.name] = output
    for case in listing["derive"]:
        given = {kind: named(forms) for kind, forms in case["inputs"].items()}
        for output, form in zip(run(case["name"], given), case["outputs"].values(), strict=True):
            by_row = len(output) != len(array_of(form)) if output.ndim else False
            close(output[: case["real_rows"]] if by_row else output, form)
    for case in listing["predict"]:
        rows = {kind: {"": array_of(case[kind])} for kind in ("input", "mask")}
        close(run("predict", {"weight": named(case["weight"]), **rows})[0], case["logits"])


@pytest.mark.slow
def test_the_plan_on_a_phones_engine_gives_what_is_committed() -> None:
    bundle = make.committed_bundle()

    found = programs.files(bundle, ExecutorchEngine(bundle))

    assert_close(json.loads(found["plan/plan.json"]), read("plan/plan.json"), "plan/plan.json")


def test_everything_together_is_small() -> None:
    assert sum(map(len, make.written().values())) < 1_100_000


def test_every_file_is_described() -> None:
    described = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    patterns = [re.compile(re.escape(name).replace(r"\*", "[^/]+")) for name in described]

    assert [name for name in make.written() if not any(p.fullmatch(name) for p in patterns)] == []
    assert [p.pattern for p in patterns if not any(p.fullmatch(name) for name in make.written())] == []


# What follows reads the vectors with the second implementation alone.


@pytest.mark.parametrize("case", read("blobs/blobs.json")["blobs"], ids=lambda case: case["name"])
def test_a_port_reads_and_writes_every_blob(case: dict[str, Any]) -> None:
    content = raw(f"blobs/{case['file']}")

    tensors, base = port.decode_blob(content)

    assert sha256(content).hexdigest() == case["sha256"]
    assert base.hex() == (sha256(raw("blobs/base.blob")).hexdigest() if "base_file" in case else "")
    assert {name: (shape, data.hex()) for name, (_, shape, data) in tensors.items()} == {
        name: (form["shape"], form["hex"]) for name, form in case["decoded"].items()
    }
    given = {name: (f["dtype"], f["shape"], bytes.fromhex(f["hex"])) for name, f in case["tensors"].items()}
    codec = {"float32": port.F32, "float16": port.F16, "int8": port.INT8}[case["codec"]]
    assert port.encode_blob(given, codec, base) == content


def test_a_port_adds_differences_to_their_base() -> None:
    cases = [case for case in read("blobs/blobs.json")["blobs"] if "base_file" in case]
    base, _ = port.decode_blob(raw("blobs/base.blob"))

    assert len(cases) == 3
    for case in cases:
        for name, form in case["sums"].items():
            form_of = f"<{len(base[name][2]) // 4}f" if form["dtype"] == "float32" else "<q"
            left = struct.unpack(form_of, base[name][2])
            right = struct.unpack(form_of, bytes.fromhex(case["decoded"][name]["hex"]))
            summed = [a + b for a, b in zip(left, right, strict=True)]
            wrapped = summed if form["dtype"] == "float32" else [(n + 2**63) % 2**64 - 2**63 for n in summed]
            assert struct.pack(form_of, *wrapped).hex() == form["hex"]


def test_a_port_draws_what_every_client_draws() -> None:
    draws = read("draws.json")
    orders = draws["orders"]
    entries = [(bytes.fromhex(entry["photo"]), entry["copy"]) for entry in orders["entries"]]

    for case in draws["client_ids"]:
        assert sha256(b"fedlens/client/v1" + bytes.fromhex(case["secret"])).hexdigest() == case["id"]
    for case in orders["epochs"]:
        assert port.order(bytes.fromhex(orders["seed"]), case["training"], case["epoch"], entries) == case["order"]
    for case in draws["view_uniforms"]:
        uniforms = array_of(case["uniforms"]).tolist()
        drawn = port.words(bytes.fromhex(case["seed"]), bytes.fromhex(case["photo"]), case["view"], len(uniforms))
        assert [(word >> 8) / 2**24 for word in drawn] == uniforms
    for case in draws["view_choices"]:
        chosen = port.choice(bytes.fromhex(case["seed"]), bytes.fromhex(case["photo"]), case["stored"], case["count"])
        assert chosen == case["chosen"]
    for case in draws["step_uniforms"]:
        numbers = array_of(case["uniforms"]).tolist()
        place = (case["training"], case["step"], case["slot"])
        assert port_plans.uniforms(bytes.fromhex(case["seed"]), *place, len(numbers)) == numbers
    for case in draws["validation_photos"]:
        photo = bytes.fromhex(case["photo"])
        assert [p for p in range(1, 51) if port_plans.is_validation(photo, p)] == case["percents"]
    for case in draws["test_photos"]:
        assert (int(case["photo"][:16], 16) % 5 == 0) == case["is_test"]


@pytest.mark.parametrize("case", read("plans.json")["plans"], ids=lambda case: case["name"])
def test_a_port_carries_out_every_plan(case: dict[str, Any]) -> None:
    plan = case["assignment"]["local_plan"]
    asked = {kind for statistic in plan.get("statistics", []) for kind in statistic}

    run = port_plans.Run(read("plans.json"), case)

    assert run.batches == case["batches"]
    assert run.losses == array_of(case["losses"]).tolist()
    trains = any(each.get("train", {}).get("rows") == "ROWS_TRAIN" for each in plan.get("instructions", []))
    assert case["num_examples"] == (sum(run.counts) if trains or "class_counts" in asked else 0)
    assert case["class_counts"] == run.counts
    found = [run.evaluation(each) for each in plan.get("evaluations", [])]
    for mine, theirs in zip(found, case["evaluations"], strict=True):
        assert mine.pop("loss") == pytest.approx(theirs["loss"], abs=1e-8)
        assert mine["confusion"][0] + mine["confusion"][3] == theirs["correct"]
        expected = {key: theirs[key] for key in ("label", "count")}
        assert mine == expected | {"confusion": theirs["confusion"] if "confusion" in asked else mine["confusion"]}
    keeps = {each["state"]: run.chosen(each) for each in plan.get("keeps", [])}
    assert keeps == {name: port_plans.tensors_of(forms) for name, forms in case["keeps"].items()}
    assert {each["name"]: run.blob(each).hex() for each in plan.get("uploads", [])} == case["uploads"]


def test_every_code_of_a_refused_plan_has_a_vector() -> None:
    page = (make.FOLDER.parents[1] / "docs" / "local-plan.md").read_text(encoding="utf-8")
    codes = {
        code for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for code in re.findall("`([a-z-]+)`", row)
    }
    instructions = {"assemble", "train", "derive"}

    assert {case["code"] for case in read("plans.json")["refused_plans"]} == codes - instructions


@pytest.mark.parametrize("case", read("links.json")["links"], ids=lambda case: case["name"])
def test_a_port_reads_every_link(case: dict[str, Any]) -> None:
    assert port.link(case["link"]) == {key: case[key] for key in case.keys() - {"name", "link"}}


@pytest.mark.parametrize("case", read("links.json")["refused"], ids=lambda case: case["name"])
def test_a_port_refuses_every_other_link_for_its_reason(case: dict[str, Any]) -> None:
    with pytest.raises(LookupError) as refusal:
        port.link(case["link"])

    assert refusal.value.args == (case["code"],)


def test_every_code_of_a_refused_link_has_a_vector() -> None:
    (section,) = re.findall(r"^## Links\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    codes = re.findall(r"^- `([a-z-]+)`:", section, re.MULTILINE)

    assert {case["code"] for case in read("links.json")["refused"]} == set(codes)


@pytest.mark.parametrize(
    "case", read("photos/photos.json")["photos"], ids=lambda case: case["expected"].removesuffix(".f32")
)
def test_a_port_scales_every_photo_to_the_bit(case: dict[str, Any]) -> None:
    with Image.open(make.FOLDER / "photos" / case["photo"]) as opened:
        orientation = opened.getexif().get(0x0112, 1)
        grey16 = opened.mode.startswith("I")
        pixels = np.asarray(opened).astype(np.int64) // 257 if grey16 else np.asarray(_rgb(opened))
    planes = [pixels] * 3 if pixels.ndim == 2 else [pixels[..., colour] for colour in range(3)]

    found = [port.prepared(plane.tolist(), orientation, case["height"], case["width"]) for plane in planes]

    expected = np.frombuffer(raw(f"photos/{case['expected']}"), "<f4").reshape(case["shape"])
    np.testing.assert_array_equal(np.array(found, np.float32) / np.float32(255), expected)


def _rgb(opened: Image.Image) -> Image.Image:
    return opened.convert("RGBA").convert("RGB") if opened.mode == "P" else opened.convert("RGB")


def test_every_message_in_json_is_its_bytes() -> None:
    listing = read("messages/messages.json")
    cases = [*listing["messages"], *listing["errors"]]

    assert len({case["type"] for case in cases}) >= 11
    for case in cases:
        kind = message_factory.GetMessageClass(Default().FindMessageTypeByName(case["type"]))
        read_back = kind.FromString(raw(f"messages/{case['file']}"))
        read_back.DiscardUnknownFields()
        assert ParseDict(case["json"], kind()) == read_back
