import inspect
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner, Result

from densekd.analysis.flatness import Noise
from densekd.cli import app
from densekd.cli.data import pack_command
from densekd.cli.export import export_command
from densekd.cli.flatness import flatness_command, parse_sigmas
from densekd.cli.options import CliCommand
from densekd.cli.predict import predict_command
from densekd.cli.run import SettingOptions
from densekd.cli.serve import serve_command
from densekd.config.keywords import RUN_KEYS
from densekd.config.schema import as_tree, resolve
from densekd.config.settings_tree import given
from densekd.data.pack import PackOptions
from densekd.files import read_sealed_json
from densekd.model.frozen.unknown import REFUSED

from support.forked_commands import ForkedCommand
from support.self_signal import self_signalled

# Two tasks of five digits each, in a few seconds.
SHORT = ["--epochs", "1", "--steps", "1", "--network", "resnet8", "-o", "data.per_class=10"]
COMMAND = [sys.executable, "-m", "densekd", "run"]


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(*arguments: str | Path) -> str:
    """The sentence of a call that can't be done."""
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def shown(*arguments: str | Path) -> dict[str, Any]:
    """The settings that `config show` prints."""
    result = call("config", "show", *arguments)
    assert result.exit_code == 0, result.stderr
    return tomllib.loads(result.stdout)


def stored(out: Path) -> dict[str, Any]:
    """What the only run in a folder of runs found."""
    (file,) = out.glob("digits-*/result.json")
    return read_sealed_json(file)


def test_the_help_names_the_defaults_of_the_settings() -> None:
    settings, told = as_tree(resolve({})), {}
    for name, kind in get_type_hints(SettingOptions, include_extras=True).items():
        if default := re.search(r"Default: (\w+)\.", get_args(kind)[1].help):
            told[name] = default[1]
    assert told.keys() >= {"steps", "order", "method", "memory", "seed", "devices"}
    assert told == {name: str(given(settings, *RUN_KEYS[name].split("."))) for name in told}


def test_commands_repeat_the_defaults_of_the_package() -> None:
    """They are written again, so that --help doesn't import torch."""

    def default(command: CliCommand, name: str) -> Any:
        return inspect.signature(command.function).parameters[name].default

    noise = Noise(parse_sigmas(default(flatness_command, "sigmas")))
    assert noise == Noise()
    assert default(flatness_command, "draws") == noise.draws
    assert default(flatness_command, "seed") == noise.seed
    packed = PackOptions(*(default(pack_command, x) for x in ("shorter_side", "quality")))
    assert packed == PackOptions()
    for command in (export_command, predict_command, serve_command):
        assert default(command, "refuse") == REFUSED


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder of runs with a short one in it, and what was shown of that."""
    out = tmp_path_factory.mktemp("runs")
    result = call("run", "--out", out, *SHORT)
    assert result.exit_code == 0, result.stderr
    return out, result


def test_a_run_tells_what_it_does(finished: tuple[Path, Result]) -> None:
    out, result = finished
    found = stored(out)
    first, second = found["steps"]
    told = [line for line in result.stderr.splitlines() if not line.startswith("Warning: ")]
    assert told[:2] == [
        "rdkd on digits with resnet8, seed 1993: 10 classes in 2 tasks of 5.",
        f"Run folder: {found['folder']}",
    ]
    accuracy = percent(first["accuracy"])
    assert told[2].startswith(f"task 1 learned 4, 2, 7 and 2 more: accuracy {accuracy} %, ")
    accuracy, old, new = (
        percent(second[part]) for part in ("accuracy", "old_accuracy", "new_accuracy")
    )
    assert told[3].startswith(
        f"task 2 learned 3, 5, 8 and 2 more: accuracy {accuracy} % (old {old}, new {new}), "
    )
    # Ten images of a class are fewer than the twenty exemplars that it may keep.
    assert "\nWarning: 5 of the 5 new classes have fewer images than the 20 " in result.stderr


def test_a_run_ends_with_a_table(finished: tuple[Path, Result]) -> None:
    out, result = finished
    found = stored(out)
    first, second = found["steps"]
    lines = result.stdout.splitlines()
    titles = ["task", "learned", "classes", "all %", "base %", "old %", "new %"]
    assert lines[1].split() == " ".join([*titles, "seconds", "images/s"]).split()
    base = percent(first["accuracy"])
    row = ["1", "4,", "2", "and", "3", "more", "5", base, base, "-", base]
    assert lines[3].split()[:11] == row
    parts = ("accuracy", "base_accuracy", "old_accuracy", "new_accuracy")
    row = ["2", "3,", "5", "and", "3", "more", "10", *(percent(second[part]) for part in parts)]
    assert lines[4].split()[:11] == row
    average, forgetting = found["average_incremental_accuracy"], found["forgetting"]
    assert lines[-2:] == [
        f"Average incremental accuracy {percent(average)} %, "
        f"forgetting {percent(forgetting)} points.",
        f"Results are in {found['folder']}.",
    ]


def test_a_finished_run_is_only_shown(finished: tuple[Path, Result]) -> None:
    out, first = finished
    files = {file: file.stat().st_mtime_ns for file in out.rglob("*.json")}
    again = call("run", "--out", out, *SHORT)
    assert again.exit_code == 0
    assert again.stderr == "Already finished; showing the stored result.\n"
    assert again.stdout == first.stdout
    as_json = call("run", "--out", out, *SHORT, "--json")
    assert json.loads(as_json.stdout) == stored(out)
    assert as_json.stderr == again.stderr + first.stdout
    quiet = call("run", "--out", out, *SHORT, "--quiet")
    assert (quiet.stdout, quiet.stderr) == (first.stdout, "")
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.json")} == files


def test_another_method_takes_the_base_from_there(finished: tuple[Path, Result]) -> None:
    out, _ = finished
    result = call("run", "--out", out, *SHORT, "--method", "finetune", "--json")
    assert result.exit_code == 0, result.stderr
    assert "\nReusing the base task of an earlier run.\n" in result.stderr
    found = json.loads(result.stdout)
    (other,) = out.glob("digits-rdkd-*/result.json")
    before = json.loads(other.read_text("utf-8"))
    assert found["config"]["method"]["name"] == "finetune"
    assert found["steps"][0] == before["steps"][0]
    assert before["steps"][1]["notes"]["kd.lambda"] > 0
    assert found["steps"][1]["notes"] == {}


@pytest.mark.slow
def test_the_bar_is_gone_when_a_run_is_over(tmp_path: Path) -> None:
    primary, secondary = pty.openpty()
    terminal = Path(os.ttyname(secondary))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = ForkedCommand(
        ["run", "--out", "runs", *SHORT], tmp_path, terminal, terminal, environment
    )
    with command:
        command.wait_for(lambda: select.select([primary], [], [], 0)[0])
        os.close(secondary)  # which the command has, too
        text = b""
        while piece := read(primary):
            text += piece
        assert command.wait() == 0
    os.close(primary)
    seen = text.decode()
    for doing in ("preparing", "evaluating"):
        assert f"task 1/2 · {doing}" in seen
    assert "task 2/2 · evaluating" in seen
    # What follows the last line that was erased is what stays.
    assert "·" not in seen.rpartition("\x1b[2K")[2]
    assert "Results are in runs/digits-rdkd-" in seen.rpartition("\x1b[2K")[2]


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end was closed
        return b""


class Started:
    """A run in a process of its own, whose stderr can be waited for."""

    def __init__(
        self, folder: Path, *options: str, environment: dict[str, str] | None = None
    ) -> None:
        self.call = [*COMMAND, *options]
        self.errors = folder / "errors.txt"
        with self.errors.open("w") as file:
            self.process = subprocess.Popen(
                self.call, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=file
            )

    def said(self) -> str:
        return self.errors.read_text("utf-8")

    def wait_for(self, words: str) -> None:
        while words not in self.said():
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on_and_ends_like_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SHORT, "--epochs", "6", "--out"]
    whole = tmp_path / "whole"
    assert call("run", *options, whole).exit_code == 0
    epoch = "in parts/bases/*/00000{}.json"  # of two batches
    environment = self_signalled(tmp_path / "ctrl-c", signal.SIGINT, epoch.format(2))
    started = Started(tmp_path, *options, "in parts", environment=environment)
    assert started.process.wait() == 128 + signal.SIGINT
    *_, asked, farewell = started.said().splitlines()
    assert asked == "Stopping after this batch; press Ctrl-C to quit at once."
    start, _, command = farewell.partition(": ")
    assert start == "Stopped and saved. To resume, run"
    assert shlex.split(command) == started.call
    assert "'in parts'" in command

    environment = self_signalled(tmp_path / "terminated", signal.SIGTERM, epoch.format(6))
    stopped = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert stopped.returncode == 128 + signal.SIGTERM
    assert stopped.stderr.splitlines()[-1] == farewell
    assert not list(tmp_path.glob("in parts/*/result.json"))
    monkeypatch.chdir(tmp_path)
    assert call("run", *options, "in parts").exit_code == 0

    def numbers(out: Path) -> list[dict[str, Any]]:
        timed = ("seconds", "images_per_second")
        return [
            {name: value for name, value in step.items() if name not in timed}
            for step in stored(out)["steps"]
        ]

    assert numbers(tmp_path / "in parts") == numbers(whole)


def test_ctrl_c_twice_leaves_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "order")
    started = Started(tmp_path, *SHORT, "--order", "order", "--out", "runs")
    # It waits for the names of classes, which never come.
    pipe = opened(tmp_path / "order", started.process)
    started.process.send_signal(signal.SIGINT)
    started.wait_for("Stopping after this batch")
    assert started.process.poll() is None
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait() == 128 + signal.SIGINT
    os.close(pipe)
    assert started.said().splitlines()[-1] == (
        f"Quit at once. To resume from the last checkpoint, run: {shlex.join(started.call)}"
    )


def opened(pipe: Path, reader: subprocess.Popen[bytes]) -> int:
    """The writing end of a pipe, as soon as someone reads from it."""
    while reader.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
    raise AssertionError("The reader has ended.")


def test_what_cannot_be_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    out = ("run", "--out", tmp_path)
    sentence = refused(*out, "-o", "scenario.stepz=3")
    assert "scenario.stepz" in sentence
    assert "did you mean scenario.steps?" in sentence
    assert "did you mean rdkd?" in refused(*out, "--method", "rdk")
    assert "did you mean digits?" in refused(*out, "--data", "digit")
    assert "can't be divided" in refused(*out, "--steps", "4")
    assert "KEY=VALUE" in refused(*out, "-o", "seed")
    assert "epochs" in refused(*out, "--epochs", "many")
    assert "no configuration file" in refused(*out, "--config", tmp_path / "none.toml")
    assert not list(tmp_path.glob("*/result.json"))
    (tmp_path / "notes.txt").touch()
    told = refused("run", "--out", tmp_path / "notes.txt", *SHORT)
    assert "notes.txt" in told
    assert "can't be used: Not a directory." in told


def test_options_stand_for_settings() -> None:
    settings = shown(
        *("--data", "cifar100", "--data-dir", "sets", "--increment", "10", "--base", "50"),
        *("--order", "icarl", "--method", "gkd", "--memory-total", "2000", "--epochs", "30%"),
        *("--network", "resnet20", "--seed", "7", "--devices", "2", "--validation", "0.25"),
        *("--nodes", "4", "-o", "engine.compile=on"),
    )
    assert settings["data"] == {
        **{"source": "cifar100", "dir": "sets"},
        **{"oversample_rare": False, "validation": 0.25},
    }
    scenario = {"base": 50, "increment": 10, "equal": False, "order": "icarl"}
    assert settings["scenario"] == scenario
    assert settings["method"]["name"] == "gkd"
    assert settings["memory"]["total"] == 2000
    assert "per_class" not in settings["memory"]
    assert (settings["epochs"], settings["network"], settings["seed"]) == (0.3, "resnet20", 7)
    engine = settings["engine"]
    assert (engine["devices"], engine["nodes"], engine["compile"]) == (2, 4, "on")
    settings = shown("--order", "7", "--steps", "1", "--equal", "--memory", "5", "--epochs", "10")
    assert settings["scenario"] == {"steps": 1, "equal": True, "order": 7}
    assert settings["memory"]["per_class"] == 5
    assert settings["epochs"] == 10
    settings = shown("--tasks", "5, 3,2", "--test-per-class", "9")
    assert settings["scenario"] == {"tasks": [5, 3, 2], "equal": False, "order": 1993}
    assert settings["data"]["test_per_class"] == 9
    assert shown("--tasks", "names.txt")["scenario"]["tasks"] == "names.txt"
    named = shown("--tasks", '[["cat", "dog"], ["car"]]')["scenario"]
    assert named["tasks"] == [["cat", "dog"], ["car"]]
    assert "steps" not in named
    assert shown("--data", "folder:a", "--image-size", "64")["data"]["image_size"] == 64


def test_overrides_count_more_than_options_and_those_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 1\n[memory]\nper_class = 9\n[scenario]\nincrement = 1\n")
    settings = shown("--config", file)
    assert (settings["seed"], settings["memory"]["per_class"]) == (1, 9)
    settings = shown("--config", file, "--seed", "2", "--memory-total", "99", "--steps", "5")
    assert settings["seed"] == 2
    assert settings["memory"] == {"total": 99, "selection": "random"}
    assert "increment" not in settings["scenario"]
    settings = shown("--config", file, "--seed", "2", "-o", "seed=3", "-o", "memory.per_class=4")
    assert (settings["seed"], settings["memory"]["per_class"]) == (3, 4)


def test_what_is_shown_can_be_used(tmp_path: Path) -> None:
    text = call("config", "show", *SHORT, "--method", "fdkd").stdout
    file = tmp_path / "mine.toml"
    file.write_text(text)
    assert call("config", "show", "--config", file).stdout == text
    result = call("config", "check", file)
    assert result.exit_code == 0
    assert result.stdout == f"{file} is valid: fdkd on digits with resnet8.\n"


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seeds = 1\n")
    assert "did you mean seed?" in refused("config", "check", file)
    file.write_text("seed = = 1\n")
    assert "is not TOML" in refused("config", "check", file)


@pytest.mark.parametrize("command", ["run", "config show", "config check"])
def test_help_has_an_example_and_is_quick(command: str) -> None:
    code = (
        "import atexit, sys\nfrom densekd.cli import app\n"
        "heavy = {'torch', 'lightning_fabric', 'densekd.config.schema'}\n"
        "atexit.register(lambda: print(heavy & set(sys.modules)))\n"
        f"app([*{command.split()}, '--help'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert f"densekd {command} " in result.stdout.partition("Example")[2]
    assert result.stdout.endswith("set()\n")


def test_config_show_lists_what_is_unset_but_not_other_methods() -> None:
    shown = CliRunner().invoke(app, ["config", "show", "--method", "gkd"])
    assert shown.exit_code == 0
    assert "# image_size = none" in shown.stdout
    assert "podnet" not in shown.stdout
