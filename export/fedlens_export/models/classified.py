"""Models of an extractor and a classifier, so that methods can exchange classifiers among different extractors."""

from collections import OrderedDict

from torch import Tensor, nn

FEATURES = 512
"""Inputs of the classifier of every such model by name, but for `fedns_alexnet`: classifiers of different models can be
averaged."""


class FeatureModel(nn.Module):
    """A model whose call takes `with_features`, and then returns what enters the ReLU before its classifier, too."""


class Classified(FeatureModel):
    """`classifier(relu(extractor(x)))`.

    Contrastive objectives compare the features before the ReLU.
    """

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        """Put a classifier of F features behind an extractor with output float32 [N, F]."""
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, inputs: Tensor, *, with_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, float32 [N, classes]; with `with_features` the features, float32 [N, F], and the logits."""
        features: Tensor = self.extractor(inputs)
        logits: Tensor = self.classifier(features.relu())
        return (features, logits) if with_features else logits


def classified(layers: nn.Module, features: int, classes: int) -> Classified:
    """A model that ends in FC 512, ReLU, FC classes, on layers with so many outputs."""
    extractor = nn.Sequential(OrderedDict(layers=layers, fc=nn.Linear(features, FEATURES)))
    return Classified(extractor, nn.Linear(FEATURES, classes))


class Mean(nn.Module):
    """The mean of each channel over the picture."""

    def forward(self, maps: Tensor) -> Tensor:
        """Features, float32 [N, C], of maps, float32 [N, C, H, W]."""
        return maps.mean((2, 3))
