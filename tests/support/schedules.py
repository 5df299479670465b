"""A method of two phases, and schedules as tuples to compare."""

from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy

TWO_PHASES = Method(
    "two-phased",
    "linear",
    {"new": CrossEntropy(["new"], "new")},
    base=(Phase("train", Schedule(epochs=4)),),
    increment=(Phase("train", Schedule(epochs=3)), Phase("balance", Schedule(epochs=2))),
)


def schedule_facts(schedule: Schedule | None) -> tuple[object, ...] | None:
    """Epochs, rate, batch size, weight decay, and how the rate falls."""
    if schedule is None:
        return None
    falls: object = schedule.decay
    if schedule.decay == "milestones":
        falls = (schedule.milestones, schedule.factor)
    if schedule.decay == "cosine":
        falls = schedule.lr_end
    return schedule.epochs, schedule.lr, schedule.batch_size, schedule.weight_decay, falls
