import pytest

from densekd.data.memory import Quota
from densekd.data.scenario import Scenario
from densekd.jobs.estimate import CountEstimate, Estimate, TimeLeft, workload
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.training.callbacks import TrainingProgress

from support import datasets

COURSE = Schedules(Schedule(epochs=10), Schedule(epochs=4), Schedule(epochs=3))
QUOTA = Quota(per_class=2)
TASKS = Scenario.of(datasets.dataset(classes=10, per_class=6), base=6, increment=2, order="natural")


def images(name: str, options: DenseOptions | None = None, quota: Quota = QUOTA) -> list[int]:
    method = make_method(name, options or DenseOptions(), COURSE)
    return [phase_work.images for phase_work in workload(method, TASKS, quota)]


def test_what_a_run_goes_through() -> None:
    assert images("rdkd") == [10 * 36, 4 * 2 * 12, 4 * 2 * 12]
    assert images("rdkd", DenseOptions(streams="merged")) == [10 * 36, 4 * 24, 4 * 28]
    assert images("joint") == [10 * 36, 10 * 48, 10 * 60]


def test_phases_on_exemplars_have_as_many_images_as_these() -> None:
    assert images("podnet") == [10 * 36, 4 * 24, 3 * 16, 4 * 28, 3 * 20]
    assert images("bic", quota=Quota(None, 100))[1:3] == [4 * (12 + 72), 3 * 10]
    assert images("bic", quota=Quota(0))[2] == 1


def test_the_time_left_follows_from_the_speed_since_the_first_report() -> None:
    now = 0.0
    method = make_method("rdkd", DenseOptions(), COURSE)
    estimate = Estimate(workload(method, TASKS, QUOTA), clock=lambda: now)

    def left(task: int, epoch: int, batch: int) -> TimeLeft | None:
        epochs = 4 if task else 10
        return estimate.left(TrainingProgress(task, "train", epoch, epochs, batch, 2, 0.1, 1.0, {}))

    now = 100.0  # resumed in the middle: what was done before took no time of this process
    assert left(0, 5, 0) is None
    now = 103.0
    assert left(0, 5, 2) == pytest.approx((4 * 3.0, 4 * 3.0 + (96 + 96) / 36 * 3.0))
    now = 200.0
    assert left(1, 0, 1) is None
    now = 201.0
    assert left(1, 0, 2) == pytest.approx((3 * 2.0, 3 * 2.0 + 8.0))
    now = 207.0
    assert left(1, 3, 2) == pytest.approx((0.0, 8.0))
    left(2, 0, 0)
    now = 208.0
    assert left(2, 2, 0) == pytest.approx((1.0, 1.0))


def test_the_share_that_is_done_counts_images() -> None:
    method = make_method("rdkd", DenseOptions(), COURSE)
    estimate = Estimate(workload(method, TASKS, QUOTA))
    total = 360 + 96 + 96
    assert [estimate.share_before(n) * total for n in range(4)] == pytest.approx(
        [0, 360, 456, total]
    )
    half = TrainingProgress(1, "train", 1, 4, 3, 3, 0.1, 1.0, {})
    assert estimate.share(half) * total == pytest.approx(360 + 48)


def test_the_time_left_of_equal_pieces_counts_from_the_first() -> None:
    now = 100.0
    estimate = CountEstimate(lambda: now)
    assert estimate.left(40, 100) is None  # resumed there
    now = 100.5
    assert estimate.left(41, 100) is None  # too soon to tell
    now = 110.0
    assert estimate.left(60, 100) == 20.0
    assert estimate.left(8, 50) is None  # something else is counted now
    now = 112.0
    assert estimate.left(18, 50) == pytest.approx(6.4)
