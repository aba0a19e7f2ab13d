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
        tables: Names of the tables that the server may learn; None: all. See `what-leaves-the-device.md`.
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
    bundles: frozenset[bytes] | None = None
