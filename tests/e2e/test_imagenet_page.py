"""The commands of docs/imagenet.md, carried out on archives of the same form with tiny images."""

import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from densekd.cli import app
from densekd.data.sources import SourceOptions, load

PAGE = Path(__file__).parents[2] / "docs" / "imagenet.md"
WNIDS = [f"n{i:08}" for i in (7, 3, 9, 5)]  # in the order of the development kit
# Short enough for a test; the settings of the page stay as they are.
SHORT = " --grid method.name=rdkd --grid scenario.steps=1 -o network=resnet8 -o data.image_size=16"
SHORT += " -o epochs=1 -o memory.per_class=2"


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def photo(seed: int) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), np.uint8)
    Image.fromarray(noise).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with tarfile.open("ILSVRC2012_img_train.tar", "w") as train:
        for wnid in WNIDS:
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as own:
                for i in range(6):
                    add(own, f"{wnid}_{i}.JPEG", photo(i))
            add(train, f"{wnid}.tar", inner.getvalue())
    with tarfile.open("ILSVRC2012_img_val.tar", "w") as val:
        for i in range(8):
            add(val, f"ILSVRC2012_val_{i + 1:08}.JPEG", photo(100 + i))
    synsets = np.zeros(len(WNIDS), dtype=[("ILSVRC2012_ID", object), ("WNID", object)])
    synsets["ILSVRC2012_ID"], synsets["WNID"] = range(1, 5), WNIDS
    savemat("meta.mat", {"synsets": synsets})
    truth = "\n".join(str(1 + i % 4) for i in range(8))
    with tarfile.open("ILSVRC2012_devkit_t12.tar.gz", "w:gz") as kit:
        add(kit, "ILSVRC2012_devkit_t12/data/meta.mat", Path("meta.mat").read_bytes())
        name = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
        add(kit, name, truth.encode())
    return tmp_path


@pytest.mark.slow
def test_the_page_leads_from_the_archives_to_a_report(archives: Path) -> None:
    scripts = Path(sys.executable).parent
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": source}
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["bash", "python", "bash", "bash"]
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), {})
            continue
        script = re.sub(r"(densekd sweep .*)", rf"\1{SHORT}", text)
        done = subprocess.run(
            ["bash", "-e", "-c", script], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    data = load("imagenet:imagenet.packed", SourceOptions(image_size=16))
    assert data.classes == tuple(sorted(WNIDS))
    assert data.train.labels.bincount().tolist() == [6, 6, 6, 6]
    assert data.test.labels.bincount().tolist() == [2, 2, 2, 2]
    checked = CliRunner().invoke(app, ["data", "check", "imagenet:imagenet.packed"])
    assert checked.exit_code == 0, checked.output
    assert "Every image can be read" in checked.stdout
    assert list(archives.glob("runs/table3/**/result.json"))
    assert list(archives.glob("report/*.html"))
