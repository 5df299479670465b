import os
import platform
import subprocess
import sys

import pytest

# How many pages the system fills while 64 MB are allocated and freed ten times.
FAULTS = """
import resource
import numpy as np
from densekd.allocator import keep_freed_memory
{call}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.empty(64 << 20, np.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(call: str) -> int:
    command = [sys.executable, "-c", FAULTS.format(call=call)]
    # Huge pages come in numbers that vary.
    env = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}
    return int(subprocess.check_output(command, env=env))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again() -> None:
    assert page_faults("keep_freed_memory()") < page_faults("") / 3
