from typer.testing import CliRunner

from densekd.cli import app


def test_a_list_of_runs_is_not_json() -> None:
    options = ["table4-distillations", "--dry-run", "--json"]
    result = CliRunner().invoke(app, ["sweep", *options])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "leave out --json" in result.stderr
