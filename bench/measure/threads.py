"""The threads that OpenMP really gives.

PyTorch asks for a number of threads and takes it for granted. Batch systems limit it by variables
(OMP_THREAD_LIMIT, OMP_DYNAMIC), and with fewer threads oneDNN leaves a part of a product undone:
what comes out is NaN, or wrong. So the threads of a parallel region are counted.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from pathlib import Path

import torch

from bench.errors import ConfigError

log = logging.getLogger(__name__)
MAPS = Path("/proc/self/maps")  # the libraries that are loaded
OPENMP = re.compile(r"\S*/lib[gi]?omp\d*[-.][^/\n]*$", re.MULTILINE)  # of GCC, Intel and LLVM
LIMITS = ("OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "KMP_DEVICE_THREAD_LIMIT",
          "KMP_ALL_THREADS")  # fmt: skip


def given_threads(wanted: int) -> int:
    """How many threads a parallel region has that asks for `wanted`; `wanted` where that cannot be
    counted. OpenMP is told to change the number no more from region to region (OMP_DYNAMIC)."""
    try:
        library = OPENMP.search(MAPS.read_text())
        openmp = ctypes.CDLL(library[0]) if library else None
    except OSError:
        return wanted
    if openmp is None or not hasattr(openmp, "GOMP_parallel"):
        return wanted
    openmp.omp_set_dynamic(0)
    threads: list[None] = []
    count = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: threads.append(None))
    openmp.GOMP_parallel(count, None, ctypes.c_uint(wanted), ctypes.c_uint(0))
    return len(threads)


def require_threads(wanted: int) -> None:
    """Raises ConfigError where OpenMP gives fewer threads than `backend.threads`."""
    if (given := given_threads(wanted)) < wanted:
        raise ConfigError(
            f"backend.threads={wanted}, but OpenMP gives this process {given}{_by_what()}: "
            f"products would be left half done. Set backend.threads={given}, or raise the limit"
        )


def use_given_threads() -> None:
    """Has torch use no more threads than OpenMP gives it, and says so where these are fewer."""
    wanted = torch.get_num_threads()
    if (given := given_threads(wanted)) < wanted:
        log.warning("OpenMP gives %d of %d threads%s; so many are used", given, wanted, _by_what())
        torch.set_num_threads(given)


def _by_what() -> str:
    """Names the variables that may limit them."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    return f", by {' and '.join(limits)}" if limits else ""
