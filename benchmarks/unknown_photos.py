"""Compare rules that say "unknown" for photos of what a model on frozen features was never taught.

A score says how known a photo looks. Four folds give each taught photo a score by a model that did
not see it; the threshold is their quantile. Candidates are compared on training photos alone. Only
the last tables are of test photos, for the chosen score and references.

    python benchmarks/unknown_photos.py DATA CACHE [--seeds 4] [--only STUDY]
"""

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from feature_heads import chosen, class_means, one_new, recalls, scaling, with_copies
from photo_features import Photos, print_table, run_studies
from torch import Tensor
from torch.nn.functional import normalize

from densekd.model.frozen.unknown import REFUSED, cross_scores, fit_unknown

Scores = dict[str, Tensor]  # by name, [n]; high for known photos
Score = Callable[[Tensor], Scores]
Setting = tuple[Photos, Photos, dict[str, Tensor]]  # taught, known and unknown photos

FOLDS = 4
CONFIDENCE = 1.28  # standard deviations: nine times of ten fewer photos are refused than allowed
CHOSEN_SCORE = "max logit + mean cosine"
SUMS = {
    f"{logit} + {distance}": (logit, distance)
    for logit, distance in [
        ("max logit", "mean cosine"),
        ("energy", "mean cosine"),
        ("probability", "mean cosine"),
        ("max logit", "cosine to mean"),
        ("max logit", "5 neighbours"),
        ("max logit", "residual"),
        ("max logit", "Mahalanobis 0.9"),
    ]
}


def quick_scores(photos: Photos) -> Score:
    """Fit the chosen score and its parts."""
    head, means = chosen(photos), class_means(photos.x, photos.labels)

    def score(x: Tensor) -> Scores:
        logits = head(x)
        return {
            "probability": logits.softmax(1).amax(1),
            "max logit": logits.amax(1),
            # The mean of the cosines to a class's photos: however few they are, the same is
            # expected of another photo. The cosine to their mean would be lower for few.
            "mean cosine": (x @ means.T).amax(1),
        }

    return score


def all_scores(photos: Photos) -> Score:
    """Fit every candidate but the sums."""
    head, scale, quick = chosen(photos), scaling(photos), quick_scores(photos)
    x, unit = scale(photos.x) / 10, photos.x
    means = class_means(x, photos.labels)
    _, values, axes = torch.linalg.svd(x - means[photos.labels], full_matrices=False)
    variances = values.square() / max(1, len(x) - len(means))
    level = variances.sum() / x.shape[1]
    directions = normalize(class_means(unit, photos.labels))
    main = torch.linalg.svd(unit, full_matrices=False)[2][:64]

    def distances(z: Tensor, centres: Tensor, shrink: float) -> Tensor:
        """Squared Mahalanobis distances; ``shrink`` of the covariance is isotropic."""
        rest = shrink * level + 1e-6
        lost = (1 / rest - 1 / ((1 - shrink) * variances + rest)).sqrt()[:, None] * axes
        inside = torch.cdist(z @ lost.T, centres @ lost.T).square()
        whole: Tensor = torch.cdist(z, centres).square() / rest
        return whole - inside

    def score(features: Tensor) -> Scores:
        logits, z = head(features), scale(features) / 10
        log_probability = logits.log_softmax(1)
        near = (features @ unit.T).topk(min(5, len(unit)), 1).values
        origin = torch.zeros(1, z.shape[1])
        relative = distances(z, origin, 0.6)[:, 0] - distances(z, means, 0.6).amin(1)
        return quick(features) | {
            "energy": logits.logsumexp(1),
            "-entropy": (log_probability.exp() * log_probability).sum(1),
            "cosine to mean": (features @ directions.T).amax(1),
            "5 neighbours": near.mean(1),
            "Mahalanobis 0.3": -distances(z, means, 0.3).amin(1).clamp(min=0).sqrt(),
            "Mahalanobis 0.9": -distances(z, means, 0.9).amin(1).clamp(min=0).sqrt(),
            "relative Mahalanobis": relative,
            "residual": -(1 - (features @ main.T).square().sum(1)).clamp(min=0).sqrt(),
        }

    return score


def add_sums(scores: Scores, reference: Scores) -> Scores:
    """Add sums of two scores, each divided by its deviation among taught photos."""
    sums = {
        name: scores[a] / reference[a].std() + scores[b] / reference[b].std()
        for name, (a, b) in SUMS.items()
        if a in scores and b in scores
    }
    return scores | sums


def out_of_fold(photos: Photos, fit: Callable[[Photos], Score], seed: int) -> Scores:
    """Score each photo by a model of the other folds; the only photo of a class has no score."""
    order, fold = torch.Generator().manual_seed(seed), torch.empty_like(photos.labels)
    counts = torch.bincount(photos.labels)
    for label in range(photos.classes):
        own = torch.nonzero(photos.labels == label).flatten()
        fold[own[torch.randperm(len(own), generator=order)]] = torch.arange(len(own)) % FOLDS
    fold[counts[photos.labels] == 1] = -1
    parts = []
    for number in range(FOLDS):
        left = torch.nonzero(fold == number).flatten()
        if len(left):
            kept = photos.take(torch.nonzero(fold != number).flatten())
            parts.append(fit(kept)(photos.x[left]))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def threshold(scores: Tensor) -> Tensor:
    """Return the score below which at most 5 % of known photos are, nine times of ten."""
    count = len(scores)
    allowed = REFUSED * count - CONFIDENCE * math.sqrt(count * REFUSED * (1 - REFUSED))
    return scores.sort().values[max(0, math.floor(allowed))]


def measure(setting: Setting, seed: int) -> dict[str, list[float]]:
    """By score, the percentage of known and of unknown photos refused."""
    taught, known, unknown = setting
    reference, score = out_of_fold(taught, all_scores, seed), all_scores(taught)
    shown = [add_sums(score(x), reference) for x in (known.x, *unknown.values())]
    limits = add_sums(reference, reference)
    return {
        name: [float((x[name] < threshold(limit)).float().mean()) * 100 for x in shown]
        for name, limit in limits.items()
    }


def refused_by_rule(setting: Setting) -> list[list[float]]:
    """By allowed share, what the rule of `densekd learn` refuses: % of known, of unknown photos."""
    taught, known, unknown = setting
    crossed = cross_scores(*taught, taught.classes)
    rule, head = fit_unknown(*taught, taught.classes, crossed), chosen(taught)
    shown = [rule.familiarity(x, head(x)) for x in (known.x, *unknown.values())]
    return [
        [float((x < rule.threshold(share)).float().mean()) * 100 for x in shown]
        for share in (0.01, REFUSED, 0.1)
    ]


def cell(measured: Sequence[Sequence[float]]) -> str:
    means = [statistics.mean(x) for x in zip(*measured, strict=True)]
    return f"{means[0]:.1f}: " + ", ".join(f"{x:.0f}" for x in means[1:])


def without(photos: Photos, seed: int) -> tuple[Photos, Photos]:
    """Three classes of clothing, others for each seed, are not taught."""
    left = [(3 * seed + i) % photos.classes for i in range(3)]
    return photos.of([c for c in range(photos.classes) if c not in left]), photos.of(left)


def every_fourth(photos: Photos, seed: int) -> tuple[Photos, Photos]:
    """A fourth of the classes is taught, another for each seed."""
    taught = [c for c in range(photos.classes) if (c + seed) % 4 == 0]
    return photos.of(taught), photos.of([c for c in range(photos.classes) if c not in taught])


def study_scores(photos: dict[str, Photos], seeds: int) -> None:
    clothing, cifar = photos["clothing train"], photos["cifar train"]

    def near(count: int) -> Callable[[int], Setting]:
        def setting(seed: int) -> Setting:
            own, other = without(clothing, seed)
            return *own.draw([count] * own.classes, seed), {"other": other.x}

        return setting

    def far(seed: int) -> Setting:
        taught, known = clothing.draw([80] * 10, seed)
        return taught, known, {"CIFAR": cifar.x[seed::4]}

    def small(seed: int) -> Setting:
        own, other = every_fourth(cifar, seed)
        taught, known = own.draw([30] * own.classes, seed)
        return taught, known, {"other": other.x[::3], "clothing": clothing.x[::4]}

    settings = {f"7 of clothing, {count}: other 3": near(count) for count in (5, 20, 80)}
    settings |= {"clothing, 80: CIFAR": far, "25 of CIFAR, 30: other 75, clothing": small}
    rows: dict[str, list[str]] = {}
    for setting in settings.values():
        each = [measure(setting(seed), seed) for seed in range(seeds)]
        for name in each[0]:
            rows.setdefault(name, []).append(cell([seed[name] for seed in each]))
    print_table(list(settings), rows)


def study_folds(photos: dict[str, Photos], seeds: int) -> None:
    rows = {}
    for count in (5, 20, 80):
        ways: dict[str, list[tuple[float, float]]] = {}
        for seed in range(2 * seeds):
            taught, known = photos["clothing train"].draw([count] * 10, seed)
            less, left = taught.draw([count * 4 // 5] * 10, seed)
            for way, fitted in {"four folds": taught, "a fifth held out": less}.items():
                score = quick_scores(fitted)
                reference = (
                    score(left.x) if fitted is less else out_of_fold(taught, quick_scores, 0)
                )
                limit = threshold(add_sums(reference, reference)[CHOSEN_SCORE])
                refused = add_sums(score(known.x), reference)[CHOSEN_SCORE] < limit
                right = recalls(chosen(fitted)(known.x), known.labels).mean()
                ways.setdefault(way, []).append((float(right), float(refused.float().mean())))
        for way, measured in ways.items():
            macro, shares = ([100 * x for x in column] for column in zip(*measured, strict=True))
            rows[f"{way}, {count} photos a class"] = [
                f"{statistics.mean(macro):.1f}",
                f"{statistics.mean(shares):.1f} ± {statistics.stdev(shares):.1f}",
            ]
    print_table(["macro accuracy", "known refused"], rows)


def study_test(photos: dict[str, Photos], seeds: int) -> None:
    clothing, cifar = photos["clothing train"], photos["cifar train"]
    fixed = {"digits": photos["digits"].x}
    for kind, name in enumerate(("pixel noise", "blurred noise", "plain colours")):
        fixed[name] = photos["noise"].of([kind]).x
    far = {"CIFAR": photos["cifar test"].x} | fixed

    def of_clothing(count: int) -> Callable[[int], Setting]:
        return lambda seed: (clothing.draw([count] * 10, seed)[0], photos["clothing test"], far)

    def of_seven(seed: int) -> Setting:
        known, other = without(photos["clothing test"], seed)
        return without(clothing, seed)[0], known, {"other": other.x}

    def of_cifar(seed: int) -> Setting:
        known, other = every_fourth(photos["cifar test"], seed)
        unknown = {"other": other.x, "clothing": photos["clothing test"].x} | fixed
        return every_fourth(cifar, seed)[0], known, unknown

    def added(seed: int) -> Setting:
        """A class of 5 photos beside 80 each; its own photos must not be refused."""
        new = photos["clothing test"].of([3 * seed % 10]).x
        return one_new(clothing, 5, 80)(seed)[0], photos["clothing test"], {"the new class": new}

    def copied(seed: int) -> Setting:
        draw = with_copies(clothing, photos["clothing mirrored"], 20)
        return draw(seed)[0], photos["clothing test"], far

    models = {
        f"clothing, all: {', '.join(far)}": (of_clothing(120), 1),
        f"25 of CIFAR, 40: other 75, clothing, {', '.join(fixed)}": (of_cifar, seeds),
        "7 of clothing, all: other 3": (of_seven, seeds),
        "clothing, 5": (of_clothing(5), seeds),
        "clothing, 2": (of_clothing(2), seeds),
        "clothing, 20, half with 8 copies each": (copied, seeds),
        "clothing, one class of 5 : 80: its own photos": (added, seeds),
    }
    rows = {}
    for title, (setting, count) in models.items():
        each = [refused_by_rule(setting(seed)) for seed in range(count)]
        rows[title] = [cell(seeds) for seeds in zip(*each, strict=True)]
    print_table(["at 1 %", "at 5 %", "at 10 %"], rows)


STUDIES = {"scores": study_scores, "folds": study_folds, "test": study_test}


if __name__ == "__main__":
    run_studies(STUDIES)
