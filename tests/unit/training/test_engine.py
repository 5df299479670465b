import numpy as np
import pytest
import torch
from torch import nn

from densekd.data.augment import Augment
from densekd.data.batches import RankShare
from densekd.data.dataset import PixelImages
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Network
from densekd.nn.resnet import cifar_resnet
from densekd.precision import Precision
from densekd.training.callbacks import Callback, TrainingProgress
from densekd.training.engine import (
    Engine,
    all_finite,
    fast_precision,
    has_accelerator,
    has_fast_bf16,
)
from densekd.training.learner import Learner, Settings

from support.datasets import dataset


def processor(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    """Make torch report a processor with just these features."""
    known = {"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}
    has = {**known, **dict.fromkeys(features, True)}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16", "bf16"])
def test_a_processor_with_bf16_instructions_uses_them(
    monkeypatch: pytest.MonkeyPatch, feature: str
) -> None:
    processor(monkeypatch, feature)
    assert has_fast_bf16("cpu")
    assert Engine("cpu").precision == "bf16"
    assert Engine("cpu", precision="32").precision == "32"


def test_a_processor_without_bf16_instructions_uses_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor(monkeypatch)
    assert not has_fast_bf16("cpu")
    assert Engine("cpu").precision == "32"
    assert Engine("cpu", precision="bf16").precision == "bf16"


@pytest.mark.parametrize("has", [True, False])
def test_a_gpu_that_only_emulates_bf16_uses_float32(
    monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return has or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert has_fast_bf16("cuda") == has


def test_auto_is_the_precision_that_a_device_is_fast_in(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch)
    assert [fast_precision(kind) for kind in ("cpu", "mps")] == ["32", "32"]
    for has, wanted in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, has=has, **_: has)
        assert fast_precision("cuda") == wanted


def test_the_processors_features_do_not_count_for_other_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor(monkeypatch, "amx_bf16")
    assert not has_fast_bf16("mps")


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), ("32", torch.float32)],
)
def test_autocast_uses_the_chosen_precision(precision: Precision, dtype: torch.dtype) -> None:
    layer, engine = nn.Linear(4, 4), Engine("cpu", precision=precision)
    with engine.autocast():
        assert layer(torch.ones(2, 4)).dtype == dtype
        with engine.in_float32().autocast():
            assert layer(torch.ones(2, 4)).dtype == torch.float32
    assert engine.make_scaler().is_enabled() == (precision == "fp16")
    assert layer(torch.ones(2, 4)).dtype == torch.float32


def test_convolutions_and_images_use_channels_last() -> None:
    engine, network = Engine("cpu"), cifar_resnet(8)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    engine.place(network)
    convolutions = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 9
    for weight in convolutions:
        assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not convolutions[1].is_contiguous()
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    images = torch.rand(2, 3, 5, 5)
    converted = engine.lay_out(images)
    assert converted.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(converted, images)


def test_a_single_process_is_rank_0_with_the_whole_batch() -> None:
    engine, norm = Engine("cpu", precision="32"), nn.BatchNorm1d(3)
    engine.fabric.launch()
    assert engine.share == RankShare(0, 1)
    assert engine.first
    assert engine.device == torch.device("cpu")
    assert engine.total(torch.tensor([2, 3])).tolist() == [2, 3]
    assert engine.broadcast(True)
    assert not engine.broadcast(False)
    norm(torch.arange(12.0).view(4, 3))
    before = norm.get_buffer("running_mean").clone()
    engine.average_buffers(norm)
    assert torch.equal(norm.get_buffer("running_mean"), before)


def test_the_engine_describes_itself() -> None:
    assert Engine("cpu", precision="bf16").describe() == {
        "device": "cpu",
        "devices": 1,
        "precision": "bf16",
        "channels_last": True,
        "threads": torch.get_num_threads(),
    }


def test_what_was_added_later_is_described_only_where_it_is_used() -> None:
    """Bases that were trained before are named by the description."""
    assert Engine("cpu", compile="on").describe() == Engine("cpu").describe() | {"compiled": True}
    assert Engine("cpu", compile="off").describe() == Engine("cpu").describe()


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_processes_that_the_settings_are_not_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    variables = {
        "torchrun": {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"},
        "slurm": {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"},
    }
    for name, value in variables[launcher].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"4 processes were started.*1 on each of 1 .*--nodes"):
        Engine("cpu").launch()


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    backbone = cifar_resnet(8)
    network = Network(backbone, CosineClassifier(backbone.width))
    assert Engine("cpu", compile="off").forward(network) == network.__call__
    with pytest.raises(ValueError, match=r"C.. compiler.*leave engine.compile out"):
        Engine("cpu", compile="on").forward(network)


def test_all_finite_finds_a_single_nan_or_infinity() -> None:
    tensors = [torch.zeros(3), torch.full((2, 2), 3e38), torch.ones(4).bfloat16()]
    assert all_finite(tensors)
    for wrong in (torch.nan, torch.inf, -torch.inf):
        spoiled = tensors[1].clone()
        spoiled[1, 0] = wrong
        assert not all_finite([tensors[0], spoiled, tensors[2]])


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision='16' is not one of 'auto', '32', 'bf16'"):
        Engine("cpu", precision="16")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_an_accelerator_that_isnt_there_is_told(kind: str) -> None:
    if has_accelerator(kind):
        pytest.skip(f"this computer has {kind}")
    with pytest.raises(ValueError, match=f"no {kind} .*choose auto or cpu"):
        Engine(kind)


class Losses(Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def report(self, report: TrainingProgress) -> None:
        if report.ends_epoch:  # on a busy machine there are reports in between
            self.seen += report.losses.values()


def learned(precision: Precision) -> tuple[Learner, list[float]]:
    """A learner after two tasks of one epoch with all terms, and its losses."""
    torch.manual_seed(0)
    schedule = Schedule(1, 0.05, batch_size=6)
    method = make_method("rdkd-adaptive", DenseOptions(), Schedules(schedule, schedule))
    engine = Engine("cpu", precision=precision)
    settings = Settings(Augment((0.02,) * 3, (0.01,) * 3, padding=1), engine=engine)
    learner = Learner(cifar_resnet(8), method, ExemplarMemory(Quota(2)), settings)
    callback = Losses()
    for task in Scenario.of(dataset(4), steps=1):
        learner.learn(task, callback=callback)
    return learner, callback.seen


def test_bf16_trains_weights_that_stay_float32() -> None:
    (learner, losses), (plain, exact) = learned("bf16"), learned("32")
    assert len(losses) == 1 + 3
    # The base's loss hardly differs, but it does: bf16 has eight bits.
    assert losses[0] == pytest.approx(exact[0], rel=0.05)
    assert losses[0] != exact[0]
    weights, others = learner.network.state_dict(), plain.network.state_dict()
    assert all(w.isfinite().all() for w in weights.values())
    assert {w.dtype for w in weights.values()} == {torch.float32, torch.int64}
    moved = [name for name in weights if not torch.equal(weights[name], others[name])]
    assert len(moved) > len(weights) / 2
    # Predictions are in 32 bits all the same.
    test = dataset(4).test.images
    other = Learner(cifar_resnet(8), learner.method, ExemplarMemory(Quota(2)), plain.settings)
    other.load_state(learner.state())
    assert isinstance(test, PixelImages)
    assert np.array_equal(learner.predict_proba(test.pixels), other.predict_proba(test.pixels))
    assert not torch.equal(learner.logits(test), other.logits(test))
    seen = learner.infer(test)
    assert seen.logits.dtype == seen.features.dtype == torch.float32
