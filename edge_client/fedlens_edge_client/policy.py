"""What a client is ready to tell, whatever a server asks: its owner's word, not the server's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Set by who embeds the client; the default answers everything that this version knows.

    Attributes:
        answer_class_counts: Whether the server may learn how many train photos there are of each class.
        answer_evaluation: Whether it may learn how many of this client's test photos are classified rightly.
        bundles: Digests of the only manifests that may run here; None trusts the server's choice.
    """

    answer_class_counts: bool = True
    answer_evaluation: bool = True
    bundles: frozenset[bytes] | None = None
