"""The parts of fine-tuning, with networks of a few numbers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from densekd.model.frozen.finetune_training import (
    EarlyStop,
    finetuning_method,
    join_head,
    stage_rates,
)
from densekd.model.frozen.head import LinearHead
from densekd.nn.network import Features, Network
from densekd.training.callbacks import Callback, TrainingProgress


class Layers(nn.Module):
    """Six layers of one weight each."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(1, 1, 1, bias=False) for _ in range(6))

    def forward(self, images: Tensor) -> Features:
        return Features(images.mean((2, 3)), ())


HEAD = LinearHead(torch.arange(12.0).view(4, 3), torch.tensor([1.0, 2.0, 3.0, 4.0]))


@pytest.fixture
def network() -> Network:
    return join_head(Layers(), HEAD, (3, 1))


def test_the_network_scores_as_the_head_does(network: Network) -> None:
    images = torch.rand(5, 3, 2, 2)
    features = nn.functional.normalize(images.mean((2, 3)), dim=1)
    assert torch.allclose(network(images).logits, HEAD.scores(features))
    assert network.classifier.sizes == (3, 1)


def test_later_layers_learn_faster_and_the_head_fastest(network: Network) -> None:
    rates = stage_rates(network, "all")
    assert {name for name, _ in network.named_parameters()} == set(rates)
    own = [rates[f"backbone.inner.layers.{i}.weight"] for i in range(6)]
    assert own == pytest.approx([1 / 9, 1 / 9, 1 / 3, 1 / 3, 1, 1])
    assert rates["classifier.blocks.0"] > 1
    last = stage_rates(network, "last")
    assert last.items() < rates.items()
    assert len(last) == 2 + 4


def test_without_a_weight_there_is_no_distillation(network: Network) -> None:
    with_it, without = (finetuning_method(network, "last", 2, weight) for weight in (1.0, 0.0))
    assert (set(with_it.terms), set(without.terms)) == ({"labels", "kd"}, {"labels"})


class Losses(EarlyStop):
    """Gets its losses from a list."""

    given: list[float]

    def _loss(self) -> float:
        return self.given.pop(0)


def progress(epoch: int) -> TrainingProgress:
    return TrainingProgress(0, "fine-tuning", epoch, 9, 4, 4, 0.1, 1.0, {})


def test_the_best_epoch_is_kept(network: Network, tmp_path: Path) -> None:
    images, labels = torch.rand(2, 3, 2, 2), torch.tensor([0, 1])

    def early(*given: float) -> Losses:
        made = Losses(Callback(), network, images, labels, tmp_path)
        made.given = list(given)
        return made

    stop = early(3.0, 1.0, 2.0)
    for epoch in range(3):
        network.get_parameter("classifier.biases.0").data.fill_(epoch)
        stop.report(progress(epoch))
        assert not stop.stop()
    stop = early(2.0, 2.0)  # as after an interruption within the third epoch
    assert stop.losses == [3.0, 1.0, 2.0]
    stop.report(progress(2))
    assert stop.losses == [3.0, 1.0, 2.0]
    stop.report(progress(3))
    assert stop.over
    assert stop.stop()
    assert stop.restore_best(9) == 2
    assert network.get_parameter("classifier.biases.0").tolist() == [1.0] * 3


def test_changed_losses_are_not_believed(network: Network, tmp_path: Path) -> None:
    def early() -> EarlyStop:
        return EarlyStop(Callback(), network, torch.rand(2, 3, 2, 2), torch.arange(2), tmp_path)

    (tmp_path / "losses.json").write_text("[3.0, 1.0]")  # as earlier versions wrote it
    stop = early()
    assert stop.losses == [3.0, 1.0]
    stop.report(progress(2))
    (file,) = {*tmp_path.glob("*.json")} - {tmp_path / "best.json", tmp_path / "losses.json"}
    assert early().losses == stop.losses
    file.write_bytes(file.read_bytes().replace(b"3.0", b"0.3"))
    with pytest.raises(ValueError, match=rf"{file.name} is damaged"):
        early()


def test_the_loss_is_that_of_the_photos(network: Network, tmp_path: Path) -> None:
    images, labels = torch.rand(20, 3, 2, 2), torch.arange(20) % 4
    stop = EarlyStop(Callback(), network, images, labels, tmp_path)
    stop.report(progress(0))
    expected = nn.functional.cross_entropy(network(images).logits, labels)
    assert stop.losses == [pytest.approx(expected.item(), rel=1e-5)]


def test_without_photos_the_last_epoch_is_kept(network: Network, tmp_path: Path) -> None:
    stop = EarlyStop(Callback(), network, torch.empty(0, 3, 2, 2), torch.empty(0), tmp_path)
    for epoch in range(5):
        stop.report(progress(epoch))
    assert (stop.stop(), stop.restore_best(5)) == (False, 5)


def test_the_callback_hears_everything_and_may_stop(network: Network, tmp_path: Path) -> None:
    class Stopping(Callback):
        reports = 0

        def report(self, report: TrainingProgress) -> None:
            self.reports += 1

        def stop(self) -> bool:
            return True

    inner = Stopping()
    stop = EarlyStop(inner, network, torch.empty(0, 3, 2, 2), torch.empty(0), tmp_path)
    stop.report(progress(0))
    assert (inner.reports, stop.stop(), stop.over) == (1, True, False)
