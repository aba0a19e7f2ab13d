"""A bundle is read when it holds together, and refused by name when it does not."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_proto import manifest as bundles
from fedlens_proto.blob import TensorSpec, encode
from fedlens_proto.errors import ManifestError
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2 as assignment
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.manifests import classifier, program, slot

INITIAL = encode({"fc.bias": np.zeros(2, np.float32), "fc.weight": np.zeros((2, 3), np.float32)})
STEP, PREDICT, EMBED, FROZEN = b"step program", b"predict program", b"embed program", b"frozen tensors"


def digest(raw: bytes) -> bytes:
    return sha256(raw).digest()


def valid() -> pb.Manifest:
    """A linear layer from three features to two classes behind a backbone; the programs hold no code."""
    weights = [slot(pb.SLOT_KIND_WEIGHT, "fc.bias", (2,)), slot(pb.SLOT_KIND_WEIGHT, "fc.weight", (2, 3))]
    rows = slot(pb.SLOT_KIND_INPUT, shape=(4, 3))
    contents = (INITIAL, STEP, PREDICT, EMBED, FROZEN)
    return pb.Manifest(
        format=1,
        bundle_class=pb.BUNDLE_CLASS_FROZEN_BACKBONE,
        model="linear",
        preprocessing=pb.Preprocessing(version=1, height=32, width=32),
        class_names=["cat", "dog"],
        batch=4,
        tensors=classifier({"fc.bias": (2,), "fc.weight": (2, 3)}),
        hyper_parameters=[pb.HyperParameter(name="lr", default_value=0.1, minimum=0, maximum=1)],
        last_batch=pb.LAST_BATCH_MASKED,
        programs=[
            program("step", STEP, *weights, slot(pb.SLOT_KIND_HYPER, "lr"), rows),
            program("predict", PREDICT, *weights, rows),
            program("embed", EMBED, slot(pb.SLOT_KIND_FROZEN, "conv.weight", (1,))),
        ],
        initial=digest(INITIAL),
        frozen=digest(FROZEN),
        parts=sorted((pb.Part(sha256=digest(c), size=len(c)) for c in contents), key=lambda part: part.sha256),
    )


def stored(folder: Path) -> Path:
    (folder / "parts").mkdir()
    for content in (INITIAL, STEP, PREDICT, EMBED, FROZEN):
        (folder / "parts" / digest(content).hex()).write_bytes(content)
    (folder / "manifest.pb").write_bytes(valid().SerializeToString(deterministic=True))
    return folder


def test_a_bundle_is_opened_and_named_by_its_manifest(tmp_path: Path) -> None:
    bundle = Bundle.open(stored(tmp_path))

    assert bundle.id == digest(valid().SerializeToString(deterministic=True))
    assert bundle.program_file("step", pb.PROGRAM_FORMAT_PT2).read_bytes() == STEP
    assert bundle.initial()["fc.weight"].shape == (2, 3)


@pytest.mark.parametrize(
    ("damage", "fault"), [(Path.unlink, "missing"), (lambda part: part.write_bytes(b"Step program"), "damaged")]
)
def test_a_part_at_fault_is_named(damage: Callable[[Path], object], fault: str, tmp_path: Path) -> None:
    damage(stored(tmp_path) / "parts" / digest(STEP).hex())

    with pytest.raises(ManifestError, match=f"part {digest(STEP).hex()} is {fault}"):
        Bundle.open(tmp_path)


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no bundle: it has no manifest\.pb"):
        Bundle.open(tmp_path)


def test_an_oversized_manifest_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.pb").write_bytes(bytes(bundles.MAX_MANIFEST_BYTES + 1))

    with pytest.raises(ManifestError, match="more than 1048576 bytes"):
        Bundle.open(tmp_path)


def test_a_program_in_a_format_that_is_not_there_is_named(tmp_path: Path) -> None:
    bundle = Bundle.open(stored(tmp_path))

    with pytest.raises(ManifestError, match="'step', but not as PROGRAM_FORMAT_PTE"):
        bundle.program_file("step", pb.PROGRAM_FORMAT_PTE)
    with pytest.raises(ManifestError, match="no program 'view'; it has step, predict, embed"):
        bundle.program_file("view", pb.PROGRAM_FORMAT_PT2)


def test_a_whole_model_bundle_needs_no_embed() -> None:
    manifest = valid()
    manifest.bundle_class = pb.BUNDLE_CLASS_WHOLE_MODEL
    del manifest.programs[2]

    assert bundles.parse(manifest.SerializeToString()) == manifest


@pytest.mark.parametrize("length", [1, 10, 200])
def test_a_manifest_cut_off_is_refused(length: int) -> None:
    with pytest.raises(ManifestError):
        bundles.parse(valid().SerializeToString()[:-length])


Change = Callable[[pb.Manifest], object]


def change(field: str, value: object) -> Change:
    """Set a field; `field` is a path such as `tensors.0.dtype`."""

    def apply(manifest: pb.Manifest) -> None:
        *way, last = field.split(".")
        place: object = manifest
        for name in way:
            place = place[int(name)] if name.isdigit() else getattr(place, name)  # type: ignore[index]
        setattr(place, last, value)

    return apply


def reshape(program: int, slots: str, index: int, *shape: int) -> Change:
    def apply(manifest: pb.Manifest) -> None:
        getattr(manifest.programs[program], slots)[index].shape[:] = shape

    return apply


def shown(language: str, *names: str) -> Change:
    return lambda manifest: manifest.display_names.add(language=language, names=names)


def refused(manifest: pb.Manifest, damage: Change, reason: str) -> None:
    damage(manifest)

    with pytest.raises(ManifestError, match=reason):
        bundles.parse(manifest.SerializeToString())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change("format", 0), "manifest format unset; this version reads 1"),
        (change("format", 2), "manifest format 2"),
        (change("bundle_class", 0), "bundle_class is unset"),
        (change("preprocessing.version", 0), r"preprocessing\.version is unset"),
        (change("preprocessing.height", 0), "side of 0 pixels"),
        (change("preprocessing.width", 4097), "side of 4097 pixels"),
        (lambda m: m.class_names.pop(), "class names"),
        (lambda m: m.class_names.append("cat"), "class names"),
        (shown("de_AT", "Katze", "Hund"), "'de_AT': not a language tag such as 'de' or 'pt-BR'"),
        (shown("de", "Katze"), "display names in 'de': 1 names of 2 classes"),
        (shown("de", "Tier", "Tier"), "two classes have the same name"),
        (shown("de", "Katze", ""), "a name is empty"),
        (shown("de", "Katze", "ß" * 101), "a name of 202 bytes; allowed are 200"),
        (shown("de", "Katze", "Hund\n"), "a control character"),
        (shown("de", "Katze", "Hund\u202e"), "one that turns text: 'Hund"),
        (change("batch", 0), "batch 0"),
        (change("batch", 65537), "batch 65537"),
        (change("last_batch", 0), "last_batch is unset"),
        (lambda m: m.ClearField("tensors"), "sorted by name"),
        (lambda m: m.tensors.reverse(), "sorted by name"),
        (lambda m: m.tensors.append(m.tensors[1]), "each once"),
        (change("tensors.0.dtype", 0), "'fc.bias' is neither"),
        (change("tensors.0.dtype", blob_pb2.DTYPE_FLOAT16), "'fc.bias' is neither"),
        (change("tensors.1.kind", 0), "'fc.weight' has no kind"),
        (change("tensors.1.role", 0), "'fc.weight' has no role"),
        (lambda m: m.tensors[0].shape.append(0), "'fc.bias' has shape"),
        (lambda m: m.tensors[0].shape.append(1 << 40), "'fc.bias' has shape"),
        (lambda m: m.tensors[0].shape.extend([1] * 40), "41 dimensions"),
        (change("tensors.1.name", "x" * 300), "no blob can hold"),
        (change("hyper_parameters.0.name", ""), "hyper-parameters need a name"),
        (lambda m: m.hyper_parameters.append(m.hyper_parameters[0]), "each once"),
        (change("hyper_parameters.0.default_value", 2.0), "default 2.0 is not within 0.0 to 1.0"),
        (change("hyper_parameters.0.default_value", float("nan")), "default nan"),
        (change("hyper_parameters.0.maximum", float("inf")), "within 0.0 to inf"),
        (lambda m: m.parts.append(m.parts[0]), "a part occurs twice"),
        (change("parts.0.size", 0), "a part has no size"),
        (change("parts.0.sha256", b"short"), "does not have 32 bytes"),
        (change("initial", b""), "initial is not among the parts"),
        (change("initial", bytes(32)), "initial is not among the parts"),
        (change("frozen", bytes(32)), "frozen is not among the parts"),
        (change("frozen", b""), "no frozen tensors"),
        (lambda m: m.programs.append(m.programs[0]), "a program occurs twice"),
        (change("programs.0.name", "walk"), "are needed, found"),
        (lambda m: m.programs.pop(), "'embed'"),
        (lambda m: m.programs[0].ClearField("files"), "'step' has no file"),
        (lambda m: m.programs[0].ClearField("inputs"), "'step' has no inputs"),
        (lambda m: m.programs[1].ClearField("outputs"), "'predict' has no inputs or no outputs"),
        (change("programs.0.files.0.sha256", bytes(32)), "a file of program 'step' is not among the parts"),
        (change("programs.0.files.0.format", 0), "a file of program 'step' has no format"),
        (change("programs.0.inputs.0.kind", 0), "slot 'fc.bias': no kind"),
        (change("programs.0.inputs.0.dtype", 0), "slot 'fc.bias': dtype 0"),
        (change("programs.0.inputs.0.name", "fc.gain"), "slot 'fc.gain': no exchangeable tensor"),
        (lambda m: m.programs[0].inputs[0].shape.append(1), "slot 'fc.bias': no exchangeable tensor"),
        (change("programs.0.inputs.0.dtype", blob_pb2.DTYPE_INT64), "slot 'fc.bias': no exchangeable tensor"),
        (change("programs.0.inputs.2.name", "momentum"), "slot 'momentum': no hyper-parameter"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(damage: Change, reason: str) -> None:
    refused(valid(), damage, reason)


BIAS = pb.ExchangeableTensor(name="a.bias", kind=pb.TENSOR_KIND_CONV, role=pb.TENSOR_ROLE_EXTRACTOR)
MEAN = pb.ExchangeableTensor(name="b.mean", kind=pb.TENSOR_KIND_BUFFER, role=pb.TENSOR_ROLE_EXTRACTOR)
HEAD = pb.ExchangeableTensor(name="c.weight", kind=pb.TENSOR_KIND_LINEAR, role=pb.TENSOR_ROLE_CLASSIFIER)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (assignment.TensorSelector(), ["a.bias", "b.mean", "c.weight"]),
        (assignment.TensorSelector(names=["c.weight", "a.bias"]), ["a.bias", "c.weight"]),
        (assignment.TensorSelector(kinds=[pb.TENSOR_KIND_CONV, pb.TENSOR_KIND_BUFFER]), ["a.bias", "b.mean"]),
        (assignment.TensorSelector(roles=[pb.TENSOR_ROLE_CLASSIFIER]), ["c.weight"]),
        (assignment.TensorSelector(kinds=[pb.TENSOR_KIND_CONV], roles=[pb.TENSOR_ROLE_CLASSIFIER]), []),
        (assignment.TensorSelector(names=["unknown"]), []),
    ],
)
def test_a_selector_takes_what_matches_every_list(selector: assignment.TensorSelector, names: list[str]) -> None:
    assert [t.name for t in bundles.select([BIAS, MEAN, HEAD], selector)] == names


def test_integers_stay_integers_under_a_float16_codec() -> None:
    tensors = [
        pb.ExchangeableTensor(name="n", dtype=blob_pb2.DTYPE_INT64),
        pb.ExchangeableTensor(name="w", dtype=blob_pb2.DTYPE_FLOAT32, shape=[2, 3]),
    ]

    assert bundles.specs(tensors, blob_pb2.DTYPE_FLOAT16) == [
        TensorSpec("n", blob_pb2.DTYPE_INT64, ()),
        TensorSpec("w", blob_pb2.DTYPE_FLOAT16, (2, 3)),
    ]


def concatenated() -> pb.Manifest:
    """The valid bundle's model on two extractors of three outputs: 2 * 3 = 6 inputs."""
    manifest = valid()
    weights = [slot(pb.SLOT_KIND_WEIGHT, "fc.bias", (2,)), slot(pb.SLOT_KIND_WEIGHT, "fc.weight", (2, 6))]
    rows = slot(pb.SLOT_KIND_INPUT, shape=(4, 6))
    extract = program("extract", EMBED, slot(pb.SLOT_KIND_EXTRACTOR, "fc1.weight", (3, 3)))
    extract.outputs[0].CopyFrom(slot(pb.SLOT_KIND_FEATURES, shape=(4, 3)))
    embed = manifest.programs[2]
    manifest.ClearField("programs")
    manifest.programs.extend(
        [embed, extract, program("step", STEP, *weights, rows), program("predict", PREDICT, *weights, rows)]
    )
    manifest.ClearField("tensors")
    manifest.tensors.extend(classifier({"fc.bias": (2,), "fc.weight": (2, 6)}))
    manifest.concatenated = 2
    return manifest


def with_an_extractor_elsewhere(manifest: pb.Manifest) -> None:
    manifest.programs[3].inputs.append(slot(pb.SLOT_KIND_EXTRACTOR, "fc1.weight", (3, 3)))


def test_a_bundle_that_concatenates_extractors_is_read() -> None:
    assert bundles.parse(concatenated().SerializeToString()).concatenated == 2


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: m.programs.pop(1), "needs program 'extract'"),
        (change("programs.1.inputs.0.kind", pb.SLOT_KIND_INPUT), "'extract' takes no extractor"),
        (change("programs.3.inputs.0.kind", 72), "takes a slot of kind 72, which"),
        (reshape(1, "outputs", 0, 4, 4), r"program 'step' takes \[\[4, 6\]\], 2 extractors side by side give \[4, 8\]"),
        (change("programs.1.outputs.0.kind", pb.SLOT_KIND_LOGITS), r"must give features \[4, d\], found \[\]"),
        (change("concatenated", 65), "65 concatenated extractors; allowed are 1 to 64"),
        (with_an_extractor_elsewhere, "program 'predict', slot 'fc1.weight': extractors belong to `extract`"),
    ],
)
def test_a_bundle_whose_extractors_do_not_fit_is_refused(damage: Change, reason: str) -> None:
    refused(concatenated(), damage, reason)


def with_views(*, frozen: bool = True) -> pb.Manifest:
    """The valid bundle with two views of each photo, of which eight are stored if the backbone is frozen."""
    manifest = valid()
    manifest.programs[0].inputs[-1].CopyFrom(slot(pb.SLOT_KIND_INPUT, shape=(4, 2, 3)))
    rows = 1 if frozen else 4
    photos = (rows, 3, 32, 32)
    uniforms = slot(pb.SLOT_KIND_UNIFORM, shape=(rows, 11))
    view = program("view", EMBED, slot(pb.SLOT_KIND_INPUT, shape=photos), uniforms)
    view.outputs[0].CopyFrom(slot(pb.SLOT_KIND_PHOTO, shape=photos))
    manifest.programs.append(view)
    manifest.views = 2
    if frozen:
        manifest.stored_views = 8
    else:
        manifest.bundle_class = pb.BUNDLE_CLASS_WHOLE_MODEL
    return manifest


@pytest.mark.parametrize("frozen", [True, False])
def test_a_bundle_with_views_is_read(frozen: bool) -> None:
    assert bundles.parse(with_views(frozen=frozen).SerializeToString()).views == 2


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: m.programs.pop(3), "needs program 'view'"),
        (change("views", 17), "17 views of a photo; allowed are 1 to 16"),
        (change("views", 0), "8 stored views of a bundle without views"),
        (change("stored_views", 1), "1 stored views; allowed are 2, as many as a step takes, to 64"),
        (change("stored_views", 65), "65 stored views"),
        (change("bundle_class", pb.BUNDLE_CLASS_WHOLE_MODEL), "8 stored views of a bundle that trains all layers"),
        (change("programs.3.inputs.1.kind", pb.SLOT_KIND_MASK), "'view' must make a photo of a photo and uniform"),
        (reshape(3, "inputs", 0, 1, 3, 32, 31), r"photos \[1, 3, 32, 31\], the bundle \[1, 3, 32, 32\]"),
        (reshape(3, "outputs", 0, 4, 3, 32, 32), r"photos \[4, 3, 32, 32\], the bundle \[1, 3, 32, 32\]"),
        (reshape(3, "inputs", 1, 4, 11), r"'view' takes uniforms \[4, 11\]"),
        (
            reshape(0, "inputs", 3, 4, 3, 3),
            r"'step' takes \[\[4, 3, 3\]\], which is not 2 views of the input of 'predict', ",
        ),
    ],
)
def test_a_bundle_whose_views_do_not_fit_is_refused(damage: Change, reason: str) -> None:
    refused(with_views(), damage, reason)
