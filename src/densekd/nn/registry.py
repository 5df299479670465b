"""The names of the networks, and the one place where a name becomes a network."""

import re

from densekd.nn.network import Backbone
from densekd.nn.podnet_resnet import podnet_resnet, podnet_resnet18
from densekd.nn.resnet import cifar_resnet, resnet18
from densekd.nn.transformers_backbone import pretrained
from densekd.nn.wideresnet import WideResNet

NETWORKS = (
    "resnet20, resnet32, ... and wrn-40-4, ... for small images, resnet18 and wrn-28-10-large, ... "
    "for large, UCIR's own, ucir18, PODNet's, podnet32 and podnet18, and hf:NAME or hf:FOLDER for "
    "a pretrained one"
)


def make_backbone(name: str) -> Backbone:
    """The network of that name, such as ``resnet32``, ``wrn-40-4`` or ``hf:FOLDER``.

    A pretrained one, ``hf:``, comes with its weights; those of the others are drawn.
    """
    if name.startswith("hf:"):
        return pretrained(name.removeprefix("hf:"))
    if name == "resnet18":
        return resnet18()
    if name == "ucir18":
        return resnet18(last_relu=False)
    if name == "podnet18":
        return podnet_resnet18()
    if found := re.fullmatch(r"podnet(\d+)", name):
        return podnet_resnet(int(found[1]))
    if found := re.fullmatch(r"resnet(\d+)", name):
        return cifar_resnet(int(found[1]))
    if found := re.fullmatch(r"wrn-(\d+)-(\d+)(-large)?", name):
        return WideResNet(int(found[1]), int(found[2]), large=found[3] is not None)
    raise ValueError(f"There is no network {name!r}; there are {NETWORKS}.")
