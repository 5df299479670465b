import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.model import predict
from densekd.model.model import Model, Prediction


def test_paths_on_stdin_end_with_a_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(model: object, files: list[Path], top: int) -> list[predict.FilePrediction]:
        return [predict.FilePrediction(file, Prediction([]), None) for file in files]

    monkeypatch.setattr(Model, "open", lambda folder, step: SimpleNamespace())
    monkeypatch.setattr(predict, "predict_files", answers)
    names = ["1.png", "a\u2028b.png", "c\x85d\x0b.png", "e f.png"]
    lines = "1.png\r\na\u2028b.png\n\nc\x85d\x0b.png\ne f.png"
    result = CliRunner().invoke(app, ["predict", "model", "-", "--json"], input=lines.encode())
    assert result.exit_code == 0
    assert [answer["image"] for answer in json.loads(result.stdout)] == names
