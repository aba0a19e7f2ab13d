"""A manifest whose programs can be done by hand, and the arithmetic in their place, all of it in float32."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.training.sources import Tensors
from fedlens_proto.blob import Array, encode
from fedlens_proto.manifest import Bundle
from fedlens_proto.slots import LABEL_COUNTS, WEIGHTS
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

FEATURES, CLASSES, BATCH, PUBLIC = 3, 2, 4, 5
SHAPES = {"fc.bias": (CLASSES,), "fc.weight": (CLASSES, FEATURES)}
F32 = np.float32
_KINDS = {"fc.bias": pb.TENSOR_KIND_LINEAR, "fc.weight": pb.TENSOR_KIND_LINEAR}


def slot(kind: str, name: str = "", *shape: int, dtype: blob_pb2.Dtype = blob_pb2.DTYPE_FLOAT32) -> pb.Slot:
    """A slot of this kind."""
    return pb.Slot(kind=pb.SlotKind.Value(f"SLOT_KIND_{kind}"), name=name, dtype=dtype, shape=shape)


def manifest_of(last_batch: pb.LastBatch, public: bytes, public_bytes: int) -> pb.Manifest:
    """The manifest of the programs below; `public` is the digest of the blob of public photos."""
    initial = encode({name: np.zeros(shape, F32) for name, shape in SHAPES.items()})
    parts = {sha256(initial).digest(): len(initial), public: public_bytes}
    weights = [slot("WEIGHT", name, *shape) for name, shape in SHAPES.items()]

    def rows(batch: int) -> list[pb.Slot]:
        label = slot("LABEL", "", batch, dtype=blob_pb2.DTYPE_INT64)
        return [slot("INPUT", "", batch, FEATURES), label, slot("MASK", "", batch)]

    def of_weights(reference: str) -> list[pb.Slot]:
        return [slot("REFERENCE", f"{reference}/{name}", *shape) for name, shape in SHAPES.items()]

    def trains(name: str, batch: int, *others: pb.Slot, optional: Iterable[str] = ()) -> pb.Program:
        ends = [slot("LOSS"), slot("LOGITS", "", batch, CLASSES)]
        taken = [*weights, *rows(batch), slot("HYPER", "lr"), *others]
        return pb.Program(
            name=name, inputs=taken, outputs=[*weights, *ends], optional=optional, objective="sums", optimiser="sgd"
        )

    def derives(
        name: str, makes: str, given: list[pb.Slot], *taken: pb.Slot, optional: Iterable[str] = ()
    ) -> pb.Program:
        return pb.Program(name=name, makes=makes, inputs=taken, outputs=given, optional=optional)

    sums = [slot("ACCUMULATOR", "count"), slot("ACCUMULATOR", "sum", FEATURES)]
    features = [slot("INPUT", "", BATCH, FEATURES), slot("MASK", "", BATCH)]
    logits = slot("LOGITS", "", BATCH, CLASSES)
    programs = [
        pb.Program(name="embed", inputs=[slot("INPUT", "", 1, 3, 4, 4)], outputs=[slot("FEATURES", "", 1, FEATURES)]),
        trains(
            "step", BATCH, slot("HYPER", "mu"), *of_weights("global"), slot("PRESENT", "global"), optional=["global"]
        ),
        trains("noisy", BATCH, slot("UNIFORM", "u", BATCH, 2), slot("REFERENCE", f"counts/{LABEL_COUNTS}", CLASSES)),
        trains("distil", 2, slot("TARGET", "teacher/score", 2)),
        derives("sums", "sums", sums, *rows(3), *sums, *of_weights("model")),
        derives(
            "mean",
            "means",
            [slot("RESULT", "mean", FEATURES)],
            *(slot("HYPER", "stay"), slot("REFERENCE", "sums/count"), slot("REFERENCE", "sums/sum", FEATURES)),
            *(slot("REFERENCE", "previous/mean", FEATURES), slot("PRESENT", "previous")),
            optional=["previous"],
        ),
        derives("scores", "scores", [slot("RESULT", "score", 3)], *rows(3), *of_weights("model")),
        derives(
            "mix",
            WEIGHTS,
            weights,
            *(each for k in range(2) for each in (*of_weights(f"candidate-{k}"), slot("PRESENT", f"candidate-{k}"))),
            optional=["candidate-0", "candidate-1"],
        ),
        pb.Program(name="predict", inputs=[*weights, *features], outputs=[logits]),
        pb.Program(
            name="nearest", inputs=[*weights, *features, slot("REFERENCE", "means/mean", FEATURES)], outputs=[logits]
        ),
    ]
    for each in programs:
        digest = sha256(f"program {each.name}".encode()).digest()
        parts[digest] = 1
        each.files.add(format=pb.PROGRAM_FORMAT_PT2, sha256=digest)
    return pb.Manifest(
        format=1,
        bundle_class=pb.BUNDLE_CLASS_FROZEN_BACKBONE,
        preprocessing=pb.Preprocessing(version=1, height=4, width=4),
        class_names=["cat", "dog"],
        batch=BATCH,
        tensors=[
            pb.ExchangeableTensor(
                name=name,
                dtype=blob_pb2.DTYPE_FLOAT32,
                shape=shape,
                kind=_KINDS[name],
                role=pb.TENSOR_ROLE_CLASSIFIER if name == "fc.weight" else pb.TENSOR_ROLE_EXTRACTOR,
            )
            for name, shape in SHAPES.items()
        ],
        hyper_parameters=[
            pb.HyperParameter(name="lr", default_value=0.125, maximum=1000.0),
            pb.HyperParameter(name="mu", maximum=10.0),
            pb.HyperParameter(name="stay", default_value=0.5, maximum=1.0),
        ],
        last_batch=last_batch,
        programs=programs,
        initial=sha256(initial).digest(),
        parts=[pb.Part(sha256=digest, size=size) for digest, size in sorted(parts.items())],
        public=pb.PublicRows(sha256=public, rows=PUBLIC),
    )


class ByHand:
    """An engine that does the arithmetic of the README, under *Local plans of every kind*.

    It remembers the batches of each training and all losses.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.batches: list[list[list[int]]] = []
        self.losses: list[float] = []

    @property
    def program_format(self) -> pb.ProgramFormat:
        return pb.PROGRAM_FORMAT_PT2

    def train(
        self,
        name: str,
        weights: Tensors,
        rows: Rows,
        batches: Iterable[NDArray[np.int64]],
        hyper: Mapping[str, float],
        references: Mapping[str, Tensors],
        on_step: Callable[[float], None] | None = None,
        uniforms: Callable[[int, int, int], NDArray[np.float32]] | None = None,
    ) -> dict[str, Array]:
        trained = {key: np.array(value, F32) for key, value in weights.items()}
        lr, taken = F32(self._hyper(hyper, "lr")), []
        for step, batch in enumerate(batches):
            taken.append(batch.tolist())
            drawn = uniforms(step, 0, BATCH * 2).reshape(BATCH, 2) if uniforms is not None else np.ones((BATCH, 2), F32)
            for place, row in enumerate(batch):
                c, x, bias, by = int(rows.labels[row]), rows.inputs[row], lr, lr
                if name == "noisy":
                    bias = lr * drawn[place, 0] * F32(references["counts"][LABEL_COUNTS][c])
                    by = lr * drawn[place, 1]
                if name == "distil":
                    c, bias = 0, lr * F32(references["teacher"]["score"][row])
                    by = bias
                trained["fc.bias"][c] += bias
                trained["fc.weight"][c] += by * x
            mu = F32(self._hyper(hyper, "mu"))
            if name == "step" and mu and "global" in references:
                for key, value in trained.items():
                    trained[key] = value - mu * (value - references["global"][key])
            self.losses.append(float(trained["fc.bias"][0]))
            if on_step is not None:
                on_step(self.losses[-1])
        self.batches.append(taken)
        return trained

    def derive(
        self, name: str, hyper: Mapping[str, float], references: Mapping[str, Tensors], rows: Rows | None = None
    ) -> dict[str, Array]:
        if name == "sums":
            assert rows is not None
            count, total = F32(0), np.zeros(FEATURES, F32)
            for x, c in zip(rows.inputs, rows.labels, strict=True):
                count += F32(1)
                total += x * references["model"]["fc.bias"][c]
            return {"count": np.array(count), "sum": total}
        if name == "scores":
            assert rows is not None
            model = references["model"]
            return {"score": np.array([_score(model, x, 0) for x in rows.inputs], F32)}
        if name == "mean":
            mean = references["sums"]["sum"] / references["sums"]["count"]
            if "previous" in references:
                mean = mean + F32(self._hyper(hyper, "stay")) * (references["previous"]["mean"] - mean)
            return {"mean": mean.astype(F32)}
        mixed = {key: np.zeros(shape, F32) for key, shape in SHAPES.items()}
        for candidate in sorted(references):
            for key in mixed:
                mixed[key] += F32(0.5) * references[candidate][key]
        return mixed

    def predict(
        self,
        weights: Tensors,
        inputs: NDArray[np.float32],
        program: str = "predict",
        references: Mapping[str, Tensors] = {},
    ) -> NDArray[np.float32]:
        logits = np.array([[_score(weights, x, c) for c in range(CLASSES)] for x in inputs], F32)
        if program == "nearest":
            logits += references["means"]["mean"][:CLASSES]
        return logits

    def _hyper(self, given: Mapping[str, float], name: str) -> float:
        defaults = {each.name: each.default_value for each in self.bundle.manifest.hyper_parameters}
        return given.get(name, defaults[name])


def _score(model: Tensors, x: NDArray[np.float32], c: int) -> np.float32:
    found = F32(model["fc.bias"][c])
    for j in range(FEATURES):
        found = F32(found + x[j] * model["fc.weight"][c][j])
    return found


def bundle_of(folder: Path, manifest: pb.Manifest, parts: Mapping[bytes, bytes]) -> Bundle:
    """A bundle of which only these parts are there."""
    (folder / "parts").mkdir(parents=True)
    for digest, raw in parts.items():
        (folder / "parts" / digest.hex()).write_bytes(raw)
    raw = manifest.SerializeToString(deterministic=True)
    (folder / "manifest.pb").write_bytes(raw)
    return Bundle.described(folder)
