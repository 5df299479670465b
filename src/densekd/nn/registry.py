"""The networks by name. To add one, write a module and add a line here."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from densekd.nn.adapter import own_backbone
from densekd.nn.efficientnet_lite import LITE_VARIANTS, EfficientNetLite, efficientnet_lite
from densekd.nn.network import Backbone
from densekd.nn.resnet import WideResNet, cifar_resnet, podnet_resnet, podnet_resnet18, resnet18
from densekd.nn.transformers_backbone import Pretrained, pretrained, rebuild_pretrained
from densekd.parts import find, is_reference


class NetworkEntry(NamedTuple):
    """A family of networks: the names it matches, how users write it, and its builder."""

    pattern: str  # a regular expression for the whole name
    usage: str
    build: Callable[..., Backbone]  # takes the groups of the pattern, as text
    pretrained: bool = False


# The first match wins.
NETWORKS = (
    NetworkEntry("resnet18", "resnet18 (large images)", resnet18),
    NetworkEntry("ucir18", "ucir18 (UCIR's, large)", lambda: resnet18(last_relu=False)),
    NetworkEntry("podnet18", "podnet18 (PODNet's, large)", podnet_resnet18),
    NetworkEntry(r"podnet(\d+)", "podnet32, ...", lambda depth: podnet_resnet(int(depth))),
    NetworkEntry(r"resnet(\d+)", "resnet20, resnet32, ...", lambda d: cifar_resnet(int(d))),
    NetworkEntry(
        r"wrn-(\d+)-(\d+)(-large)?",
        "wrn-40-4, ..., wrn-28-10-large, ...",
        lambda depth, widen, large: WideResNet(int(depth), int(widen), large=large is not None),
    ),
    NetworkEntry(
        f"({'|'.join(LITE_VARIANTS)})",
        f"{', '.join(LITE_VARIANTS)} (EfficientNet-Lite, pretrained)",
        efficientnet_lite,
        pretrained=True,
    ),
    NetworkEntry("hf:(.*)", "hf:NAME or hf:FOLDER (pretrained)", pretrained, pretrained=True),
)


def make_backbone(name: str, size: tuple[int, int] | None = None) -> Backbone:
    """Build the network of that name, such as ``resnet32``, ``wrn-40-4`` or ``hf:FOLDER``.

    Pretrained networks (``lite0``, ``hf:``) come with weights; those of others are drawn at random.
    A custom network, such as ``mine.py:tiny``, is tried on images of ``size``.
    """
    if is_reference(name):
        return own_backbone(name, find(name), size)
    for entry in NETWORKS:
        if found := re.fullmatch(entry.pattern, name):
            return entry.build(*found.groups())
    usages = ", ".join(entry.usage for entry in NETWORKS)
    raise ValueError(f"There is no network {name!r}; there are {usages}.")


def is_pretrained(name: str) -> bool:
    """Whether the network of that name comes with weights."""
    return any(entry.pretrained and re.fullmatch(entry.pattern, name) for entry in NETWORKS)


def describe_backbone(name: str, backbone: object) -> dict[str, Any]:
    """What `rebuild_backbone` needs, for JSON."""
    facts = backbone.facts() if isinstance(backbone, Pretrained) else {}
    return {"network": name, **facts}


def rebuild_backbone(facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Backbone:
    """Build the network that `describe_backbone` described, without weights or downloads.

    ``shapes`` are those of its weights; a description of a larger network is refused.
    """
    name = str(facts["network"])
    if "config" in facts:
        return rebuild_pretrained(facts, shapes)
    if name in LITE_VARIANTS:
        return EfficientNetLite(name)
    raise ValueError(f"The network {name!r} is not one of {', '.join(LITE_VARIANTS)}.")
