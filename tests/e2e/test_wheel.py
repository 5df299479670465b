"""What a user gets from `pip install densekd`: the built wheel, in an empty folder."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import densekd

ROOT = Path(__file__).parents[2]


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, without the source tree on its path."""
    own = ("PYTHONPATH", "PIP_CONSTRAINT")  # the latter is a path in the source tree
    environment = {key: value for key, value in os.environ.items() if key not in own}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a virtual environment into which the wheel was installed.

    It finds the dependencies in this environment, because installing them takes minutes. Files
    that end in ``.pth`` are not read there, so it doesn't find the package itself.
    """
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("densekd-*.whl")
    # The pip of this environment serves the other: making it one of its own takes seconds.
    call(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    scripts = folder / "venv" / "bin"
    call(
        *(sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--quiet"),
        *("--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    (packages,) = folder.glob("venv/lib/*/site-packages")
    dependencies = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    return scripts


@pytest.mark.slow
def test_the_wheel_runs_an_experiment_and_reports_it(installed: Path, tmp_path: Path) -> None:
    program = installed / "densekd"
    where = call(
        installed / "python", "-c", "import densekd; print(densekd.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert call(program, "--version", cwd=tmp_path) == f"densekd {densekd.__version__}\n"

    sweep = ["sweep", "table4-distillations", "--data", "digits", "--scale", "0.02"]
    few = ["-o", "data.per_class=20", "-o", "data.test_per_class=10"]
    swept = call(program, *sweep, *few, cwd=tmp_path)
    assert "table4-distillations at scale 0.02 of all epochs: 4 of 4 runs finished." in swept
    assert "Impossible: gkd steps=10, tkd steps=10, fdkd steps=10, rdkd steps=10: " in swept
    assert "can't be divided into 10 equal steps" in swept

    assert "Open report/index.html." in call(program, "report", cwd=tmp_path)
    page = (tmp_path / "report" / "index.html").read_text("utf-8")
    assert "Table 4: four distillations" in page
    assert len(list((tmp_path / "report" / "figures").glob("*.pdf"))) > 3
