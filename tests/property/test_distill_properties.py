"""Properties of the losses for any logits and tasks."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from densekd import DenseDistillation, TaskPool
from densekd.losses.distill import Direction, Groups, Reduction

groups_ = st.sampled_from(["whole", "each", "random", "every"])
reductions = st.sampled_from(["pool", "element", "batch"])
directions = st.sampled_from(["teacher", "student"])
few_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=7)
sizes_ = st.one_of(few_sizes, st.lists(st.integers(1, 3), min_size=13, max_size=40))
scales = st.sampled_from([0.01, 0.3, 1.0, 5.0, 30.0, 100.0])
seeds = st.integers(0, 2**32 - 1)


def logits(sizes: list[int], scale: float, seed: int, batch: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = sum(sizes)
    student = scale * torch.randn(batch, old + 2, generator=generator, dtype=torch.float64)
    teacher = scale * torch.randn(batch, old, generator=generator, dtype=torch.float64)
    return student.requires_grad_(), teacher


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def close(first: Tensor, second: Tensor, relative: float = 1e-6, absolute: float = 1e-12) -> bool:
    bound = relative * max(first.abs().max().item(), second.abs().max().item()) + absolute
    return (first - second).abs().max().item() <= bound


@given(groups_, reductions, directions, sizes_, scales, seeds)
def test_never_negative_and_zero_at_equality(
    groups: Groups,
    reduction: Reduction,
    direction: Direction,
    sizes: list[int],
    scale: float,
    seed: int,
) -> None:
    student, teacher = logits(sizes, scale, seed)
    loss = DenseDistillation(groups, reduction=reduction, direction=direction)
    assert loss(student, teacher, sizes, generator=draw()) >= -1e-12 * scale
    same = torch.nn.functional.pad(teacher, (0, 2)).requires_grad_()
    at_equality = loss(same, teacher, sizes, generator=draw())
    (gradient,) = torch.autograd.grad(at_equality, same)
    assert at_equality == 0
    assert gradient.abs().max() < 1e-15


@given(groups_, reductions, directions, sizes_, scales, seeds)
def test_adding_a_number_to_an_images_logits_changes_nothing(
    groups: Groups,
    reduction: Reduction,
    direction: Direction,
    sizes: list[int],
    scale: float,
    seed: int,
) -> None:
    student, teacher = logits(sizes, scale, seed)
    loss = DenseDistillation(groups, reduction=reduction, direction=direction)
    before = loss(student, teacher, sizes, generator=draw())
    shift = torch.tensor([-7.0, 0.5, 3.0, 20.0], dtype=torch.float64)[:, None]
    after = loss(student + shift, teacher - 2 * shift, sizes, generator=draw())
    assert close(before, after)


@given(reductions, directions, sizes_, seeds)
def test_classes_outside_the_drawn_group_get_no_gradient(
    reduction: Reduction, direction: Direction, sizes: list[int], seed: int
) -> None:
    student, teacher = logits(sizes, 1.0, seed)
    generator = torch.Generator().manual_seed(seed)
    group = TaskPool(sizes).sample(generator, 1)[0]
    generator.manual_seed(seed)
    loss = DenseDistillation("random", reduction=reduction, direction=direction)
    loss(student, teacher, sizes, generator=generator).backward()
    outside = torch.cat([~group.repeat_interleave(torch.tensor(sizes)), torch.ones(2).bool()])
    assert student.grad is not None
    assert not student.grad[:, outside].any()


@given(reductions, directions, few_sizes, scales, seeds)
def test_whole_and_each_are_the_textbook_losses(
    reduction: Reduction, direction: Direction, sizes: list[int], scale: float, seed: int
) -> None:
    student, teacher = logits(sizes, scale, seed)

    def textbook(columns: slice) -> Tensor:
        p = (teacher[:, columns] / 2).log_softmax(1)
        q = (student[:, columns] / 2).log_softmax(1)
        if direction == "student":
            p, q = q, p
        return torch.nn.functional.kl_div(q, p, reduction="batchmean", log_target=True) * 4

    classes, tasks = sum(sizes), len(sizes)
    whole = DenseDistillation("whole", reduction=reduction, direction=direction)(
        student, teacher, sizes
    )
    divisor = 1 if reduction == "batch" else classes
    assert close(whole, textbook(slice(0, classes)) / divisor)
    starts = [sum(sizes[:task]) for task in range(tasks)]
    each = DenseDistillation("each", reduction=reduction, direction=direction)(
        student, teacher, sizes
    )
    parts = [
        textbook(slice(start, start + size))
        / {"batch": 1, "pool": classes / tasks, "element": size}[reduction]
        for start, size in zip(starts, sizes, strict=True)
    ]
    assert close(each, torch.stack(parts).sum())


@given(reductions, directions, few_sizes, scales, seeds)
def test_every_is_the_mean_over_the_pool_of_the_loss_on_one_group(
    reduction: Reduction, direction: Direction, sizes: list[int], scale: float, seed: int
) -> None:
    """So `every` is the average of `random`, which draws from the pool uniformly."""
    student, teacher = logits(sizes, scale, seed)
    pool = TaskPool(sizes)
    total = torch.zeros((), dtype=torch.float64)
    columns = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for group in pool.every():
        chosen = torch.nonzero(group[columns]).flatten()
        part = DenseDistillation("whole", reduction="batch", direction=direction)(
            student[:, chosen], teacher[:, chosen], [len(chosen)]
        )
        divisor = {"pool": pool.mean_group_size, "element": len(chosen), "batch": 1}[reduction]
        total = total + part / divisor
    every = DenseDistillation("every", reduction=reduction, direction=direction)(
        student, teacher, sizes
    )
    assert close(every, total / pool.count)
    (slope,) = torch.autograd.grad(every, student)
    (expected,) = torch.autograd.grad(total / pool.count, student)
    assert close(slope, expected)


@settings(max_examples=15)
@given(reductions, st.booleans(), st.lists(st.integers(1, 4), min_size=2, max_size=30), seeds)
def test_random_averages_to_every(
    reduction: Reduction, per_image: bool, sizes: list[int], seed: int
) -> None:
    if reduction == "element":
        sizes = sizes[:12]  # beyond, `every` samples
    student, teacher = logits(sizes, 1.0, seed)
    every = DenseDistillation("every", reduction=reduction)(student, teacher, sizes)
    loss = DenseDistillation("random", reduction=reduction, draws=500, per_image=per_image)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack(
        [loss(student, teacher, sizes, generator=generator).detach() for _ in range(20)]
    )
    # Student's t with 19 degrees of freedom: 6 standard errors have a chance of 1e-5.
    assert abs(drawn.mean() - every) <= 6 * drawn.std() / math.sqrt(20) + 1e-12


@given(st.sampled_from(["whole", "each", "every"]), reductions, few_sizes, scales, seeds)
def test_permuting_tasks_with_their_columns_changes_nothing(
    groups: Groups, reduction: Reduction, sizes: list[int], scale: float, seed: int
) -> None:
    student, teacher = logits(sizes, scale, seed)
    order = torch.randperm(len(sizes), generator=draw()).tolist()
    blocks = torch.arange(sum(sizes)).split(sizes)
    columns = torch.cat([blocks[task] for task in order])
    loss = DenseDistillation(groups, reduction=reduction)
    permuted = loss(student[:, columns], teacher[:, columns], [sizes[task] for task in order])
    assert close(loss(student, teacher, sizes), permuted, 1e-8)


@given(groups_, reductions, sizes_, scales, seeds)
def test_splitting_the_batch_and_averaging_changes_nothing(
    groups: Groups, reduction: Reduction, sizes: list[int], scale: float, seed: int
) -> None:
    if groups == "every" and reduction == "element":
        sizes = sizes[:12]  # beyond, `every` samples for each image
    student, teacher = logits(sizes, scale, seed, batch=6)
    loss = DenseDistillation(groups, reduction=reduction)
    halves = [
        loss(student[rows], teacher[rows], sizes, generator=draw())
        for rows in (slice(0, 3), slice(3, 6))
    ]
    assert close(loss(student, teacher, sizes, generator=draw()), torch.stack(halves).mean(), 1e-9)


@given(reductions, few_sizes, scales, seeds)
def test_the_tasks_are_the_base_and_the_others(
    reduction: Reduction, sizes: list[int], scale: float, seed: int
) -> None:
    """Leaving out the base removes only its own term from the sum."""
    student, teacher = logits(sizes, scale, seed)
    others = DenseDistillation("each", reduction=reduction, skip_base=True)
    base = DenseDistillation("whole", reduction="batch")(
        student[:, : sizes[0]], teacher[:, : sizes[0]], sizes[:1]
    )
    divisor = {"pool": sum(sizes) / len(sizes), "element": sizes[0], "batch": 1}[reduction]
    each = DenseDistillation("each", reduction=reduction)(student, teacher, sizes)
    assert close(each, base / divisor + others(student, teacher, sizes), 1e-9)


@given(reductions, directions, st.integers(1, 9), scales, seeds)
def test_with_one_task_all_four_coincide(
    reduction: Reduction, direction: Direction, size: int, scale: float, seed: int
) -> None:
    student, teacher = logits([size], scale, seed)
    values = [
        DenseDistillation(groups, reduction=reduction, direction=direction)(
            student, teacher, [size], generator=draw()
        )
        for groups in ("whole", "each", "random", "every")
    ]
    assert all(torch.equal(value, values[0]) for value in values)
