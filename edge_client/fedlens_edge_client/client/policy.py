"""What a client is ready to tell, whatever a server asks: its owner's word, not the server's."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Set by who embeds the client; the default answers everything that this version knows.

    Attributes:
        answer_class_counts: Whether the server may learn how many train photos there are of each class.
        answer_evaluation: Whether it may learn how many of this client's test photos are classified rightly.
        answer_confusion: Whether it may learn, for each class of those test photos, as what they are classified.
        answer_label_distribution: Whether it may learn the share of each class among the train photos with noise.
        least_epsilon: A noisy share is refused where epsilon is smaller: it would be the answer for life, and useless.
        most_epsilon: It is refused where epsilon is larger, and the noise so small that it hides too little.
        answer_exactly_after_noise: Whether class counts and confusion are answered to a server that was given noisy
            shares of the same classes before, whose noise they undo.
        bundles: Digests of the only manifests that may run here; None trusts the server's choice.
    """

    answer_class_counts: bool = True
    answer_evaluation: bool = True
    answer_confusion: bool = True
    answer_label_distribution: bool = True
    least_epsilon: float = 0.0
    most_epsilon: float = inf
    answer_exactly_after_noise: bool = False
    bundles: frozenset[bytes] | None = None
