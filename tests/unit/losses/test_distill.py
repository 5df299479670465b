import logging
import math
from collections.abc import Callable
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd import DenseDistillation, TaskPool
from densekd.losses import distill
from densekd.losses import groups as groups_module
from densekd.losses.distill import Direction, Groups, Reduction

import reference

GROUPS: tuple[Groups, ...] = get_args(Groups)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
NEW_CLASSES = 3


def logits(
    sizes: list[int], scale: float = 1.0, batch: int = 4, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(sizes) + len(sizes))
    old = sum(sizes)
    student = torch.randn(batch, old + NEW_CLASSES, generator=generator, dtype=torch.float64)
    teacher = torch.randn(batch, old, generator=generator, dtype=torch.float64)
    return (student * scale).to(dtype).requires_grad_(), (teacher * scale).to(dtype)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def group_numbers(masks: Tensor) -> list[reference.Group]:
    return [tuple(torch.nonzero(mask).flatten().tolist()) for mask in masks]


def assert_close(loss: Tensor, student: Tensor, expected: reference.Loss, tolerance: float) -> None:
    """Value and gradient within a relative tolerance, the gradient's by its largest entry."""
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.item() == pytest.approx(expected.value, rel=tolerance)
    error = np.abs(gradient.double().numpy() - expected.gradient).max()
    # A student sure of one class has a gradient of KL(student || teacher) near 0, however large the
    # loss: the digits end where those of the loss do.
    assert error <= tolerance * max(np.abs(expected.gradient).max(), 1e-9 * expected.value)


EQUAL_AND_UNEQUAL = [[3] * t for t in range(1, 11)] + [
    [7],
    [6, 1],
    [5, 2, 1],
    [1, 1, 1, 1],
    [8, 1, 2, 1, 3],
    [5, 1, 1, 1, 1, 1],
    [1, 6, 1, 2, 1, 1, 2],
    [4, 2, 2, 2, 2, 2, 2, 2],
    [6, 1, 1, 1, 1, 1, 1, 1, 1],
    [9, 1, 2, 1, 2, 1, 2, 1, 2, 1],
]


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(
    ("sizes", "direction"),
    [(sizes, "teacher") for sizes in EQUAL_AND_UNEQUAL]
    + [(sizes, "student") for sizes in EQUAL_AND_UNEQUAL if len(sizes) < 8],
    ids=str,
)
def test_value_and_gradient_equal_the_reference(
    sizes: list[int], direction: Direction, scale: float
) -> None:
    student, teacher = logits(sizes, scale)
    drawn = TaskPool(sizes).sample(generator(), 3)
    arrays = student.detach().numpy(), teacher.numpy(), sizes
    for groups in GROUPS:
        for reduction in REDUCTIONS:
            draws = 3 if groups == "random" else None
            loss = DenseDistillation(groups, reduction=reduction, draws=draws, direction=direction)
            expected = reference.distillation(
                *arrays,
                groups,
                reduction=reduction,
                direction=direction,
                drawn=group_numbers(drawn),
            )
            given = loss(student, teacher, sizes, generator=generator())
            if expected.value == 0:  # groups of one class each
                assert given.item() == 0
            else:
                assert_close(given, student, expected, 1e-5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("sizes", [[3, 1], [2, 2, 2], [5, 1, 1, 1], [1] * 6, [3] * 9], ids=str)
def test_the_integral_agrees_with_the_list(
    sizes: list[int], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, teacher = logits(sizes, scale)
    loss = DenseDistillation("every")
    listed = loss(student, teacher, sizes)
    (slope,) = torch.autograd.grad(listed, student)
    monkeypatch.setattr(distill, "_LISTED_TASKS", 1)
    integral = loss(student, teacher, sizes)
    (other,) = torch.autograd.grad(integral, student)
    assert integral.item() == pytest.approx(listed.item(), rel=1e-8)
    assert (slope - other).abs().max() <= 1e-8 * slope.abs().max()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("difference", [1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0])
@pytest.mark.parametrize("sizes", [[1, 1], [10, 10], [2, 2, 2], [5, 1, 1, 1, 1, 1]], ids=str)
def test_a_student_near_its_teacher_keeps_its_digits(
    sizes: list[int], scale: float, difference: float, direction: Direction
) -> None:
    """Where the loss is a small difference of large numbers."""
    student, teacher = logits(sizes, scale)
    old = sum(sizes)
    near = (teacher + difference * student[:, :old].detach() / scale).requires_grad_()
    drawn = TaskPool(sizes).sample(generator(), 3)
    for groups in GROUPS:
        draws = 3 if groups == "random" else None
        given = DenseDistillation(groups, draws=draws, direction=direction)(
            near, teacher, sizes, generator=generator()
        )
        expected = precisely(
            near, teacher, sizes, groups, drawn=group_numbers(drawn), direction=direction
        )
        if expected.value > 1e-15:
            assert_close(given, near, expected, 1e-5)


def precisely(
    student: Tensor, teacher: Tensor, sizes: list[int], groups: Groups, **options: Any
) -> reference.Loss:
    """The reference with NumPy's widest floats, as float64 has too few digits for these cases."""
    wide = np.longdouble
    loss = reference.distillation(
        student.detach().numpy().astype(wide),
        teacher.numpy().astype(wide),
        sizes,
        groups,
        **options,
    )
    return reference.Loss(float(loss.value), loss.gradient.astype(np.float64))


@pytest.mark.parametrize("options", [{"tau_squared": False}, {"temperature": 4.0}])
@pytest.mark.parametrize("groups", GROUPS)
def test_temperature_options_equal_the_reference(groups: Groups, options: dict[str, float]) -> None:
    sizes = [4, 2, 3]
    student, teacher = logits(sizes)
    expected = reference.distillation(
        student.detach().numpy(),
        teacher.numpy(),
        sizes,
        groups,
        tau=options.get("temperature", 2.0),
        tau_squared=bool(options.get("tau_squared", True)),
        drawn=group_numbers(TaskPool(sizes).sample(generator(), 1)),
    )
    loss = DenseDistillation(groups, **options)  # type: ignore[arg-type]
    assert_close(loss(student, teacher, sizes, generator=generator()), student, expected, 1e-9)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_total_is_the_sum_of_the_paper(reduction: Reduction) -> None:
    sizes = [4, 2, 3]
    student, teacher = logits(sizes)
    expected = reference.distillation(
        student.detach().numpy(), teacher.numpy(), sizes, "every", reduction=reduction, total=True
    )
    loss = DenseDistillation("every", reduction=reduction, total=True)
    assert_close(loss(student, teacher, sizes), student, expected, 1e-8)


@pytest.mark.parametrize("options", [{"total": False}, {"total": True}, {}], ids=str)
@pytest.mark.parametrize("skip_base", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("sizes", [[4, 2, 3], [1, 5], [3, 2, 4, 1]], ids=str)
def test_the_tasks_summed_or_averaged_from_the_first_or_second_equal_the_reference(
    sizes: list[int], reduction: Reduction, skip_base: bool, options: dict[str, Any]
) -> None:
    student, teacher = logits(sizes)
    expected = reference.distillation(
        student.detach().numpy(),
        teacher.numpy(),
        sizes,
        "each",
        reduction=reduction,
        total=options.get("total"),
        skip_base=skip_base,
        weight=lambda group: 0.5 + sum(task + 1 for task in group),
    )
    loss = DenseDistillation("each", reduction=reduction, skip_base=skip_base, **options)
    given = loss(student, teacher, sizes, weights=weigh_by_members)
    assert_close(given, student, expected, 1e-9)


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_its_base_a_single_task_costs_nothing(reduction: Reduction, total: bool) -> None:
    student, teacher = logits([4])
    loss = DenseDistillation("each", reduction=reduction, total=total, skip_base=True)
    for weights in (None, weigh_by_members):
        given = loss(student, teacher, [4], weights=weights)
        (gradient,) = torch.autograd.grad(given, student)
        assert given.item() == 0
        assert not gradient.any()
    assert loss(student * math.nan, teacher, [4]).isnan()


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_single_class_is_never_distilled_on_if_resampled(
    reduction: Reduction, per_image: bool
) -> None:
    """With two tasks of one class each, only their union can be drawn."""
    student, teacher = logits([1, 1])
    loss = DenseDistillation("random", reduction=reduction, per_image=per_image, single="resample")
    expected = reference.distillation(
        student.detach().numpy(),
        teacher.numpy(),
        [1, 1],
        "random",
        reduction=reduction,
        drawn=[(0, 1)],
    )
    source = generator()
    for _ in range(10):
        assert_close(loss(student, teacher, [1, 1], generator=source), student, expected, 1e-9)


def test_the_only_class_is_not_resampled() -> None:
    student, teacher = logits([1])
    loss = DenseDistillation("random", single="resample")
    given = loss(student, teacher, [1], generator=generator())
    (gradient,) = torch.autograd.grad(given, student)
    assert given.item() == 0
    assert not gradient.any()


def weigh_by_members(masks: Tensor) -> Tensor:
    return 0.5 + masks.double() @ torch.arange(1.0, masks.shape[-1] + 1, dtype=torch.float64)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("groups", GROUPS)
def test_group_weights_equal_the_reference(
    groups: Groups, reduction: Reduction, direction: Direction
) -> None:
    sizes = [4, 1, 3, 2]
    student, teacher = logits(sizes)
    expected = reference.distillation(
        student.detach().numpy(),
        teacher.numpy(),
        sizes,
        groups,
        reduction=reduction,
        direction=direction,
        weight=lambda group: 0.5 + sum(task + 1 for task in group),
        drawn=group_numbers(TaskPool(sizes).sample(generator(), 1)),
    )
    given = DenseDistillation(groups, reduction=reduction, direction=direction)(
        student, teacher, sizes, generator=generator(), weights=weigh_by_members
    )
    assert_close(given, student, expected, 1e-9)


@pytest.mark.parametrize("tasks", [11, 12])
def test_the_students_direction_is_exact_up_to_twelve_tasks(tasks: int) -> None:
    sizes = [3] + [1] * (tasks - 1)
    student, teacher = logits(sizes, batch=2)
    expected = reference.distillation(
        student.detach().numpy(), teacher.numpy(), sizes, "every", direction="student"
    )
    given = DenseDistillation("every", direction="student")(student, teacher, sizes)
    assert_close(given, student, expected, 1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_draws_per_image_equal_the_reference_image_by_image(
    reduction: Reduction, direction: Direction
) -> None:
    sizes, draws = [4, 1, 3, 2], 5
    student, teacher = logits(sizes, batch=3)
    masks = TaskPool(sizes).sample(generator(), 3 * draws).view(3, draws, 4)
    images = [
        reference.distillation(
            student[i : i + 1].detach().numpy(),
            teacher[i : i + 1].numpy(),
            sizes,
            "random",
            reduction=reduction,
            direction=direction,
            drawn=group_numbers(masks[i]),
        )
        for i in range(3)
    ]
    expected = reference.Loss(
        sum(image.value for image in images) / 3,
        np.concatenate([image.gradient for image in images]) / 3,
    )
    loss = DenseDistillation(
        "random", reduction=reduction, draws=draws, per_image=True, direction=direction
    )
    assert_close(loss(student, teacher, sizes, generator=generator()), student, expected, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "scale"), [([6] + [2] * 19, 1.0), ([3] + [1] * 19, 30.0)])
def test_twenty_tasks_equal_the_sum_over_a_million_groups(sizes: list[int], scale: float) -> None:
    student, teacher = logits(sizes, scale, batch=1)
    pool = TaskPool(sizes)
    value, gradient = 0.0, np.zeros((1, sum(sizes)))
    row = student[0, : sum(sizes)].detach().numpy()
    for masks in np.array_split(pool.every().numpy(), 64):
        kl, slope = reference.group_statistics(row, teacher[0].numpy(), sizes, masks, 2.0)
        value += float(kl.sum())
        gradient += slope.sum(axis=0)
    factor = 4.0 / pool.count / pool.mean_group_size
    expected = reference.Loss(factor * value, np.pad(factor * gradient, ((0, 0), (0, NEW_CLASSES))))
    assert_close(DenseDistillation("every")(student, teacher, sizes), student, expected, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("sizes", [[50] + [1] * 49, [2] * 64], ids=["50 tasks", "64 tasks"])
def test_huge_pools_agree_with_the_mean_of_many_draws(sizes: list[int], scale: float) -> None:
    draws, chunks = 100_000, 10
    student, teacher = logits(sizes, scale, batch=1)
    rng = np.random.default_rng(3)
    given = DenseDistillation("every", reduction="batch", tau_squared=False)(
        student, teacher, sizes
    )
    (slope,) = torch.autograd.grad(given, student)
    row = student[0, : sum(sizes)].detach().numpy()
    statistics = []
    for _ in range(chunks):
        # An empty draw has a chance of 2^-50 here.
        masks = rng.random((draws // chunks, len(sizes))) < 0.5
        kl, gradient = reference.group_statistics(row, teacher[0].numpy(), sizes, masks, 2.0)
        statistics.append(np.column_stack([kl, gradient]))
    drawn = np.concatenate(statistics)
    error = drawn.std(axis=0, ddof=1) / math.sqrt(draws)
    exact = np.concatenate([[given.item()], slope[0, : sum(sizes)].numpy()])
    distance = np.abs(exact - drawn.mean(axis=0))
    assert distance[0] <= 4 * error[0]
    assert np.linalg.norm(distance[1:]) <= 4 * np.linalg.norm(error[1:])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("sizes", [[5, 3], [50] + [1] * 49, [2] * 64], ids=["2", "50", "64"])
def test_logits_of_a_thousand_stay_finite(
    sizes: list[int], groups: Groups, direction: Direction
) -> None:
    student, teacher = logits(sizes, batch=8, dtype=torch.float32)
    student = (1000 * student.detach().sign()).requires_grad_()
    teacher = 1000 * teacher.sign()
    for reduction in REDUCTIONS:
        loss = DenseDistillation(groups, reduction=reduction, direction=direction)
        given = loss(student, teacher, sizes, generator=generator())
        (gradient,) = torch.autograd.grad(given, student)
        assert given.isfinite()
        assert given >= 0
        assert gradient.isfinite().all()


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["student", "teacher"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_logit_that_is_no_number_makes_the_loss_nan(
    groups: Groups, bad: float, where: str, direction: Direction
) -> None:
    for sizes in ([3], [3, 1, 2], [2] * 30):
        student, teacher = (x.detach() for x in logits(sizes))
        (student if where == "student" else teacher)[1, 2] = bad
        for reduction in REDUCTIONS:
            loss = DenseDistillation(groups, reduction=reduction, direction=direction)
            assert loss(student, teacher, sizes, generator=generator()).isnan()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_new_classes_do_not_matter(direction: Direction) -> None:
    sizes = [3, 2]
    student, teacher = logits(sizes)
    for groups in GROUPS:
        loss = DenseDistillation(groups, direction=direction)
        (gradient,) = torch.autograd.grad(
            loss(student, teacher, sizes, generator=generator()), student
        )
        assert (gradient[:, 5:] == 0).all()
        changed = student.detach().clone()
        changed[:, 5:] = math.nan
        assert torch.equal(
            loss(changed, teacher, sizes, generator=generator()),
            loss(student, teacher, sizes, generator=generator()),
        )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_gradient_reaches_the_teacher(direction: Direction) -> None:
    student, teacher = logits([3, 2])
    teacher.requires_grad_()
    for groups in GROUPS:
        loss = DenseDistillation(groups, direction=direction)
        given = loss(student, teacher, [3, 2], generator=generator())
        assert torch.autograd.grad(given, [student, teacher], allow_unused=True)[1] is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("groups", GROUPS)
def test_every_precision_is_supported(groups: Groups, dtype: torch.dtype) -> None:
    sizes = [4, 2, 3]
    student, teacher = logits(sizes, dtype=dtype)
    expected = reference.distillation(
        student.detach().double().numpy(),
        teacher.double().numpy(),
        sizes,
        groups,
        drawn=group_numbers(TaskPool(sizes).sample(generator(), 1)),
    )
    given = DenseDistillation(groups)(student, teacher, sizes, generator=generator())
    assert given.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert given.item() == pytest.approx(expected.value, rel=1e-6)
    (gradient,) = torch.autograd.grad(given, student)
    assert gradient.dtype == dtype
    error = np.abs(gradient.double().numpy() - expected.gradient).max()
    assert error <= max(1e-6, torch.finfo(dtype).eps) * np.abs(expected.gradient).max()


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_autocast_changes_nothing(groups: Groups, reduction: Reduction) -> None:
    student, teacher = logits([4, 2, 3], dtype=torch.float32)
    loss = DenseDistillation(groups, reduction=reduction)
    outside = loss(student, teacher, [4, 2, 3], generator=generator())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(student, teacher, [4, 2, 3], generator=generator())
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("groups", GROUPS)
def test_single_precision_inside_is_near(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without float64 computes in float32."""
    student, teacher = logits([4, 2, 3, 1, 1], dtype=torch.float32)
    loss = DenseDistillation(groups)
    exact = loss(student, teacher, [4, 2, 3, 1, 1], generator=generator())
    monkeypatch.setattr(groups_module, "working_dtype", lambda device: torch.float32)
    groups_module._kept_layout.cache_clear()
    near = loss(student, teacher, [4, 2, 3, 1, 1], generator=generator())
    groups_module._kept_layout.cache_clear()
    assert near.item() == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("tasks", [1, 5, 30])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_value_is_read_back_from_the_device(
    groups: Groups, reduction: Reduction, tasks: int, direction: Direction
) -> None:
    """Tensors on ``meta`` have no values, so reading one, a synchronisation, would raise."""
    student = torch.empty(4, 2 * tasks + 1, device="meta", requires_grad=True)
    teacher = torch.empty(4, 2 * tasks, device="meta")
    loss = DenseDistillation(groups, reduction=reduction, direction=direction)
    given = loss(student, teacher, [2] * tasks, generator=generator())
    given.backward()
    assert given.shape == ()
    assert student.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "options"),
    [
        ("whole", {}),
        ("each", {}),
        ("random", {}),
        ("whole", {"direction": "student"}),
        ("each", {"skip_base": True, "total": False}),
        ("random", {"single": "resample", "draws": 20}),
    ],
    ids=str,
)
def test_compiles_into_one_graph(groups: Groups, options: dict[str, Any]) -> None:
    torch.compiler.reset()
    loss = DenseDistillation(groups, **options)
    # Only the graph is tested here. The next test also lets the default backend generate code.
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    source, other = generator(1), generator(2)
    for sizes in ([3, 5, 2], [7, 1, 1, 1]):
        student, teacher = logits(sizes, dtype=torch.float32)
        # A compiled graph must not keep the generator that it was compiled with.
        for chosen in (source, other, source) if groups == "random" else (source,):
            state = chosen.get_state()
            plain = loss(student, teacher, sizes, generator=chosen)
            drawn = chosen.get_state()
            chosen.set_state(state)
            fused = compiled(student, teacher, sizes, generator=chosen)
            assert torch.equal(chosen.get_state(), drawn)
            assert fused.item() == pytest.approx(plain.item(), rel=1e-6)
            torch.testing.assert_close(
                *(torch.autograd.grad(x, student)[0] for x in (fused, plain)), rtol=1e-5, atol=1e-9
            )


@pytest.mark.slow
def test_a_compiled_step_draws_as_often_and_in_the_same_order() -> None:
    torch.compiler.reset()
    sizes = [3] * 8
    student, teacher = logits(sizes)
    loss = DenseDistillation("random")

    def step(student: Tensor, source: torch.Generator) -> Tensor:
        first, _, third = (loss(student, teacher, sizes, generator=source) for _ in range(3))
        return torch.stack([third, first])

    compiled: Callable[[Tensor, torch.Generator], Tensor] = torch.compile(step, fullgraph=True)
    plain_source, source = generator(4), generator(4)
    for _ in range(3):
        plain, fused = step(student, plain_source), compiled(student, source)
        assert plain[0] != plain[1]
        torch.testing.assert_close(fused, plain)
        torch.testing.assert_close(
            *(torch.autograd.grad(x.sum(), student)[0] for x in (fused, plain))
        )
        assert torch.equal(source.get_state(), plain_source.get_state())


def test_training_works_after_evaluation_in_inference_mode() -> None:
    groups_module._kept_layout.cache_clear()
    student, teacher = logits([2, 3, 1])
    loss = DenseDistillation("every")
    with torch.inference_mode():
        before = loss(student.detach(), teacher, [2, 3, 1])
    after = loss(student, teacher, [2, 3, 1])
    after.backward()
    assert after.item() == before.item()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"reduction": "element"}, "group-dependent weights"),
        ({"direction": "student"}, "direction='student'"),
    ],
)
def test_sampling_in_place_of_every_group_is_unbiased_and_warned_of_once(
    options: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [3, 1, 2, 4]
    student, teacher = logits(sizes, batch=2)
    listed = DenseDistillation("every", **options)(student, teacher, sizes)
    monkeypatch.setattr(distill, "_WEIGHTED_TASKS", 3)
    loss = DenseDistillation("every", draws=2000, **options)
    source = generator()
    with caplog.at_level(logging.WARNING, "densekd"):
        drawn = torch.stack(
            [loss(student, teacher, sizes, generator=source).detach() for _ in range(10)]
        )
    assert len(caplog.records) == 1
    assert f"With {reason}, the 2^4 - 1 groups" in caplog.text
    assert "2000 draws per image" in caplog.text
    # The spread of ten estimates gives the standard error of their mean.
    assert abs(drawn.mean() - listed) < 4.5 * drawn.std() / math.sqrt(10)
    assert drawn.std() < 0.05 * listed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: DenseDistillation(cast(Any, "all")),
            r"groups='all'.*'whole', 'each', 'random', 'every'",
        ),
        (
            lambda: DenseDistillation("each", reduction=cast(Any, "mean")),
            r"reduction='mean'.*'pool'",
        ),
        (lambda: DenseDistillation("each", temperature=0.0), r"temperature.*0\.0"),
        (lambda: DenseDistillation("each", temperature=math.nan), r"temperature.*nan"),
        (lambda: DenseDistillation("each", temperature=cast(Any, "2")), "temperature.*'2'"),
        (lambda: DenseDistillation("whole", draws=2), r"draws goes with.*'whole'"),
        (lambda: DenseDistillation("random", draws=0), r"draws must be from 1 to 10,000, not 0"),
        (lambda: DenseDistillation("random", draws=cast(Any, 2.5)), r"draws.*not 2\.5"),
        (lambda: DenseDistillation("every", per_image=True), r"per_image.*'every'"),
        (
            lambda: DenseDistillation("random", total=True),
            r"total.*'each' or 'every', not 'random'",
        ),
        (lambda: DenseDistillation("whole", total=False), r"total.*'whole'"),
        (
            lambda: DenseDistillation("whole", direction=cast(Any, "reverse")),
            r"direction='reverse'.*'teacher', 'student'",
        ),
        (lambda: DenseDistillation("every", skip_base=True), r"skip_base.*'each', not 'every'"),
        (
            lambda: DenseDistillation("random", single=cast(Any, "drop")),
            r"single='drop'.*'keep', 'resample'",
        ),
        (lambda: DenseDistillation("every", single="resample"), r"single.*'random', not 'every'"),
    ],
)
def test_bad_options_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("student", "teacher", "sizes", "message"),
    [
        (torch.zeros(5), torch.zeros(2, 5), [5], r"student's.*\[5\]"),
        (torch.zeros(2, 5), torch.zeros(2, 5, 1), [5], r"teacher's.*\[2, 5, 1\]"),
        (torch.zeros(2, 5), torch.zeros(3, 5), [5], r"2 images.*of 3"),
        (torch.zeros(0, 5), torch.zeros(0, 5), [5], r"at least one.*\[0, 5\]"),
        (torch.zeros(2, 4), torch.zeros(2, 5), [5], "5 classes, the student only 4"),
        (torch.zeros(2, 5), torch.zeros(2, 5), [3, 1], r"\[3, 1\] sum to 4.*5 classes"),
        (torch.zeros(2, 5), torch.zeros(2, 5), [], "empty"),
        (torch.zeros(2, 5), torch.zeros(2, 5), [5, 0], "Task 1 has 0"),
        (torch.zeros(2, 5).long(), torch.zeros(2, 5), [5], r"student's.*int64"),
        (torch.zeros(2, 5), torch.zeros(2, 5, device="meta"), [5], "cpu, the teacher's on meta"),
    ],
)
def test_bad_logits_are_refused(
    student: Tensor, teacher: Tensor, sizes: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DenseDistillation("whole")(student, teacher, sizes)


def test_a_missing_generator_is_named() -> None:
    student, teacher = logits([2] * 13)
    with pytest.raises(ValueError, match=r"groups='random' draws.*pass a generator"):
        DenseDistillation("random")(student, teacher, [2] * 13)
    with pytest.raises(ValueError, match=r"beyond 12 tasks, and there are 13.*pass a gen"):
        DenseDistillation("every", reduction="element")(student, teacher, [2] * 13)
    with pytest.raises(ValueError, match=r"direction='student' draws groups beyond 12 tasks"):
        DenseDistillation("every", direction="student")(student, teacher, [2] * 13)


def test_weights_of_the_wrong_shape_are_refused() -> None:
    student, teacher = logits([2, 2])
    loss = DenseDistillation("every")
    with pytest.raises(ValueError, match=r"shape \[3\], one number.*not \[3, 1\]"):
        loss(student, teacher, [2, 2], weights=lambda masks: torch.ones(len(masks), 1))
    with pytest.raises(ValueError, match=r"shape \[3\], one number.*not list"):
        loss(student, teacher, [2, 2], weights=lambda masks: cast(Any, [1.0] * 3))


def test_a_sum_too_large_for_a_number_is_refused() -> None:
    logits_ = torch.zeros(1, 1100)
    with pytest.raises(ValueError, match=r"2\^1100 - 1 groups.*leave out total"):
        DenseDistillation("every", total=True)(logits_, logits_, [1] * 1100)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (DenseDistillation("each"), ""),
        (DenseDistillation("random", draws=4, per_image=True), ", draws=4, per_image=True"),
        (DenseDistillation("each", total=False, skip_base=True), ", total=False, skip_base=True"),
        (
            DenseDistillation("every", total=True, direction="student"),
            ", total=True, direction='student'",
        ),
        (DenseDistillation("random", single="resample"), ", single='resample'"),
    ],
)
def test_print_shows_the_options_that_differ(loss: DenseDistillation, options: str) -> None:
    shown = f"DenseDistillation({loss.groups!r}, temperature=2.0, reduction='pool'{options})"
    assert repr(loss) == shown


def test_logits_that_are_no_tensors_are_refused() -> None:
    logits = torch.zeros(2, 4)
    loss = DenseDistillation("every")
    with pytest.raises(ValueError, match="must be a tensor, not a list"):
        loss(logits, logits.tolist(), [2, 2])
