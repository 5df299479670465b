"""The experiments that come with the package, and how an experiment is found by its name."""

from pathlib import Path

from densekd.sweeps.search import proposal

# The paper's tables and figures.
LIBRARY = Path(__file__).with_name("experiments")


def experiment_names() -> list[str]:
    """The names of all experiments that ``densekd sweep NAME`` finds here."""
    return sorted(_files())


def find_experiment(name: str) -> Path:
    """The file of an experiment: the path of a TOML file, or the name of an experiment.

    A file in the folder ``experiments`` of the working folder comes before one of the package.

    Raises:
        ValueError: there is none of that name; the message has those that there are.
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
