import os
from pathlib import Path

import pytest
from hypothesis import settings

from densekd.data.cifar import find_cifar, load_cifar
from densekd.data.dataset import Dataset

# Examples are drawn the same way every time, and none is timed: a red test stays red.
settings.register_profile("densekd", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("densekd")


@pytest.fixture(scope="session")
def real_dir() -> Path:
    """A folder with the real CIFAR-100."""
    folder = Path(os.environ.get("DENSEKD_DATA", ""))
    if find_cifar("cifar100", folder) is None:
        pytest.skip("no CIFAR-100")
    return folder


@pytest.fixture(scope="session")
def cifar100(real_dir: Path) -> Dataset:
    """The real CIFAR-100."""
    return load_cifar("cifar100", real_dir, download=False)
