"""The settings that the baselines were released with; docs/methods names the sources.

``small`` stands for CIFAR-100 and whatever has small images; those for ``digits`` are ours.
"""

from dataclasses import dataclass, replace

from densekd.data.memory import Selection
from densekd.methods.afc import AfcOptions
from densekd.methods.bic import BIAS_STAGE, BicOptions
from densekd.methods.ccil import CcilOptions
from densekd.methods.icarl import IcarlOptions, IcarlSoftmaxOptions
from densekd.methods.podnet import PodnetOptions
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.ucir import UcirOptions

HostOptions = (
    IcarlOptions
    | IcarlSoftmaxOptions
    | BicOptions
    | UcirOptions
    | PodnetOptions
    | CcilOptions
    | AfcOptions
)


@dataclass(frozen=True)
class Released:
    """What goes with a method on some data.

    Args:
        options: the method's own.
        schedules: how long and how fast it is trained.
        network: the backbone, where it isn't the usual one for the data.
        selection: how exemplars are chosen.
        brightness: how much images are made brighter or darker at random.
    """

    options: HostOptions
    schedules: Schedules
    network: str | None = None
    selection: Selection = "herding"
    brightness: float = 0.0


def _alike(schedule: Schedule, finish: Schedule | None = None) -> Schedules:
    """All tasks are trained alike."""
    return Schedules(schedule, schedule, finish)


def _stepped(epochs: int, lr: float, milestones: tuple[int, ...], **other: float) -> Schedule:
    factor, decay = other.get("factor", 0.1), other["weight_decay"]
    size = int(other.get("batch_size", 128))
    return Schedule(
        epochs,
        lr,
        "milestones",
        milestones=milestones,
        factor=factor,
        batch_size=size,
        weight_decay=decay,
    )


def _cosine(epochs: int, lr: float, batch_size: int, weight_decay: float) -> Schedule:
    return Schedule(epochs, lr, lr_end=0.0, batch_size=batch_size, weight_decay=weight_decay)


def _constant(epochs: int, lr: float, batch_size: int, weight_decay: float) -> Schedule:
    return Schedule(epochs, lr, "constant", batch_size=batch_size, weight_decay=weight_decay)


_DIGITS = Schedule(20, 0.1, batch_size=32)
_DIGITS_POD = Schedule(20, 0.1, lr_end=0.0, batch_size=32)
_DIGITS_FINISH = Schedule(10, 0.05, "constant", batch_size=32)
_JITTER = 63 / 255

_ICARL = {
    "small": Released(
        IcarlOptions(),
        # The coefficient 1e-5 is on the squared norm itself, torch's is on half of it.
        _alike(_stepped(70, 2.0, (49, 63), factor=0.2, weight_decay=2e-5)),
    ),
    "imagenet": Released(
        IcarlOptions(),
        _alike(_stepped(60, 2.0, (20, 30, 40, 50), factor=0.2, weight_decay=2e-5)),
    ),
    # The mean over all outputs is small, hence the high rate.
    "digits": Released(IcarlOptions(), _alike(Schedule(20, 1.0, batch_size=32))),
}
_UCIR_SMALL = _stepped(160, 0.1, (80, 120), weight_decay=5e-4)
_UCIR_LARGE = _stepped(90, 0.1, (30, 60), weight_decay=1e-4)
_ICARL_SOFTMAX = {
    "small": Released(IcarlSoftmaxOptions(), _alike(_UCIR_SMALL)),
    "imagenet": Released(IcarlSoftmaxOptions(), _alike(_UCIR_LARGE)),
    "digits": Released(IcarlSoftmaxOptions(), _alike(_DIGITS)),
}
_BIC = {
    "small": Released(
        BicOptions(),
        _alike(
            _stepped(250, 0.1, (100, 150, 200), weight_decay=2e-4),
            replace(BIAS_STAGE, batch_size=128),
        ),
        selection="greedy",
    ),
    "imagenet": Released(
        BicOptions(),
        _alike(_stepped(100, 0.1, (30, 60, 80, 90), weight_decay=1e-4, batch_size=256), BIAS_STAGE),
        selection="greedy",
    ),
    "digits": Released(
        BicOptions(),
        _alike(_DIGITS, Schedule(20, 0.1, "constant", batch_size=32, weight_decay=0.0)),
        selection="greedy",
    ),
}
_UCIR = {
    "small": Released(UcirOptions(lambda_base=5.0), _alike(_UCIR_SMALL)),
    "imagenet100": Released(UcirOptions(lambda_base=10.0), _alike(_UCIR_LARGE), "ucir18"),
    # Only the script for ImageNet-1000 fine-tunes on balanced exemplars.
    "imagenet": Released(
        UcirOptions(lambda_base=10.0),
        _alike(_UCIR_LARGE, _stepped(20, 0.01, (10,), weight_decay=1e-4)),
        "ucir18",
    ),
    "digits": Released(UcirOptions(lambda_base=5.0), _alike(_DIGITS)),
}
# AFC is a fork of PODNet, and has its schedules on CIFAR-100.
_POD_SMALL = _alike(_cosine(160, 0.1, 128, 5e-4), _constant(20, 0.05, 128, 5e-4))
_PODNET = {
    "small": Released(
        PodnetOptions(),
        _POD_SMALL,
        "podnet32",
        brightness=_JITTER,
    ),
    "imagenet100": Released(
        PodnetOptions(spatial=8.0, flat=10.0),
        _alike(_cosine(90, 0.05, 64, 5e-4), _constant(20, 0.01, 64, 5e-4)),
        "podnet18",
        brightness=_JITTER,
    ),
    "imagenet": Released(
        PodnetOptions(spatial=8.0, flat=10.0),
        _alike(_cosine(90, 0.05, 64, 1e-4), _constant(20, 0.01, 64, 1e-4)),
        "podnet18",
        brightness=_JITTER,
    ),
    "digits": Released(PodnetOptions(), _alike(_DIGITS_POD, _DIGITS_FINISH), "podnet14"),
}
_AFC = {
    "small": Released(
        AfcOptions(),
        _POD_SMALL,
        "podnet32",
        brightness=_JITTER,
    ),
    "imagenet": Released(
        AfcOptions(lambda_base=10.0),
        _alike(_cosine(90, 0.1, 128, 1e-4), _constant(20, 0.02, 128, 1e-4)),
        "podnet18",
        brightness=_JITTER,
    ),
    "digits": Released(AfcOptions(), _alike(_DIGITS_POD, _DIGITS_FINISH), "podnet14"),
}
_CCIL_SMALL = Schedules(
    Schedule(120, 0.1, batch_size=100, weight_decay=5e-4),
    Schedule(120, 0.01, batch_size=100, weight_decay=5e-4),
)
_CCIL_100 = Schedules(
    _stepped(70, 0.1, (30, 60), weight_decay=5e-4), _stepped(70, 0.01, (20, 35), weight_decay=5e-4)
)
_CCIL_1000 = Schedules(
    _stepped(70, 0.1, (30, 60), weight_decay=1e-4), _stepped(70, 0.01, (20, 35), weight_decay=1e-4)
)
_CCIL = {
    "small": Released(CcilOptions(), _CCIL_SMALL, selection="random"),
    "imagenet100": Released(CcilOptions(lambda_base=100.0), _CCIL_100, selection="random"),
    "imagenet": Released(CcilOptions(lambda_base=600.0), _CCIL_1000, selection="random"),
    "digits": Released(CcilOptions(lambda_base=0.5), _alike(_DIGITS), selection="random"),
}

_RELEASED = {
    "icarl": _ICARL,
    "icarl-softmax": _ICARL_SOFTMAX,
    "bic": _BIC,
    "ucir": _UCIR,
    "podnet": _PODNET,
    "ccil": _CCIL,
    "afc": _AFC,
}


def released(host: str, kind: str) -> Released:
    """What a baseline was released with for some kind of data, such as ``imagenet100``."""
    known = _RELEASED[host]
    if kind == "imagenet100" and kind not in known:
        kind = "imagenet"
    return known.get(kind, known["small"])
