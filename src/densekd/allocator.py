"""This computer's memory, and how the C library keeps freed memory."""

import ctypes
import functools
import os
import platform

# Parameters of glibc's mallopt, and the value of the first two.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX, _BYTES = -1, -3, -8, 1 << 30


def physical_memory() -> int:
    """The memory of this computer, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def keep_freed_memory() -> None:
    """Keep freed memory for the next tensors, instead of giving it back to the system each time.

    By default, glibc asks the system for new memory for every large tensor, and the system fills it
    with zeros: a third of the time of a forward pass, and part of the time to read large images.
    The memory pools of single threads would still be given back, so all threads use the main pool.
    Other C libraries are left alone.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _BYTES)
        libc.mallopt(_ARENA_MAX, 1)
