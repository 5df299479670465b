"""How much bfloat16 changes what a trained network says, and the gradients it would learn from.

    python benchmarks/precision.py RUN STEP

The learner after a step of a run with ``--keep-steps`` is tested in bfloat16 and in float32. Then
the gradient of the cross-entropy is computed in both, in training mode, for four batches of 128
images of its newest task. Their cosine says how much of a step's direction the precision changes;
the cosine between two different batches says how much chance changes it.
"""

import argparse
import copy
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from densekd import Learner, load_run
from densekd.data.batches import in_order
from densekd.data.dataset import Split, join_splits
from densekd.training.evaluate import evaluate

BATCHES, SIZE = 4, 128


def gradients(learner: Learner, images: Split) -> Iterator[Tensor]:
    """The gradient of the loss of each batch, as one vector."""
    engine = learner.settings.engine
    network = copy.deepcopy(learner.network).train()
    for batch in islice(in_order(images, SIZE, learner.settings.augment), BATCHES):
        with engine.autocast():
            logits = network(engine.lay_out(batch.images)).logits
        loss = cross_entropy(logits.float(), batch.labels)
        found = torch.autograd.grad(loss, list(network.parameters()))
        yield torch.cat([each.flatten() for each in found])


def cosines(pairs: Iterator[tuple[Tensor, Tensor]]) -> str:
    found = [float(cosine_similarity(first, second, dim=0)) for first, second in pairs]
    return f"{min(found):.3f} to {max(found):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("step", type=int, help="1 is the base task")
    given = parser.parse_args()
    run = load_run(given.run)
    learner, tasks = run.learner(given.step), run.scenario[: given.step]
    test = join_splits([task.test for task in tasks])
    train = tasks[-1].train
    mixed = train.take(torch.randperm(len(train), generator=torch.Generator().manual_seed(0)))
    vectors = {}
    for each in (learner, learner.in_float32()):
        tested, name = evaluate(each, test).head, each.settings.engine.precision
        vectors[name] = list(gradients(each, mixed))
        print(f"{name}: {100 * tested.trace() / tested.sum():.2f} % of {len(test)} test images")
    exact = vectors["32"]
    for name, found in vectors.items():
        if name != "32":
            print(f"gradients in {name} and 32: cosines {cosines(zip(found, exact, strict=True))}")
    print(f"gradients of two batches in 32: cosines {cosines(pairwise(exact))}")


if __name__ == "__main__":
    main()
