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

import logging
import os
import subprocess
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config

from decoders.api import Execution, ImageModel, Loop, Piece
from decoders.execution.eager import chain, once
from decoders.execution.state import device_of, fill, snapshot
from decoders.places import folder

logger = logging.getLogger(__name__)
Call = Callable[..., tuple[Any, ...]]
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
class Compiled(Execution):
    """torch.compile around every piece. `seconds`: spent compiling so far; autotune: on the CPU,
    choose the kernel of every product by measurement, and call all kernels from C++ (two minutes a
    decoder). Without it pieces have no products worth a second thread, which costs more than it
    gains in the short loops between them, and twenty times a piece where the core is taken."""

    name: str = "compile"
    seconds: float = 0.0
    autotune: bool = True
    since: float | None = None  # when what is compiled now was begun

    def compiling(self) -> float:
        now = time.perf_counter()
        return self.seconds + (0.0 if self.since is None else now - self.since)

    def prepare(self, model: ImageModel) -> None:
        """Pieces are compiled when they are first run."""

    def fit(self, loop: Any) -> bool:
        """Parts keep their tensor code, which the compiler fuses; shapes stay."""
        return False

    def begin(self, loop: Loop, run: Any) -> Any:
        run.path = {phase: "compiled" for phase, _ in loop.pieces()}
        return run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        if run.shape not in loop.prepared:
            kept = snapshot(run)
            once(loop.pieces(), run)  # what is chosen and allocated once is so before a trace
            fill(run, kept)
            loop.prepared[run.shape] = self.pieces(loop, run)
        return chain(loop.prepared[run.shape], run)

    def pieces(self, loop: Loop, run: Any) -> list[Piece]:
        """The loop's pieces, compiled when they are first called."""
        device = device_of(run)
        return [(phase, self.piece(piece, device)) for phase, piece in loop.pieces()]

    def ready(self, loop: Loop, run: Any, phase: str, plain: Call) -> tuple[str, Call]:
        """How a piece runs, and what runs it: "compiled", or "eager" where it cannot be compiled,
        which its first call finds out. Kept for the loop's runs of this shape."""
        kept: dict[str, tuple[str, Call]] = loop.prepared.setdefault(run.shape, {})

        def call(run: Any, *carry: Any) -> tuple[Any, ...]:
            if phase in kept:
                return kept[phase][1](run, *carry)
            piece, out = self.tried(phase, plain, run, carry)
            kept[phase] = run.path[phase], piece
            return out

        return kept.get(phase, ("compiled", call))

    def tried(
        self, phase: str, plain: Call, run: Any, carry: tuple[Any, ...]
    ) -> tuple[Call, tuple[Any, ...]]:
        """A piece compiled by running it, or as it is where that fails, and what it returned. The
        run's path says which."""
        before = snapshot(run)
        try:
            piece, run.path[phase] = self.piece(plain, device_of(run)), "compiled"
            return piece, piece(run, *carry)
        except FAILURES as error:
            logger.warning(
                "the piece %r runs operator by operator: it cannot be compiled (%s)",
                phase,
                str(error).strip().partition("\n")[0],
            )
            fill(run, before)
            run.path[phase] = "eager"
            return plain, plain(run, *carry)

    def _options(self, device: torch.device) -> dict[str, Any]:
        """A new dictionary for every piece: torch.compile takes the guards' filter out of it."""
        options = dict(CUDA_OPTIONS)
        if device.type == "cpu":  # a third of a small verification is Python between kernels
            options = CPU_OPTIONS | {"max_autotune": self.autotune, "cpp_wrapper": self.autotune}
            options |= {} if self.autotune else {"cpp.threads": 1, "size_asserts": False}
        return options | {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}

    def piece(self, piece: Callable[..., Any], device: torch.device) -> Call:
        """One piece, compiled when it is first called. Compiled code is kept from run to run."""
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "compiled"))
        freeze, own = device.type == "cpu", fresh(piece)
        ready = torch.compile(own, dynamic=False, fullgraph=True, options=self._options(device))
        first = True

        def call(*args: Any) -> tuple[Any, ...]:
            nonlocal first, ready
            if not first:
                return ready(*args)
            self.since, first = time.perf_counter(), False
            try:
                # TorchDynamo asks the global setting whether weights are constants.
                with torch._inductor.config.patch(freezing=freeze), silent():
                    out = ready(*args)
            finally:
                self.seconds, self.since = self.compiling(), None
            ready = direct(own) or ready
            return out

        return call


@contextmanager
def silent() -> Iterator[None]:
    """Keeps Inductor from writing tables and statistics of every product that it measured."""
    with torch._inductor.config.patch(
        autotune_num_choices_displayed=0, max_autotune_report_choices_stats=False
    ):
        yield


def direct(method: Callable[..., Any]) -> Call | None:
    """What TorchDynamo made of a compiled bound method, to be called without its look for guards,
    of which there are none: 0.15 ms less per call, a third of a small acceptance. None where it is
    not to be had."""
    made = torch._dynamo.eval_frame._debug_get_cache_entry_list(method.__func__.__code__)  # type: ignore[attr-defined]
    return fresh(method, made[0].code) if len(made) == 1 else None


def fresh(method: Callable[..., Any], code: types.CodeType | None = None) -> Callable[..., Any]:
    """The same bound method on a code object of its own."""
    function = method.__func__  # type: ignore[attr-defined]
    copy = types.FunctionType(
        function.__code__.replace() if code is None else code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return types.MethodType(copy, method.__self__)  # type: ignore[attr-defined]
