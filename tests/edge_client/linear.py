"""A bundle that needs no torch, and an engine that runs it in numpy: softmax regression trained by SGD."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import BundleUnusable, NonFinite, Rows
from fedlens_edge_client.training.evaluation import log_softmax
from fedlens_proto import blob
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import blob_pb2, manifest_pb2

SIDE = 4
BATCH = 4
CLASSES = ("cat", "dog")
WIDTH = 2
F32 = blob_pb2.DTYPE_FLOAT32


def make_bundle(
    folder: Path,
    *,
    frozen: bool = True,
    last_batch: manifest_pb2.LastBatch = manifest_pb2.LAST_BATCH_MASKED,
    with_reference: bool = False,
    features: int = 3,
    concatenated: int = 0,
) -> Bundle:
    """A bundle of `fc.bias` [2] and `fc.weight` [2, features]; its program files are told apart by one byte each.

    With `concatenated` the weights stand on so many extractors side by side, each `base.weight` [WIDTH, features].
    """
    parts_folder = folder / "parts"
    parts_folder.mkdir(parents=True)
    parts: dict[bytes, int] = {}

    def part(raw: bytes) -> bytes:
        digest = sha256(raw).digest()
        (parts_folder / digest.hex()).write_bytes(raw)
        parts[digest] = len(raw)
        return digest

    inputs = features if frozen else 3 * SIDE * SIDE
    shapes = {"fc.bias": [2], "fc.weight": [2, concatenated * WIDTH or inputs]}
    initial = part(blob.encode({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}))
    weights = [
        manifest_pb2.Slot(kind=manifest_pb2.SLOT_KIND_WEIGHT, name=name, dtype=F32, shape=shape)
        for name, shape in shapes.items()
    ]
    loss = manifest_pb2.Slot(kind=manifest_pb2.SLOT_KIND_LOSS, dtype=F32)
    logits = _slot(manifest_pb2.SLOT_KIND_LOGITS, "", BATCH, 2)
    row = _slot(manifest_pb2.SLOT_KIND_INPUT, "", BATCH, concatenated * WIDTH or inputs)
    taken = [*weights, row, *(_slot(manifest_pb2.SLOT_KIND_HYPER, name) for name in ("lr", "mu"))]
    if with_reference:
        taken += [_slot(manifest_pb2.SLOT_KIND_REFERENCE, f"global/{name}", *shape) for name, shape in shapes.items()]
    programs = {"step": (taken, [*weights, loss, logits]), "predict": ([*weights, row], [logits])}
    if frozen:
        programs["embed"] = ([row], [loss])
    if concatenated:
        extractor = _slot(manifest_pb2.SLOT_KIND_EXTRACTOR, "base.weight", WIDTH, inputs)
        outputs = _slot(manifest_pb2.SLOT_KIND_FEATURES, "", BATCH, WIDTH)
        programs["extract"] = ([extractor, _slot(manifest_pb2.SLOT_KIND_INPUT, "", BATCH, inputs)], [outputs])
    manifest = manifest_pb2.Manifest(
        format=1,
        bundle_class=(manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE if frozen else manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL),
        preprocessing=manifest_pb2.Preprocessing(version=1, height=SIDE, width=SIDE),
        class_names=CLASSES,
        batch=BATCH,
        tensors=[
            manifest_pb2.ExchangeableTensor(
                name=name,
                dtype=F32,
                shape=shape,
                kind=manifest_pb2.TENSOR_KIND_LINEAR,
                role=manifest_pb2.TENSOR_ROLE_CLASSIFIER,
            )
            for name, shape in shapes.items()
        ],
        hyper_parameters=[
            manifest_pb2.HyperParameter(name="lr", default_value=0.1, minimum=0.0, maximum=1e38),
            manifest_pb2.HyperParameter(name="mu", default_value=0.0, minimum=0.0, maximum=10.0),
        ],
        last_batch=last_batch,
        programs=[
            manifest_pb2.Program(
                name=name,
                inputs=taken,
                outputs=given,
                objective="softmax" if name == "step" else "",
                files=[
                    manifest_pb2.ProgramFile(
                        format=manifest_pb2.PROGRAM_FORMAT_PT2, sha256=part(name.encode() + bytes(2000))
                    )
                ],
            )
            for name, (taken, given) in programs.items()
        ],
        initial=initial,
        concatenated=concatenated,
        frozen=part(blob.encode({"scale": np.ones(3, np.float32)})) if frozen else b"",
        parts=[manifest_pb2.Part(sha256=digest, size=size) for digest, size in sorted(parts.items())],
    )
    (folder / "manifest.pb").write_bytes(manifest.SerializeToString(deterministic=True))
    return Bundle.open(folder)


def _slot(kind: manifest_pb2.SlotKind, name: str, *shape: int) -> manifest_pb2.Slot:
    return manifest_pb2.Slot(kind=kind, name=name, dtype=F32, shape=shape)


class LinearChildren:
    """In place of `Children`: the engines are in this process."""

    def __init__(self, *_: object) -> None:
        self.engine = LinearEngine

    def close(self) -> None:
        """Nothing to end."""


class LinearEngine:
    """An `Engine` for such bundles; the frozen backbone gives the mean of each colour.

    It remembers, for each stage, the weights that it starts from, the batches and the references; and all losses.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self.weights: list[Mapping[str, Array]] = []
        self.batches: list[list[list[int]]] = []
        self.references: list[Mapping[str, Mapping[str, Array]]] = []
        self.losses: list[float] = []

    @property
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    def program_format(self) -> manifest_pb2.ProgramFormat:
        return manifest_pb2.PROGRAM_FORMAT_PT2

    def embed(self, photo: NDArray[np.float32]) -> NDArray[np.float32]:
        self._load("embed")
        means: NDArray[np.float32] = photo[0].mean(axis=(1, 2), dtype=np.float32)
        manifest = self._bundle.manifest
        extractors = [slot for program in manifest.programs for slot in program.inputs if slot.name == "base.weight"]
        width = (extractors or manifest.tensors)[-1].shape[1]
        return np.resize(means, width).astype(np.float32)

    def train(
        self,
        program: str,
        weights: Mapping[str, Array],
        rows: Rows,
        batches: Iterable[NDArray[np.int64]],
        hyper: Mapping[str, float],
        references: Mapping[str, Mapping[str, Array]],
        on_step: Callable[[float], None] | None = None,
        uniforms: Callable[[int, int, int], NDArray[np.float32]] | None = None,
    ) -> dict[str, Array]:
        self._load(program)
        values = {h.name: h.default_value for h in self._bundle.manifest.hyper_parameters} | dict(hyper)
        lr, mu = np.float32(values["lr"]), np.float32(values["mu"])
        trained: dict[str, Array] = {name: np.array(weights[name]) for name in ("fc.bias", "fc.weight")}
        seen: list[list[int]] = []
        self.weights.append(weights)
        self.batches.append(seen)
        self.references.append(references)
        with np.errstate(all="ignore"):
            for batch in batches:
                seen.append(batch.tolist())
                inputs, labels = rows.inputs[batch].reshape(len(batch), -1), rows.labels[batch]
                loss = self.step(trained, inputs, labels, lr, mu, references.get("global", {}))
                if not np.isfinite(loss) or not all(np.isfinite(t).all() for t in trained.values()):
                    raise NonFinite("training gave a NaN or an infinity")
                self.losses.append(loss)
                if on_step is not None:
                    on_step(loss)
        return trained

    def step(
        self,
        trained: dict[str, Array],
        inputs: NDArray[np.float32],
        labels: NDArray[np.int64],
        lr: np.float32,
        mu: np.float32,
        reference: Mapping[str, Array],
    ) -> float:
        """One step of SGD on `trained`, pulled towards `reference` by `mu`; gives the loss."""
        scaled = log_softmax(inputs @ trained["fc.weight"].T + trained["fc.bias"])
        error = (np.exp(scaled) - np.eye(2)[labels]).astype(np.float32) / np.float32(len(labels))
        gradients = {"fc.bias": error.sum(axis=0), "fc.weight": error.T @ inputs}
        for name, gradient in gradients.items():
            pull = mu * (trained[name] - reference[name]) if mu else np.float32(0)
            trained[name] = trained[name] - lr * (gradient + pull)
        return -float(scaled[np.arange(len(labels)), labels].mean())

    def derive(
        self,
        program: str,
        hyper: Mapping[str, float],
        references: Mapping[str, Mapping[str, Array]],
        rows: Rows | None = None,
    ) -> dict[str, Array]:
        raise AssertionError("no plan of these tests derives anything; see `vectors.plan_arithmetic`")

    def predict(
        self,
        weights: Mapping[str, Array],
        inputs: NDArray[np.float32],
        program: str = "predict",
        references: Mapping[str, Mapping[str, Array]] | None = None,
    ) -> NDArray[np.float32]:
        self._load(program)
        logits: NDArray[np.float32] = inputs.reshape(len(inputs), -1) @ weights["fc.weight"].T + weights["fc.bias"]
        return logits

    def view(self, photos: NDArray[np.float32], uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
        self._load("view")
        return photos * (1 - uniforms[:, :1, np.newaxis, np.newaxis])

    def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        self._load("extract")
        outputs: NDArray[np.float32] = inputs.reshape(len(inputs), -1) @ extractor["base.weight"].T
        return outputs

    def _load(self, program: str) -> None:
        path = self._bundle.program_file(program, self.program_format)
        if not path.is_file() or not path.read_bytes().startswith(program.encode()):
            raise BundleUnusable(f"program {program} is not there or damaged")
