"""The classifiers by name."""

from typing import Literal

from densekd.nn.classifier import BiasClassifier, Classifier, CosineClassifier, LinearClassifier
from densekd.nn.proxies import ProxyClassifier

Head = Literal["cosine", "linear", "bias", "proxies"]

HEADS: dict[Head, type[Classifier]] = {
    "cosine": CosineClassifier,
    "linear": LinearClassifier,
    "bias": BiasClassifier,
    "proxies": ProxyClassifier,
}
