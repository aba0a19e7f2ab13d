"""The models that are measured: names and shapes, blobs of them, and a bundle whose programs nobody runs."""

from hashlib import sha256
from pathlib import Path

import numpy as np

from fedlens_proto import blob
from fedlens_proto.blob import Array
from fedlens_proto.manifest import MANIFEST_FILE, PARTS_FOLDER, Bundle
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

Shapes = dict[str, tuple[int, ...]]

LINEAR_HEAD: Shapes = {"fc.bias": (10,), "fc.weight": (10, 512)}
HIDDEN_LAYER: Shapes = {**LINEAR_HEAD, "hidden.bias": (512,), "hidden.weight": (512, 512)}


def linear_network() -> Shapes:
    """The linear head of 512 features behind the least that counts as an extractor."""
    return {"conv.weight": (1, 1, 1, 1), **LINEAR_HEAD}


def resnet18() -> Shapes:
    """Convolutions and FC layer of ResNet-18 for 10 classes: 11.2 M elements, 44.7 MB as float32."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), "fc.bias": (10,), "fc.weight": (10, 512)}
    before = 64
    for layer, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            into = before if block == 0 else width
            shapes[f"layer{layer}.{block}.conv1.weight"] = (width, into, 3, 3)
            shapes[f"layer{layer}.{block}.conv2.weight"] = (width, width, 3, 3)
        if layer > 1:
            shapes[f"layer{layer}.0.downsample.weight"] = (width, before, 1, 1)
        before = width
    return dict(sorted(shapes.items()))


def tensors(shapes: Shapes, seed: int) -> dict[str, Array]:
    """Random tensors, float32, standard deviation 0.1."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape, np.float32) * np.float32(0.1) for name, shape in shapes.items()}


def write_blobs(shapes: Shapes, folder: Path, count: int) -> list[Path]:
    """`count` different blobs as files; those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    base = tensors(shapes, seed=0)
    paths = [folder / f"{i:02}.blob" for i in range(count)]
    for i, path in enumerate(paths):
        if not path.exists():
            with path.open("wb") as file:
                blob.write(file, {name: value + np.float32(i) / 100 for name, value in base.items()})
    return paths


def inert_bundle(shapes: Shapes, folder: Path) -> Bundle:
    """A bundle with these tensors for clients that only move bytes: its programs are empty of code."""
    (folder / PARTS_FOLDER).mkdir(parents=True)
    initial = blob.encode(tensors(shapes, seed=1))
    contents = {"initial": initial, "step": b"no step", "predict": b"no predict"}
    digests = {name: sha256(content).digest() for name, content in contents.items()}
    for name, content in contents.items():
        (folder / PARTS_FOLDER / digests[name].hex()).write_bytes(content)
    weights = [
        pb.Slot(kind=pb.SLOT_KIND_WEIGHT, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)
        for name, shape in shapes.items()
    ]
    rows = pb.Slot(kind=pb.SLOT_KIND_INPUT, dtype=blob_pb2.DTYPE_FLOAT32, shape=[16, 3, 32, 32])
    loss = pb.Slot(kind=pb.SLOT_KIND_LOSS, dtype=blob_pb2.DTYPE_FLOAT32)
    logits = pb.Slot(kind=pb.SLOT_KIND_LOGITS, dtype=blob_pb2.DTYPE_FLOAT32, shape=[16, 10])
    manifest = pb.Manifest(
        format=1,
        bundle_class=pb.BUNDLE_CLASS_WHOLE_MODEL,
        model="inert",
        preprocessing=pb.Preprocessing(version=1, height=32, width=32),
        class_names=[f"class {i}" for i in range(10)],
        batch=16,
        tensors=[
            pb.ExchangeableTensor(
                name=name,
                dtype=blob_pb2.DTYPE_FLOAT32,
                shape=shape,
                kind=pb.TENSOR_KIND_LINEAR if name.startswith("fc.") else pb.TENSOR_KIND_CONV,
                role=pb.TENSOR_ROLE_CLASSIFIER if name.startswith("fc.") else pb.TENSOR_ROLE_EXTRACTOR,
            )
            for name, shape in shapes.items()
        ],
        last_batch=pb.LAST_BATCH_MASKED,
        programs=[
            pb.Program(
                name=name,
                inputs=[*weights, rows],
                outputs=outputs,
                files=[pb.ProgramFile(format=pb.PROGRAM_FORMAT_PT2, sha256=digests[name])],
                objective=objective,
            )
            for name, outputs, objective in (
                ("step", [*weights, loss, logits], "cross_entropy"),
                ("predict", [logits], ""),
            )
        ],
        initial=digests["initial"],
        parts=[
            pb.Part(sha256=digest, size=len(contents[name]))
            for digest, name in sorted((digest, name) for name, digest in digests.items())
        ],
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.SerializeToString(deterministic=True))
    return Bundle.open(folder)
