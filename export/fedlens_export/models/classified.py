"""Models in two halves, as methods see them that exchange a classifier among different extractors."""

from torch import Tensor, nn

FEATURES = 512
"""Inputs of the classifier of every model by name that ends so: classifiers of different models can be averaged."""


class Classified(nn.Module):
    """`classifier(relu(extractor(x)))`.

    What the extractor gives, before the ReLU, are the features that contrastive objectives compare.
    """

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        """The extractor gives float32 [N, F], which the classifier takes."""
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, inputs: Tensor, *, with_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, float32 [N, classes]; with `with_features` the features, float32 [N, F], and the logits."""
        features: Tensor = self.extractor(inputs)
        logits: Tensor = self.classifier(features.relu())
        return (features, logits) if with_features else logits
