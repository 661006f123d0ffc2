"""The CPU kernel's shared library: compiled where it runs, for the processor it runs on.

One call of a C++ compiler on `kernel.cpp`, a few seconds, once a machine: the library is kept under
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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from decoders.api import DecoderError
from decoders.execution.cpu.processor import cpuinfo
from decoders.execution.cpu.structures import FUNCTIONS, Struct, arguments
from decoders.places import folder

SOURCE = Path(__file__).parent / "kernel.cpp"
COMPILERS = ("g++", "c++")
WORDS = "-std=c++17 -O3 -march=native -fPIC -fopenmp"
LOADED_IN = "loaded_in"  # attribute of the library: the process that loaded it
FLAGS = (*WORDS.split(), "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")


def compiler() -> str | None:
    """The C++ compiler's path: $CXX, else the first of `COMPILERS` that there is."""
    named = os.environ.get("CXX")
    names = (named,) if named else COMPILERS
    return next((found for name in names if (found := shutil.which(name))), None)


@cache
def version(found: str) -> str:
    """What the compiler says of itself; it names Clang, under whatever name that goes."""
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def missing() -> str | None:
    """Why the kernel cannot be built here; None where it can."""
    if platform.system() != "Linux":
        return f"it is built on Linux only, this is {platform.system()}"
    found = compiler()
    if found is None and os.environ.get("CXX"):
        return f"CXX names {os.environ['CXX']!r}, which is no program here; give one, or unset CXX"
    if found is None:
        names = ", ".join(COMPILERS)
        return f"no C++ compiler ({names}) was found; install g++, or name one in CXX"
    if "clang" in version(found):
        return f"it needs g++ (Clang has other vector words), {found} is Clang; name g++ in CXX"
    return None


def _processor() -> str:
    """The processor's model and features, as far as Linux tells."""
    info = cpuinfo()
    wanted = ("CPU part", "Features", "flags", "model name")
    return "\n".join(f"{key}: {value}" for key in wanted for value in sorted(info.get(key, [])))


@cache
def library() -> ctypes.CDLL:
    """The loaded library, compiled first where need be.

    Raises DecoderError where there is no compiler, or it fails.
    """
    reason = missing()
    found = compiler()
    if reason is not None or found is None:
        raise DecoderError(f"the CPU kernel cannot be built: {reason}")
    sources = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
    parts = (*(path.read_text() for path in sources), *FLAGS, version(found), _processor())
    parts += platform.libc_ver()
    path = folder() / f"kernel-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.so"
    try:
        if not path.is_file():
            _compile(found, path)
    except OSError as error:
        raise DecoderError(
            f"the CPU kernel cannot be kept in {path.parent}: {error}; set XDG_CACHE_HOME to a "
            "folder that can be written, or set backend.layers=torch"
        ) from error
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:  # a damaged file, or a PyTorch that brings no OpenMP of GCC's
        raise DecoderError(
            f"the CPU kernel cannot be loaded: {error}; delete {path}, or set backend.layers=torch"
        ) from error
    setattr(loaded, LOADED_IN, os.getpid())
    for name, declared in FUNCTIONS.items():
        getattr(loaded, f"lantern_{name}").argtypes = arguments(declared)
    loaded.lantern_scratch.restype = loaded.lantern_size.restype = ctypes.c_long
    for kind in Struct.__subclasses__():
        size = loaded.lantern_size(kind.__name__.encode())
        if size != ctypes.sizeof(kind):
            raise DecoderError(
                f"the CPU kernel's {kind.__name__} has {size} bytes, Python's has "
                f"{ctypes.sizeof(kind)}: its fields are not those of the header (structures.py)"
            )
    return loaded


def run(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function of the library. Raises DecoderError where it found an index out of its
    range, before it has written anything; and in a process that was forked from one that had loaded
    it: OpenMP's threads stay behind in the parent, and the child would wait for them for ever."""
    if getattr(library(), LOADED_IN) != os.getpid():
        raise DecoderError(
            "this process was forked after its parent had used the CPU kernel, whose threads a "
            "fork does not copy: start processes with spawn "
            '(multiprocessing.get_context("spawn"), or set_start_method("spawn")), or decode in '
            "the parent only after the fork"
        )
    if function(*arguments):
        raise DecoderError(
            f"the CPU kernel ({name}): a code, node, slot or place lies outside its table; the "
            "decoder or drafter that called it is wrong, or backend.layers=torch will say more"
        )


def _compile(found: str, path: Path) -> None:
    """In the same folder, then moved to its place: two processes may build at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        part, made = Path(name) / "kernel.o", Path(name) / "kernel.so"
        # Linked without -fopenmp: see above.
        for command in (
            [found, *FLAGS, "-c", str(SOURCE), "-o", str(part)],
            [found, "-shared", str(part), "-o", str(made)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not Path(command[-1]).is_file():
                says = done.stderr.strip()[-500:] or f"it wrote neither {command[-1]} nor a reason"
                raise DecoderError(
                    f"the CPU kernel cannot be built: {' '.join(command)} ended with "
                    f"{done.returncode}: {says}; name a working g++ in CXX, or set "
                    "backend.layers=torch"
                )
        made.replace(path)
