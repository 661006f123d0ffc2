"""The CPU kernel's torch operators: compiled where they run, for the processor they run on.

One call of a C++ compiler on `kernel.cpp`, some seconds, once per machine: the library is kept
under a name made of the source, the flags, the compiler, the processor and PyTorch's version. It is
not linked with an OpenMP library of its own: it uses the one that PyTorch has loaded, since two
would keep two sets of threads spinning on the same cores.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.cache_folder import folder, no_programs
from decoders.cpu_info import COMPILERS, compiler, features, unused, version

TORCH_FOLDER = Path(torch.__file__).parent
KERNEL_SOURCE = Path(__file__).parent / "kernel.cpp"
COMPILER_FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-fPIC", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", *unused()),
)


def missing() -> str | None:
    """Why the kernel cannot be built here; None where it can."""
    if platform.system() != "Linux":
        return f"it is built on Linux only, this is {platform.system()}"
    program = compiler()
    if program is None and os.environ.get("CXX", "").strip():
        return f"CXX names {os.environ['CXX']!r}, which is no program here; give one, or unset CXX"
    if program is None:
        names = ", ".join(COMPILERS)
        return f"no C++ compiler ({names}) was found; install g++, or name one in CXX"
    if "clang" in version(program):
        name = shlex.join(program)
        return f"it needs g++ (Clang has other vector words), {name} is Clang; name g++ in CXX"
    if said := fault(program):
        return f"{shlex.join(program)} does not compile: {said}; name g++ 10 or newer in CXX"
    return None


@cache
def fault(program: tuple[str, ...]) -> str:
    """What the compiler says against a program of one line; "" where it compiles: an old one does
    not know the flags, and of one that is half installed parts are missing."""
    command = [*program, *COMPILER_FLAGS, "-x", "c++", "-c", "-", "-o", os.devnull]
    text = "#include <array>"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"status {done.returncode}")[-300:] if done.returncode else ""


@cache
def load() -> None:
    """Makes the operators `torch.ops.lantern_cpu` known, compiled first where need be.

    Raises DecoderError where there is no compiler, or it fails.
    """
    reason = missing()
    program = compiler()
    if reason is not None or program is None:
        raise DecoderError(f"the CPU kernel cannot be built: {reason}")
    sources = [KERNEL_SOURCE, *sorted(KERNEL_SOURCE.parent.glob("*.h"))]
    parts = (*(path.read_text() for path in sources), *COMPILER_FLAGS, *program[1:])
    parts += (version(program), features())
    parts += (*platform.libc_ver(), torch.__version__)
    path = folder() / f"kernel-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.so"
    try:
        if not path.is_file():
            _compile(program, path)
    except OSError as error:
        raise DecoderError(
            f"the CPU kernel cannot be kept in {path.parent}: {error}; set XDG_CACHE_HOME to a "
            "folder that can be written, or set backend.execution=eager"
        ) from error
    if hasattr(torch.ops.lantern_cpu, "layers"):  # another import of this module has loaded it
        return
    _open(path)
    for name, shapes in FAKE_OPERATORS.items():
        torch.library.register_fake(f"lantern_cpu::{name}", shapes)


def _open(path: Path) -> None:
    try:
        torch.ops.load_library(path)
    except OSError as error:  # a damaged file, or a PyTorch that brings no OpenMP of GCC's
        advice = no_programs(path.parent) or f"delete {path}"
        raise DecoderError(
            f"the CPU kernel cannot be loaded: {error}; {advice}, or set backend.execution=eager"
        ) from error


def _linear(weights: Tensor, bias: Tensor | None, outputs: int, x: Tensor, wide: bool) -> Tensor:
    return x.new_empty(*x.shape[:-1], outputs, dtype=torch.float32 if wide else x.dtype)


def _layers(*arguments: Any) -> Tensor:
    x, wanted = arguments[9], arguments[14] if len(arguments) > 14 else None
    rows, queries, width = x.shape
    states: Tensor = x.new_empty(rows, queries if wanted is None else wanted.shape[1], width)
    return states


# By operator what a compiler knows of its result.
FAKE_OPERATORS: dict[str, Callable[..., Tensor]] = {"linear": _linear, "layers": _layers}


def _compile(program: tuple[str, ...], path: Path) -> None:
    """In the same folder, then moved to its place: two processes may build at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        part, library = Path(name) / "kernel.o", Path(name) / "kernel.so"
        includes = f"-I{TORCH_FOLDER / 'include'}"
        linked = [f"-L{TORCH_FOLDER / 'lib'}", f"-Wl,-rpath,{TORCH_FOLDER / 'lib'}", "-ltorch_cpu"]
        for command in (
            [*program, *COMPILER_FLAGS, includes, "-c", str(KERNEL_SOURCE), "-o", str(part)],
            [*program, "-shared", str(part), *linked, "-o", str(library)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not Path(command[-1]).is_file():
                says = done.stderr.strip()[-500:] or f"it wrote neither {command[-1]} nor a reason"
                raise DecoderError(
                    f"the CPU kernel cannot be built: {shlex.join(program)} ended with "
                    f"{done.returncode}: {says}; name a working g++ in CXX, or set "
                    "backend.execution=eager"
                )
        library.replace(path)
