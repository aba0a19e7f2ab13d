"""The policy of a client's owner: limits on what the server may learn, whatever it asks."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Set by the embedder of the client; the default answers every request that this version knows.

    Attributes:
        answer_class_counts: The server may learn the number of train photos of each class.
        answer_evaluation: The server may learn how many test photos the model classifies correctly.
        answer_confusion: The server may learn the confusion matrix over the test photos.
        answer_label_distribution: The server may learn the share of each class among the train photos, with noise.
        least_epsilon: Smallest epsilon for noisy shares; a smaller one gives a useless answer, and it is final.
        most_epsilon: Largest epsilon for noisy shares; a larger one adds too little noise.
        answer_exactly_after_noise: A server that has noisy shares of the same classes may learn class counts and
            confusion, although these undo the noise.
        tables: Names of the tables that the server may learn, and of sets of client state that may be in what it gets
            or pull it towards them, as `state/NAME`; None: all. See `what-leaves-the-device.md`.
        least_train_photos: Fewest photos to train on, to count, or to measure on; an update from fewer shows much of
            each. A check-in with fewer says that there are none, so that no round waits for a refusal.
        least_batches: Fewest batches of a training on own photos; the change after one batch is a gradient, from which
            photos can be reconstructed.
        bundles: Digests of the only manifests that may run here; None trusts the server's choice.
    """

    answer_class_counts: bool = True
    answer_evaluation: bool = True
    answer_confusion: bool = True
    answer_label_distribution: bool = True
    least_epsilon: float = 0.0
    most_epsilon: float = inf
    answer_exactly_after_noise: bool = False
    tables: frozenset[str] | None = frozenset()
    least_train_photos: int = 8
    least_batches: int = 2
    bundles: frozenset[bytes] | None = None


EMULATED = Policy(tables=None, least_train_photos=0, least_batches=0)
"""The policy of emulated clients, whose photos are nobody's secret."""
