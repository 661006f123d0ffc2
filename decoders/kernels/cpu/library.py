"""The CPU kernel's shared library: compiled where it runs, for the processor it runs on.

One call of a C++ compiler on `stack.cpp`, a few seconds, once a machine: the library is kept under
a name made of the source, the flags, the compiler and the processor. It is not linked with an
OpenMP library of its own: it uses the one that PyTorch has loaded, since two would keep two sets of
threads spinning on the same cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from decoders.api import DecoderError

SOURCE = Path(__file__).parent / "stack.cpp"
COMPILERS = ("c++", "g++", "clang++")
WORDS = "-std=c++17 -O3 -march=native -fPIC -fopenmp"
FLAGS = (*WORDS.split(), "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")


class LayerWeights(ctypes.Structure):
    """`LayerWeights` of stack.cpp."""

    _fields_ = [
        (n, ctypes.c_void_p) for n in ("attention_norm", "wqkv", "wo", "ffn_norm", "w13", "w2")
    ]


class Forward(ctypes.Structure):
    """`Forward` of stack.cpp."""

    _fields_ = [
        *((n, ctypes.c_long) for n in ("rows", "queries", "width", "heads", "ffn", "layers")),
        ("slots", ctypes.c_long),
        ("eps", ctypes.c_float),
        ("threads", ctypes.c_int),
        *((n, ctypes.c_void_p) for n in ("weights", "final_norm", "input", "output", "cache")),
        ("rope", ctypes.c_void_p),
        ("places", ctypes.c_long),
        ("place", ctypes.c_void_p),
        ("place_row", ctypes.c_long),
        ("place_query", ctypes.c_long),
        ("slot", ctypes.c_void_p),
        ("slot_row", ctypes.c_long),
        ("slot_query", ctypes.c_long),
        ("mask", ctypes.c_void_p),
        ("mask_row", ctypes.c_long),
        ("mask_query", ctypes.c_long),
        ("scratch", ctypes.c_void_p),
        ("products", ctypes.c_int),
    ]


def compiler() -> str | None:
    """The C++ compiler's path: $CXX, else the first of `COMPILERS` that there is."""
    named = os.environ.get("CXX")
    names = (named, *COMPILERS) if named else COMPILERS
    return next((found for name in names if (found := shutil.which(name))), None)


def missing() -> str | None:
    """Why the kernel cannot be built here; None where it can."""
    if platform.system() != "Linux":
        return f"it is built on Linux only, this is {platform.system()}"
    if compiler() is None:
        return f"no C++ compiler ({', '.join(COMPILERS)}) was found; install g++, or name one in CXX"
    return None


def folder() -> Path:
    """Where libraries are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lantern-bench"


def _processor() -> str:
    """The processor's model and features, as far as Linux tells."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


@cache
def library() -> ctypes.CDLL:
    """The loaded library, compiled first where need be.

    Raises DecoderError where there is no compiler, or it fails.
    """
    reason = missing()
    found = compiler()
    if reason is not None or found is None:
        raise DecoderError(f"the CPU kernel cannot be built: {reason}")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    parts = (SOURCE.read_text(), *FLAGS, version.stdout, _processor())
    name = f"stack-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.so"
    path = folder() / name
    if not path.is_file():
        _compile(found, path)
    loaded = ctypes.CDLL(str(path))
    loaded.lantern_scratch.restype = ctypes.c_long
    return loaded


def _compile(found: str, path: Path) -> None:
    """Beside its place, then moved there: two processes may build at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        part, made = Path(name) / "stack.o", Path(name) / "stack.so"
        # Linked without -fopenmp: see above.
        for command in (
            [found, *FLAGS, "-c", str(SOURCE), "-o", str(part)],
            [found, "-shared", str(part), "-o", str(made)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise DecoderError(
                    f"the CPU kernel cannot be built: {' '.join(command)} ended with "
                    f"{done.returncode}: {done.stderr.strip()[-500:]}; set backend.layers=torch"
                )
        made.replace(path)
