"""Small bundles for tests of the server, which stores programs and never runs them."""

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedlens_proto.blob import encode
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.manifests import classifier, program, slot


@dataclass(frozen=True)
class SampleBundle:
    """A linear layer `fc` from `features` to two classes."""

    manifest: bytes
    parts: dict[bytes, bytes]
    initial: bytes

    @property
    def id(self) -> bytes:
        return sha256(self.manifest).digest()


def linear(features: int = 3) -> SampleBundle:
    shapes = {"fc.bias": (2,), "fc.weight": (2, features)}
    initial = encode({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    step, predict = b"step program", b"predict program"
    contents = {sha256(content).digest(): content for content in (initial, step, predict)}
    weights = [slot(pb.SLOT_KIND_WEIGHT, name, shape) for name, shape in shapes.items()]
    rates = ["lr_classifier", "lr_extractor"]
    manifest = pb.Manifest(
        format=1,
        bundle_class=pb.BUNDLE_CLASS_WHOLE_MODEL,
        model="linear",
        preprocessing=pb.Preprocessing(version=1, height=32, width=32),
        class_names=["cat", "dog"],
        batch=4,
        tensors=classifier(shapes),
        objective="cross_entropy",
        optimiser="sgd",
        hyper_parameters=[pb.HyperParameter(name=name, default_value=0.1, minimum=0, maximum=1) for name in rates],
        last_batch=pb.LAST_BATCH_MASKED,
        programs=[
            program("step", step, *weights, *(slot(pb.SLOT_KIND_HYPER, name) for name in rates)),
            program("predict", predict, *weights),
        ],
        initial=sha256(initial).digest(),
        parts=[pb.Part(sha256=digest, size=len(content)) for digest, content in sorted(contents.items())],
    )
    return SampleBundle(manifest.SerializeToString(deterministic=True), contents, initial)
