"""Find experiments by name, among those of the package and the user's."""

from pathlib import Path

from densekd.sweeps.search import proposal

# The paper's tables and figures.
LIBRARY = Path(__file__).with_name("experiments")


def experiment_names() -> list[str]:
    """The names of all experiments that ``densekd sweep NAME`` finds here."""
    return sorted(_files())


def find_experiment(name: str) -> Path:
    """Find the file of an experiment, given its name or the path of a TOML file.

    A file in the working folder's ``experiments`` takes precedence over one of the package.

    Raises:
        ValueError: no experiment has that name; the message proposes the nearest, or lists all.
    """
    file = Path(name)
    if file.suffix == ".toml" or file.parent != Path():
        return file
    known = _files()
    if name in known:
        return known[name]
    raise ValueError(f"There is no experiment {name!r}; {proposal(name, sorted(known))}")


def _files() -> dict[str, Path]:
    folders = (LIBRARY, Path("experiments"))
    return {file.stem: file for folder in folders for file in folder.glob("*.toml")}
