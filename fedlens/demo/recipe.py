"""A demo's model and training; chosen by measurement, see `docs/demo.md`."""

import json
from dataclasses import dataclass
from hashlib import sha256

from fedlens.demo.comparison import Training
from fedlens.demo.results import TaskFacts
from fedlens.demo.scale import Scale
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_proto.manifest import Bundle, program

DEADLINE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model, and the settings of its task.

    Attributes:
        side: Side of the photos, in pixels.
        head: Head on a frozen backbone; None: all layers train.
        codec: Codec of models, in both directions.
        pooled_rate: Learning rate of one server with all photos, which trains one epoch a round; None: not compared.
    """

    model: str
    side: int
    head: str | None
    rounds: int
    learning_rate: float
    momentum: float
    codec: str
    batch: int = 16
    pooled_rate: float | None = None

    @property
    def hyper(self) -> dict[str, float]:
        """The task's hyper-parameters."""
        return self._hyper(self.learning_rate)

    def alone(self, rounds: int, scale: Scale) -> Training | None:
        """Training of each client alone, as long as in the federation; None: not compared."""
        return Training(epochs=rounds * scale.epochs, hyper=self.hyper) if self.pooled_rate else None

    def pooled(self, rounds: int) -> Training | None:
        """Training of one server with all photos; None: not compared."""
        return Training(epochs=rounds, hyper=self._hyper(self.pooled_rate)) if self.pooled_rate else None

    def _hyper(self, rate: float) -> dict[str, float]:
        return {"lr_extractor": rate, "lr_classifier": rate, "momentum": self.momentum}

    def settings(self, scale: Scale, rounds: int, seed: int) -> str:
        """The task's settings, as JSON."""
        return json.dumps(
            {
                "method": "fedavg",
                "rounds": rounds,
                "population": scale.clients,
                "epochs": scale.epochs,
                "hyper": self.hyper,
                "codec": self.codec,
                "download_codec": self.codec,
                "deadline_s": DEADLINE_S,
                "min_reports": (scale.clients + 1) // 2,
                "evaluate_every": 1,
                "seed": sha256(b"fedlens/demo/task" + str(seed).encode()).hexdigest(),
            }
        )

    def setup(self, facts: TaskFacts, scale: Scale, bundle: Bundle, fleet: FleetConfig) -> dict[str, str]:
        """The setup that the report lists: values by name."""
        manifest, pool = bundle.manifest, fleet.pool
        weights = sum(bundle.initial()[tensor.name].size for tensor in manifest.tensors)
        frozen = f", head {self.head!r} on the frozen backbone" if self.head else ""
        return {
            "Method": "FedAvg: the mean of all models, weighted by photos",
            "Clients": f"{scale.clients}, all of them in every round, in {fleet.workers} processes",
            "Rounds": str(facts.settings.get("rounds", len(facts.rounds))),
            "Photos": f"{sum(map(len, pool.train)):,} to train on, {sum(map(len, pool.test)):,} for tests",
            "Classes": ", ".join(pool.class_names),
            "A client's photos": scale.album,
            "Partition": fleet.partition.summary,
            "Model": f"{manifest.model}{frozen}: {weights:,} weights train, sent as {self.codec} in both directions; "
            f"photos of {manifest.preprocessing.width} x {manifest.preprocessing.height} pixels",
            "Local training": f"{scale.epochs} epochs on the round's photos, batches of {manifest.batch}, "
            f"{program(manifest, 'step').optimiser.upper()}, learning rate {self.learning_rate}, "
            f"momentum {self.momentum:g}",
            "Programs are run by": ", ".join(fleet.engines),
            "Seed": str(fleet.partition.seed),
        }


DIGITS = Recipe(model="lenet5", side=32, head=None, rounds=10, learning_rate=0.01, momentum=0.9, codec="f32")
"""All layers of a small network, because ImageNet's features do not fit scans of 8 x 8 pixels."""


def for_photos(side: int) -> Recipe:
    """A linear head on ImageNet features of photos of `side` x `side` pixels."""
    return Recipe(
        model="efficientnet_lite0",
        side=side,
        head="linear",
        rounds=20,
        learning_rate=0.1,
        momentum=0.0,
        codec="f16",
        pooled_rate=0.03,
    )
