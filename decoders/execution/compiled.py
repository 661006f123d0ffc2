"""Steps through torch.compile: one compiled function a piece, for one loop and one batch size.

Shapes are static, so nothing is recompiled and the guards, which cost a tenth of a small model's
step, are left out. That makes it this file's duty never to call a compiled piece with another
state than it was made for: pieces are kept by loop and batch size, and each is compiled from
a code object of its own (TorchDynamo keys what it compiled by the code object).

On the CPU the weights are folded into the compiled code as constants, packed for the processor's
matrix kernels, and every product is a kernel that Inductor writes: at a handful of rows that is
several times faster than a library call.
"""

from __future__ import annotations

import subprocess
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config

from decoders.api import AcceptRule, ImageModel
from decoders.execution.eager import Loop, Piece, chain
from decoders.execution.state import device_of
from decoders.verify.children import Judge

CPU_OPTIONS: dict[str, Any] = {"max_autotune_gemm_backends": "CPP,ATEN"}
CUDA_OPTIONS: dict[str, Any] = {
    # Products of few rows: libraries or Inductor's own, with what is around them, by measurement.
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON,ATEN",
    "coordinate_descent_tuning": True,
    "epilogue_fusion": True,
    "prologue_fusion": True,
    "triton.cudagraphs": False,
    "combo_kernels": True,  # small kernels that do not wait for each other are one launch
    "benchmark_combo_kernel": False,
    "split_reductions": False,  # a tree's rows fill a GPU: a sum in two launches gains nothing
}


# What a compiler that is missing, broken or asked too much fails with.
FAILURES = (RuntimeError, ImportError, OSError, subprocess.SubprocessError)


def not_compiling(device: torch.device) -> str | None:
    """Why torch.compile does not work on a device; None where it does. Compiles one line."""
    try:
        made = torch.compile(lambda x: x * 2 + 1, fullgraph=True)(torch.ones(64, device=device))
        return None if bool((made == 3).all()) else "it computes 2 * 1 + 1 wrongly"
    except FAILURES as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


@dataclass
class Compiled:
    """torch.compile around every piece. `seconds`: spent compiling so far; autotune: on the CPU,
    choose the kernel of every product by measurement, and call all kernels from C++ (two minutes a
    decoder)."""

    name: str = "compile"
    seconds: float = 0.0
    autotune: bool = True

    def prepare(self, model: ImageModel) -> None:
        """Pieces are compiled when they are first run."""

    def judge(self, rule: AcceptRule, device: torch.device) -> Judge | None:
        return None

    def fit(self, loop: Any) -> bool:
        """Parts keep their tensor code, which the compiler fuses; shapes stay."""
        return False

    def begin(self, loop: Loop, run: Any) -> Any:
        return run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        if run.shape not in loop.prepared:
            loop.prepared[run.shape] = self.pieces(loop, run)
        return chain(loop.prepared[run.shape], run)

    def pieces(self, loop: Loop, run: Any) -> list[Piece]:
        """The loop's pieces, compiled when they are first called."""
        device = device_of(run)
        options = dict(CPU_OPTIONS if device.type == "cpu" else CUDA_OPTIONS)
        if device.type == "cpu":  # a third of a small verification is Python between kernels
            options |= {"max_autotune": self.autotune, "cpp_wrapper": self.autotune}
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
        freeze = device.type == "cpu"
        return [(phase, self._compiled(piece, options, freeze)) for phase, piece in loop.pieces()]

    def _compiled(
        self, piece: Callable[..., Any], options: dict[str, Any], freeze: bool
    ) -> Callable[..., tuple[Any, ...]]:
        ready = torch.compile(fresh(piece), dynamic=False, fullgraph=True, options=options)
        first = True

        def call(*args: Any) -> tuple[Any, ...]:
            nonlocal first
            if not first:
                return ready(*args)
            begin, first = time.perf_counter(), False
            # TorchDynamo asks the global setting whether weights are constants, not the options.
            with torch._inductor.config.patch(freezing=freeze), silent():
                out = ready(*args)
            self.seconds += time.perf_counter() - begin
            return out

        return call


@contextmanager
def silent() -> Iterator[None]:
    """Keeps Inductor from writing a table of every product that it measured."""
    from torch._inductor import select_algorithm

    before = select_algorithm.PRINT_AUTOTUNE
    select_algorithm.PRINT_AUTOTUNE = False
    try:
        yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = before


def fresh(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same bound method on a code object of its own."""
    function = method.__func__  # type: ignore[attr-defined]
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return types.MethodType(copy, method.__self__)  # type: ignore[attr-defined]
