import json
from pathlib import Path
from typing import Any

import pytest

from densekd.compression.config import compression_folder, resolve_compression
from densekd.config.digests import base_settings, result_settings
from densekd.config.schema import Config, as_tree, resolve
from densekd.config.settings_tree import INERT_KEYS, digest, override
from densekd.methods.registry import BASELINES, METHODS
from densekd.runs.run import run_folder


def made(*assignments: str) -> Config:
    """The settings that `-o` would make."""
    return resolve(override({}, assignments))


def of_method(name: str, source: str = "digits") -> Config:
    return resolve({"method": {"name": name}, "data": {"source": source}})


@pytest.mark.parametrize(
    ("changes", "folder", "base"),
    [
        ("", "digits-rdkd-1ebf9f5eef91", "7f26f7fca2aa"),
        (
            "method.name=rdkd-adaptive data.source=cifar100",
            "cifar100-rdkd-adaptive-00fdddbf2e64",
            "ac338dace7a2",
        ),
        (
            "method.name=podnet+rdkd data.source=cifar100",
            "cifar100-podnet+rdkd-d85714764599",
            "a41dd5106a63",
        ),
        (
            "method.name=ccil data.source=imagenet100:x",
            "imagenet100-ccil-a1b1f12e99c7",
            "4fecfea31e06",
        ),
        ("data.even=true", "digits-rdkd-3be0add40ee9", "12486a9e12f6"),
    ],
)
def test_folders_of_earlier_versions_are_found(changes: str, folder: str, base: str) -> None:
    config = made(*changes.split())
    assert run_folder(config, Path()).name == folder
    assert digest(base_settings(config, 5)) == base


def test_compressions_of_earlier_versions_are_found() -> None:
    for even, folder in (
        (False, "compress-rdkd-a3bcb6720be9"),
        (True, "compress-rdkd-19c576f3d55f"),
    ):
        config = resolve_compression({"data": {"source": "cifar100", "even": even}})
        assert compression_folder(config, Path()).name == folder


def test_a_baseline_that_is_added_later_changes_no_digest_of_others() -> None:
    sections = {"afc", "bic", "ccil", "icarl", "icarl_softmax", "podnet", "ucir"}
    for name in METHODS:
        method = result_settings(of_method(name))["method"]
        assert {key for key, value in method.items() if value is None} <= sections
        own = {BASELINES[name].key} if name in BASELINES else set()
        assert set(method) == {"name", "options", *sections, *own}


# One change of every setting.
CHANGES = [
    "seed=1",
    "epochs=5",
    "network=resnet32",
    "data.source=cifar10",
    "data.dir=sets",
    "data.image_size=16",
    "data.classes_file=names.txt",
    "data.image_column=img",
    "data.label_column=label",
    "data.per_class=9",
    "data.oversample_rare=true",
    "data.validation=0.1",
    "data.test_per_class=5",
    "scenario.steps=1",
    "scenario.base=4",
    "scenario.increment=1",
    "scenario.equal=true",
    "scenario.order=natural",
    "scenario.first=2",
    "scenario.tasks=[5,5]",
    "augment.padding=2",
    "augment.flip=true",
    "augment.brightness=0.1",
    "augment.crop=resized",
    "memory.per_class=10",
    "memory.total=100",
    "memory.selection=greedy",
    "method.name=gkd",
    "method.options.lambda_base=1",
    "method.options.lambda_exponent=0",
    "method.options.temperature=4",
    "method.options.reduction=batch",
    "method.options.tau_squared=false",
    "method.options.direction=student",
    "method.options.single=resample",
    "method.options.draws=3",
    "method.options.per_image=true",
    "method.options.distil_on=new",
    "method.options.streams=merged",
    "method.options.similarity=rescaled",
    "method.options.size_ratio=all",
    "method.options.vectors=recomputed",
    "method.options.head=linear",
    "training.preset=ccil",
    "training.base.epochs=9",
    "training.base.lr=0.5",
    "training.base.decay=constant",
    "training.base.lr_end=0.01",
    "training.base.batch_size=64",
    "training.base.momentum=0.5",
    "training.base.weight_decay=0",
    "training.base.optimiser=adamw",
    "training.base.warmup=2",
    "training.increment.epochs=9",
    "training.increment.lr=0.5",
    "training.increment.decay=constant",
    "training.increment.lr_end=0.001",
    "training.increment.batch_size=64",
    "training.increment.momentum=0.5",
    "training.increment.weight_decay=0",
    "training.increment.optimiser=adamw",
    "training.increment.warmup=2",
    "engine.accelerator=cpu",
    "engine.devices=2",
    "engine.precision=bf16",
    "engine.nodes=2",
    "engine.compile=on",
    "engine.workers=2",
    "metrics=['mine.py:ece']",
    "loggers=['mlflow']",
    "keep_steps=true",
]
# What acts on the base task: sections, and single settings.
ON_THE_BASE = (
    "seed",
    "epochs",
    "network",
    "data.",
    "augment.",
    "engine.",
    "training.base.",
    "training.preset",
    "scenario.order",
    "method.options.streams",
    "method.options.head",
)


def leaves(tree: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in tree.items():
        inside = isinstance(value, dict)
        found |= leaves(value, f"{prefix}{key}.") if inside else {prefix + key}
    return found


def test_every_setting_is_changed_once() -> None:
    changed = [change.partition("=")[0] for change in CHANGES]
    # These exclude something in what the changes start from.
    others = {"training.base.milestones", "training.increment.milestones"}
    others |= {"method.options.total", "method.options.skip_base"}
    others |= {"start"}  # see test_branching
    # These have no effect with it.
    others |= {f"method.{spec.key}" for spec in BASELINES.values()}
    others |= {"training.finish", "method.params"}
    others |= {
        f"training.{part}.{k}" for part in ("base", "increment") for k in ("clamp", "factor")
    }
    assert sorted([*changed, *others]) == sorted(leaves(as_tree(resolve({}))))


@pytest.mark.parametrize("change", CHANGES)
def test_what_influences_a_run_and_what_its_base(change: str) -> None:
    usual, changed = resolve({}), made(change)
    assert usual != changed
    key = change.partition("=")[0]
    same = digest(result_settings(usual)) == digest(result_settings(changed))
    assert same == (key in INERT_KEYS)
    shared = digest(base_settings(usual, 5)) == digest(base_settings(changed, 5))
    off = key in (*INERT_KEYS, "data.test_per_class") or not key.startswith(ON_THE_BASE)
    assert shared == off


def test_a_base_of_named_classes_is_shared_by_runs_that_name_the_same() -> None:
    def of(tasks: str) -> dict[str, Any]:
        return base_settings(made(f"scenario.tasks={tasks}"), 2)

    assert of("[2, 8]") == of("[2, 4, 4]") == base_settings(resolve({}), 2)
    assert of('[["1", "0"], ["2"]]') != of("[2, 1]")
    assert of('[["1", "0"], ["2"]]') != of('[["0", "1"], ["2"]]')


@pytest.mark.parametrize("name", METHODS)
def test_methods_share_a_base(name: str) -> None:
    other = made(f"method.name={name}")
    same = base_settings(other, 5) == base_settings(resolve({}), 5)
    assert same == (name != "joint" and name not in BASELINES)
    if name in BASELINES:
        return
    merged = made(f"method.name={name}", "method.options.streams=merged")
    assert base_settings(merged, 5) == base_settings(made("method.name=joint"), 5)


def test_a_base_that_holds_images_out_is_shared_by_runs_that_keep_as_many() -> None:
    def of(*changes: str) -> dict[str, Any]:
        return base_settings(made("method.name=bic", *changes), 5)

    assert of() != of("memory.per_class=40")
    assert of() == of("method.options.lambda_base=1.0")
    assert base_settings(made("method.name=icarl"), 5) == base_settings(
        made("method.name=icarl", "memory.per_class=40"), 5
    )


def test_a_base_is_shared_by_what_is_trained_not_by_how_it_is_written() -> None:
    usual = base_settings(resolve({}), 5)
    assert base_settings(resolve({}), 4) != usual
    assert base_settings(made("epochs=100%"), 5) == usual
    assert base_settings(made("epochs=7"), 5) == base_settings(made("training.base.epochs=7"), 5)
    assert base_settings(made("epochs=7"), 5) == base_settings(made("epochs=35%"), 5)
    assert base_settings(made("scenario.base=5", "scenario.steps=1"), 5) == usual
    imagenet = base_settings(made("data.source=imagenet:x"), 500)
    assert json.loads(json.dumps(imagenet)) == imagenet
    assert imagenet["schedule"]["milestones"] == [30, 60]
    assert "dir" not in imagenet["data"]
    assert "workers" not in imagenet["engine"]


def test_a_base_with_strong_decay_is_shared_however_it_is_written() -> None:
    cifar = "data.source=cifar100", "method.name=gkd"
    parts = ("base", "increment")
    preset = made(*cifar, "training.preset=strong-decay")
    single = made(*cifar, *(f"training.{part}.weight_decay=0.0005" for part in parts))
    assert preset.schedules() == single.schedules()
    assert digest(base_settings(preset, 50)) == digest(base_settings(single, 50))


def test_a_base_is_shared_with_combinations_and_not_with_other_baselines() -> None:
    bases = {host: base_settings(of_method(host), 5) for host in BASELINES}
    for host, base in bases.items():
        assert base_settings(of_method(f"{host}+rdkd"), 5) == base
        assert base_settings(of_method(f"{host}+fdkd-adaptive"), 5) == base
        assert base_settings(of_method("rdkd"), 5) != base
        assert [other for other in BASELINES if bases[other] == base] == [host]


def test_a_base_that_goes_on_in_generations_depends_on_their_schedule() -> None:
    def base(generations: int, lr: float) -> dict[str, Any]:
        method = {"name": "ccil", "ccil": {"generations": generations}}
        config = resolve({"method": method, "training": {"finish": {"lr": lr}}})
        return base_settings(config, 5)

    assert base(1, 0.1) != base(1, 0.2)
    assert base(1, 0.1) != base(2, 0.1)
    assert base(0, 0.1) == base(0, 0.2)
