"""Compare heads on frozen features of photos: few photos, unequal classes, near-duplicates.

Candidates are compared on training photos alone: each is fitted on some and tested on the others.
Only the last table is of test photos, for the chosen head and references.

    python benchmarks/feature_heads.py DATA CACHE [--seeds 4] [--only STUDY]
"""

import math
import statistics
import time
from collections.abc import Callable

import torch
from photo_features import Photos, join, print_table, run_studies
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from densekd.model.frozen.head import fit_head

Logits = Callable[[Tensor], Tensor]
Fit = Callable[[Photos], Logits]
Draw = Callable[[int], tuple[Photos, Photos]]  # by seed, photos to fit and to test

REGULARISATION = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def scaling(photos: Photos) -> Callable[[Tensor], Tensor]:
    """Centre on the mean of the class means and divide by the RMS norm, times 10."""
    weights = _weights(photos)
    centre = weights @ photos.x
    radius = (weights @ (photos.x - centre).square().sum(1)).sqrt().clamp(min=1e-6)
    return lambda features: (features - centre) * (10 / radius)


def softmax(l2: float, power: float, shift: bool, most: float = math.inf) -> Fit:
    """Logistic regression by L-BFGS.

    Args:
        l2: multiplies the squared weights.
        power: a photo of a class of n photos counts ``n ** -power``.
        shift: add the log frequency of its class to each logit while fitting.
        most: a class of more photos counts as if it had so many.
    """

    def fit(photos: Photos) -> Logits:
        counts = torch.bincount(photos.labels).float().clamp(max=most)
        sample = _weights(photos) * counts.pow(1 - power)[photos.labels]
        sample = sample / sample.sum()
        scale = scaling(photos)
        x = scale(photos.x)
        prior = (counts / counts.sum()).log() if shift else torch.zeros(len(counts))
        weight = torch.zeros(len(counts), x.shape[1], requires_grad=True)
        bias = torch.zeros(len(counts), requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [weight, bias], max_iter=60, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            losses = cross_entropy(x @ weight.T + bias + prior, photos.labels, reduction="none")
            loss = sample @ losses + l2 * weight.square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        return lambda features: scale(features) @ weight.detach().T + bias.detach()

    return fit


def nearest_mean(photos: Photos) -> Logits:
    means = normalize(class_means(photos.x, photos.labels))
    return lambda features: features @ means.T


def ridge(photos: Photos) -> Logits:
    scale, sample = scaling(photos), _weights(photos)
    x, targets = scale(photos.x), one_hot(photos.labels).float() * 2 - 1
    weighted = (x * sample[:, None]).T
    weight = torch.linalg.solve(weighted @ x + torch.eye(x.shape[1]), weighted @ targets)
    return lambda features: scale(features) @ weight


def slda(photos: Photos) -> Logits:
    """Linear discriminant analysis; three tenths of the shared covariance are isotropic."""
    scale = scaling(photos)
    x = scale(photos.x)
    means = class_means(x, photos.labels)
    inside = x - means[photos.labels]
    covariance = inside.T @ inside / len(x)
    level = (covariance.trace() / len(covariance)).clamp(min=1e-3)
    covariance = 0.7 * covariance + 0.3 * level * torch.eye(len(covariance))
    weight = torch.linalg.solve(covariance, means.T)
    return lambda features: scale(features) @ weight - (weight * means.T).sum(0) / 2


def chosen(photos: Photos) -> Logits:
    """Fit the head of `densekd learn`."""
    return fit_head(photos.x, photos.labels, photos.classes).scores


def class_means(x: Tensor, labels: Tensor) -> Tensor:
    hot = one_hot(labels).float()
    return (hot.T @ x) / hot.sum(0)[:, None]


def _weights(photos: Photos) -> Tensor:
    """Each class weighs the same."""
    return 1 / (photos.classes * torch.bincount(photos.labels)[photos.labels])


REFERENCES: dict[str, Fit] = {"nearest mean": nearest_mean, "SLDA": slda, "ridge": ridge}
KINDS = {
    "weights 1/n": (1.0, False),
    "shift": (0.0, True),
    "weights 1/n, shift": (1.0, True),
    "weights 1/√n, shift": (0.5, True),
}
CHOSEN = "**the head of `learn`**"


def recalls(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of each class's photos that is named right."""
    right = (logits.argmax(1) == labels).float()
    return class_means(right[:, None], labels).flatten()


def compare(heads: dict[str, Fit], draws: dict[str, Draw], seeds: int, rare: bool) -> None:
    """Print macro accuracies; with ``rare``, also those of the smallest and largest classes."""
    cells: dict[str, list[str]] = {name: [] for name in heads}
    for draw in draws.values():
        both = [draw(seed) for seed in range(seeds)]
        for name, fit in heads.items():
            macro, sizes = [], []
            for fitted, tested in both:
                each = recalls(fit(fitted)(tested.x), tested.labels) * 100
                counts = torch.bincount(fitted.labels)
                macro.append(float(each.mean()))
                sizes.append([float(each[counts == n].mean()) for n in counts.aminmax()])
            spread = statistics.stdev(macro) if seeds > 1 else 0.0
            small, large = (statistics.mean(x) for x in zip(*sizes, strict=True))
            cell = f"{statistics.mean(macro):.1f} ± {spread:.1f}"
            cells[name].append(cell + (f" ({small:.0f}, {large:.0f})" if rare else ""))
    print_table(list(draws), cells)


def every_fourth(cifar: Photos) -> Photos:
    return cifar.of(range(0, cifar.classes, 4))


def equal(photos: Photos, count: int) -> Draw:
    return lambda seed: photos.draw([count] * photos.classes, seed)


def half(photos: Photos, few: int, many: int) -> Draw:
    """Every other class has few photos."""
    return lambda seed: photos.draw(
        [few if (label + seed) % 2 else many for label in range(photos.classes)], seed
    )


def one_new(photos: Photos, few: int, many: int) -> Draw:
    """One class, another for each seed, has few photos."""
    return lambda seed: photos.draw(
        [few if label == 3 * seed % photos.classes else many for label in range(photos.classes)],
        seed,
    )


def one_large(photos: Photos, few: int, many: int, rare: int) -> Draw:
    """All classes but ``rare`` of them are one class."""

    def draw(seed: int) -> tuple[Photos, Photos]:
        counts = [few if (label + seed) % rare == 0 else many for label in range(photos.classes)]
        rank = torch.full((photos.classes,), 0)
        small = torch.tensor([label for label, count in enumerate(counts) if count == few])
        rank[small] = torch.arange(1, len(small) + 1)
        fitted, tested = photos.draw(counts, seed)
        return Photos(fitted.x, rank[fitted.labels]), Photos(tested.x, rank[tested.labels])

    return draw


def with_copies(photos: Photos, mirrored: Photos, count: int) -> Draw:
    """Every other class has its photos mirrored too, and all of these four times, as in bursts."""

    def draw(seed: int) -> tuple[Photos, Photos]:
        order = Photos(torch.arange(len(photos.labels))[:, None].float(), photos.labels)
        chosen, rest = (x.long().flatten() for x, _ in order.draw([count] * photos.classes, seed))
        copied = chosen[(photos.labels[chosen] + seed) % 2 == 0]
        burst = join([photos.take(copied), mirrored.take(copied)] * 4)
        noise = torch.Generator().manual_seed(seed)
        jitter = 1 + 0.05 * torch.randn(burst.x.shape, generator=noise)
        burst = Photos(normalize(burst.x * jitter), burst.labels)
        return join([photos.take(chosen), burst]), photos.take(rest)

    return draw


def all_heads() -> dict[str, Fit]:
    heads = REFERENCES | {
        f"{kind}, L2 {l2:g}": softmax(l2, *how)
        for kind, how in KINDS.items()
        for l2 in REGULARISATION
    }
    return heads | {CHOSEN: chosen}


def study_equal(photos: dict[str, Photos], seeds: int) -> None:
    """With equal classes the weights and the shift change nothing."""
    clothing, some = photos["clothing train"], every_fourth(photos["cifar train"])
    heads = REFERENCES | {f"softmax, L2 {l2:g}": softmax(l2, 0.0, False) for l2 in REGULARISATION}
    draws = {f"clothing, {count}": equal(clothing, count) for count in (1, 5, 20, 100)}
    draws |= {f"25 of CIFAR, {count}": equal(some, count) for count in (1, 5, 20)}
    compare(heads, draws, seeds, rare=False)


def study_many(photos: dict[str, Photos], seeds: int) -> None:
    heads = REFERENCES | {CHOSEN: chosen}
    compare(heads, {"100 of CIFAR, 30": equal(photos["cifar train"], 30)}, seeds, rare=False)


def study_unequal(photos: dict[str, Photos], seeds: int) -> None:
    clothing = photos["clothing train"]
    draws = {f"clothing, half {few} : 80": half(clothing, few, 80) for few in (1, 3)}
    draws |= {f"one {few} : 80": one_new(clothing, few, 80) for few in (1, 5)}
    compare(all_heads(), draws, seeds, rare=True)


def study_unequal_cifar(photos: dict[str, Photos], seeds: int) -> None:
    some = every_fourth(photos["cifar train"])
    draws = {"CIFAR, half 3 : 30": half(some, 3, 30), "one 5 : 30": one_new(some, 5, 30)}
    compare(all_heads(), draws, seeds, rare=True)


def study_copies(photos: dict[str, Photos], seeds: int) -> None:
    copies = with_copies(photos["clothing train"], photos["clothing mirrored"], 20)
    compare(all_heads(), {"clothing, 20, half with 8 copies each": copies}, seeds, rare=False)


def study_cosines(photos: dict[str, Photos], seeds: int) -> None:
    """To the mirror image, and to the most similar other photo of the class."""
    clothing, mirrored = photos["clothing train"], photos["clothing mirrored"]
    cosines = clothing.x @ clothing.x.T - 2 * torch.eye(len(clothing.x))
    same = clothing.labels[:, None] == clothing.labels
    kinds = {
        "mirror image": (clothing.x * mirrored.x).sum(1),
        "another photo": cosines.where(same, -1).amax(1),
    }
    shares = torch.tensor([0, 0.05, 0.5, 0.95, 0.99, 1])
    rows = {name: [f"{q:.2f}" for q in x.quantile(shares).tolist()] for name, x in kinds.items()}
    print_table(["least", "5 %", "median", "95 %", "99 %", "largest"], rows)


def study_large(photos: dict[str, Photos], seeds: int) -> None:
    large = {"CIFAR, 20 of 5 : one of 2,960": one_large(photos["cifar train"], 5, 37, 5)}
    compare(all_heads(), large, seeds, rare=True)
    limited = {
        f"at most {most} photos": softmax(2e-3, *KINDS["weights 1/√n, shift"], most)
        for most in (50, 100, 200, 400)
    }
    compare(limited, large, seeds, rare=True)


def study_time(photos: dict[str, Photos], seeds: int) -> None:
    cifar, times = photos["cifar train"], {}
    thousands = join([cifar, cifar, cifar.take(torch.arange(2000))])
    noise = torch.randn(thousands.x.shape, generator=torch.Generator().manual_seed(0))
    many = Photos(normalize(thousands.x * (1 + 0.1 * noise)), thousands.labels)
    sets = {"clothing": photos["clothing train"], "CIFAR": cifar, "CIFAR with noise": many}
    for name, given in sets.items():
        seconds = []
        for _ in range(seeds):
            start = time.process_time()
            chosen(given)
            seconds.append(time.process_time() - start)
        size = f"{name}: {len(given.labels)} photos, {given.classes} classes"
        times[size] = [f"{statistics.median(seconds):.2f}"]
    print_table(["processor seconds"], times)


def study_test(photos: dict[str, Photos], seeds: int) -> None:
    heads = REFERENCES | {"weights 1/n, L2 0.001": softmax(1e-3, 1.0, False)}
    heads |= {CHOSEN: chosen}

    def tested(kind: str, draw: Callable[..., Draw], *counts: int) -> Draw:
        train, test = photos[f"{kind} train"], photos[f"{kind} test"]
        return lambda seed: (draw(train, *counts)(seed)[0], test)

    whole = {
        "clothing, all": tested("clothing", equal, 120),
        "100 of CIFAR, 40": tested("cifar", equal, 40),
    }
    compare(heads, whole, 1, rare=False)
    draws = {f"clothing, {count}": tested("clothing", equal, count) for count in (1, 5, 20, 100)}
    draws |= {"half 3 : 80": tested("clothing", half, 3, 80)}
    draws |= {"one 5 : 80": tested("clothing", one_new, 5, 80)}
    compare(heads, draws, seeds, rare=True)


STUDIES = {
    "equal": study_equal,
    "many": study_many,
    "unequal": study_unequal,
    "unequal-cifar": study_unequal_cifar,
    "copies": study_copies,
    "cosines": study_cosines,
    "large": study_large,
    "time": study_time,
    "test": study_test,
}


if __name__ == "__main__":
    run_studies(STUDIES)
