"""The adaptive weight of a group (Eq. 5), from its size and its distance to the new classes."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.checks import check_choice
from densekd.precision import working_dtype

Similarity = Literal["literal", "normalized", "rescaled"]
SizeRatio = Literal["group", "all"]

logger = logging.getLogger(__name__)


class AdaptiveWeights:
    r"""Weights each group p of old tasks when the classes C are learned.

    .. math:: \lambda_p = \lambda_{base} \sqrt{|p| / |C|} \; s(p, C)

    s, which the paper calls a similarity, is the Euclidean distance between the mean class
    vector of p and that of C; a class vector is the mean pooled feature of the class's images.
    `densekd.DenseDistillation` takes an object of this class as ``weights``::

        weights = AdaptiveWeights(lambda_base=20.0)
        weights.add_task(vectors)  # after each learned task: its class vectors
        weights.set_new(new_vectors)  # before the next task: the class vectors of its classes
        kd = loss(student, teacher, sizes, generator=generator, weights=weights)

    Args:
        lambda_base: a constant for each data set.
        similarity: ``literal`` takes s as written, so that it grows with the features' norm;
            ``normalized`` averages L2-normalised features instead (`class_vectors` does it);
            ``rescaled`` divides s by s(all old classes, C).
        ratio: ``group`` takes the size of each group, ``all`` the number of old classes.

    Example:
        >>> import torch
        >>> from densekd import AdaptiveWeights, DenseDistillation
        >>> weights = AdaptiveWeights(lambda_base=20.0)
        >>> weights.add_task(torch.zeros(2, 8))
        >>> weights.set_new(torch.ones(2, 8))
        >>> loss = DenseDistillation("whole")
        >>> loss(torch.eye(2), torch.ones(2, 2), [2], weights=weights).item() > 0
        True
    """

    def __init__(
        self, lambda_base: float, similarity: Similarity = "literal", ratio: SizeRatio = "group"
    ) -> None:
        if not (math.isfinite(lambda_base) and lambda_base >= 0):
            raise ValueError(f"lambda_base must be a number of at least 0, not {lambda_base!r}.")
        check_choice("similarity", similarity, get_args(Similarity))
        check_choice("ratio", ratio, get_args(SizeRatio))
        self.lambda_base = lambda_base
        self.similarity: Similarity = similarity
        self.ratio: SizeRatio = ratio
        self._tasks: list[Tensor] = []
        self._new: Tensor | None = None
        self._means: _Means | None = None

    def class_vectors(self, features: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Average pooled features ``[n, D]`` of a task by class, to ``[classes, D]``.

        ``labels``, ``[n]``, are classes within the task: 0 to ``classes`` - 1, each at least once.
        """
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            raise ValueError(
                "Class vectors need features [n, D] and labels [n], not "
                f"{list(features.shape)} and {list(labels.shape)}."
            )
        if labels.is_floating_point() or bool((labels < 0).any()):
            raise ValueError("Labels within a task are whole numbers from 0.")
        counts = torch.bincount(labels, minlength=classes)
        if len(counts) != classes or not counts.all():
            raise ValueError(
                f"Each of the {classes} classes needs an image, and no other label may occur; "
                f"the labels occur {counts.tolist()} times."
            )
        features = features.detach().to(working_dtype(features.device))
        if self.similarity == "normalized":
            features = normalize(features, dim=1)
        sums = features.new_zeros(classes, features.shape[1]).index_add(0, labels, features)
        return sums / counts[:, None]

    def add_task(self, vectors: Tensor) -> None:
        """Add one learned task, by its class vectors ``[classes, D]``."""
        self._tasks.append(self._checked(vectors))
        self._new = self._means = None

    @property
    def tasks(self) -> int:
        """How many learned tasks there are."""
        return len(self._tasks)

    def replace_old(self, vectors: Tensor, sizes: Sequence[int] | None = None) -> None:
        """Replace the vectors of all learned tasks, ``[old classes, D]``, by recomputed ones.

        ``sizes`` are the numbers of classes of the tasks, by default as before.
        """
        sizes = [len(task) for task in self._tasks] if sizes is None else sizes
        if len(vectors) != sum(sizes):
            raise ValueError(f"{len(vectors)} class vectors for {sum(sizes)} old classes.")
        self._tasks = list(self._checked(vectors).split(list(sizes)))
        self._new = self._means = None

    def set_new(self, vectors: Tensor) -> None:
        """Set the classes about to be learned, by vectors ``[classes, D]`` of the old network.

        Logs s of all old classes and of each task.
        """
        if not self._tasks:
            raise ValueError("No task was learned yet: call add_task() before set_new().")
        new = self._checked(vectors)
        # Vectors loaded from a file are on the CPU.
        tasks = [task.to(new) for task in self._tasks]
        means = _Means(
            torch.stack([task.sum(0) for task in tasks]),
            new.new_tensor([len(task) for task in tasks]),
            new.mean(0),
            new.new_tensor(len(new)),
            new.new_ones(()),
        )
        each = torch.eye(len(tasks), dtype=torch.bool, device=new.device)
        overall = means.distance(each.any(0))
        if self.similarity == "rescaled":
            if overall == 0:
                raise ValueError("Old and new classes have the same mean vector: can't rescale s.")
            means = means._replace(unit=overall)
        self._tasks, self._new, self._means = tasks, new, means
        by_task = ", ".join(f"{s:.4g}" for s in means.distance(each).tolist())
        logger.info("s(all old, new) = %.4g; by task: %s", overall.item(), by_task)

    def distance(self, masks: Tensor) -> Tensor:
        """s(p, C) as written, for bool ``[..., t]`` groups: ``[...]``."""
        return self._on(masks).distance(masks)

    def __call__(self, masks: Tensor) -> Tensor:
        """The weights of bool ``[..., t]`` groups: ``[...]``."""
        means = self._on(masks)
        classes = means.sizes.sum() if self.ratio == "all" else means.classes(masks)
        s = means.distance(masks) / means.unit
        return self.lambda_base * (classes / means.added).sqrt() * s

    def state_dict(self) -> dict[str, Tensor]:
        """The class vectors of all tasks and of the new classes, by name."""
        state = {f"tasks.{task}": vectors for task, vectors in enumerate(self._tasks)}
        return state if self._new is None else {**state, "new": self._new}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        tasks = [name for name in state if name != "new"]
        if sorted(tasks) != sorted(f"tasks.{task}" for task in range(len(tasks))):
            raise ValueError(f"Not a state of AdaptiveWeights: it has {sorted(state)}.")
        loaded = AdaptiveWeights(self.lambda_base, self.similarity, self.ratio)
        for task in range(len(tasks)):
            loaded.add_task(state[f"tasks.{task}"])
        if "new" in state:
            loaded.set_new(state["new"])
        self._tasks, self._new, self._means = loaded._tasks, loaded._new, loaded._means

    def _checked(self, vectors: Tensor) -> Tensor:
        if vectors.ndim != 2 or 0 in vectors.shape:
            raise ValueError(f"Class vectors must be [classes, D], not {list(vectors.shape)}.")
        if self._tasks and vectors.shape[1] != self._tasks[0].shape[1]:
            raise ValueError(
                f"Class vectors have {vectors.shape[1]} dimensions, "
                f"those before had {self._tasks[0].shape[1]}."
            )
        vectors = vectors.detach().to(working_dtype(vectors.device), copy=True)
        if self.similarity == "normalized" and bool((vectors.norm(dim=1) > 1 + 1e-6).any()):
            raise ValueError(
                "similarity='normalized' takes means of L2-normalised features, as class_vectors() "
                "gives them; these are longer than 1."
            )
        return vectors

    def _on(self, masks: Tensor) -> "_Means":
        """Move the means to the masks' device, and return them."""
        if self._means is None:
            raise ValueError("The new classes are not known: call set_new() first.")
        if masks.shape[-1] != len(self._tasks):
            raise ValueError(
                f"The groups are of {masks.shape[-1]} tasks, but {len(self._tasks)} were learned."
            )
        self._means = _Means(*(x.to(masks.device) for x in self._means))
        return self._means


class _Means(NamedTuple):
    sums: Tensor  # [t, D], the sum of each task's class vectors
    sizes: Tensor  # [t], the number of classes of each task
    new: Tensor  # [D], the mean class vector of the new classes
    added: Tensor  # the number of new classes
    unit: Tensor  # what s is divided by: 1, or s of all old classes

    def classes(self, masks: Tensor) -> Tensor:
        """How many classes the groups have."""
        return masks.to(self.sizes.dtype) @ self.sizes

    def distance(self, masks: Tensor) -> Tensor:
        """The distance from the groups' mean class vectors to that of the new classes."""
        mean = (masks.to(self.sums.dtype) @ self.sums) / self.classes(masks)[..., None]
        return (mean - self.new).square().sum(-1).sqrt()
