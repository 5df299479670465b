"""``lite0`` for images of 96 pixels, a fifth of the work of its own 224: a custom network.

    densekd run --data cifar100 --network benchmarks/lite0_small.py:lite0_96 ...

docs/results.md has what it reached.
"""

from densekd.nn.efficientnet_lite import EfficientNetLite, efficientnet_lite


def lite0_96() -> EfficientNetLite:
    network = efficientnet_lite("lite0")
    network.preprocessing = network.preprocessing._replace(size=(96, 96))
    return network
