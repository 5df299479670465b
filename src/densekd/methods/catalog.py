"""The names of the methods, and the one place where a name becomes a method."""

import difflib

from densekd.methods.dense import Course, DenseOptions, dense, finetune, joint
from densekd.methods.method import Method

METHODS = {
    "finetune": "replay of exemplars, no distillation",
    "joint": "upper bound: all images of all tasks so far",
    "gkd": "distils on all old classes together (Eq. 1)",
    "tkd": "distils on each old task by itself (Eq. 2)",
    "fdkd": "distils on every group of old tasks, exactly (Eq. 3)",
    "rdkd": "distils on a random group of old tasks at each step (Eq. 4)",
    "gkd-adaptive": "gkd with the adaptive weight (Eq. 5)",
    "tkd-adaptive": "tkd with the adaptive weight",
    "fdkd-adaptive": "fdkd with the adaptive weight",
    "rdkd-adaptive": "rdkd with the adaptive weight: the paper's full method",
}


def make_method(name: str, options: DenseOptions, course: Course) -> Method:
    """The method of that name; see `METHODS`."""
    check_method(name)
    if name == "finetune":
        return finetune(options, course)
    if name == "joint":
        return joint(options, course)
    return dense(name, options, course)


def check_method(name: str) -> None:
    """Raise a ValueError that proposes the nearest name unless there is such a method."""
    if name not in METHODS:
        near = difflib.get_close_matches(name.lower(), METHODS, n=1)
        proposal = f"did you mean {near[0]}? There are" if near else "choose one of"
        raise ValueError(f"There is no method {name!r}; {proposal} {', '.join(METHODS)}.")
