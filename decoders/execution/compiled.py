"""Steps through torch.compile: one compiled function a piece, for one loop and one batch size.

Shapes are static, so TorchDynamo's guards, which cost a tenth of a small model's step, are left
out. That makes it this file's duty never to call a compiled piece with another state than it was
made for. Pieces are kept by loop and batch size, by the signature (`signature_of`: shapes, strides,
dtypes, numbers) of the run, and by that of what the piece before returned. Another signature is
compiled anew, from a code object of its own (TorchDynamo keys what it compiled by the code object).
So a loop may have steps of a few shapes.
"""

from __future__ import annotations

import logging
import subprocess
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch
import torch._dynamo.config
import torch._inductor.config
from torch import Tensor

from decoders.api import Execution, Loop, Target, TextFeatures
from decoders.cache import round_up
from decoders.cache_folder import compiled_folder, no_programs
from decoders.execution.eager import Eager
from decoders.execution.state import fill, signature_of, snapshot, step_in_place, tensors

logger = logging.getLogger(__name__)
Call = Callable[..., tuple[Any, ...]]
GraphFunction = Callable[..., Sequence[Any]]  # of a graph, for its inputs
# Phase, piece, and its compiled functions, by the signature of the input or by the compiled
# function of the piece before (a function of None: compilation failed). None: it stays eager.
ReadyPiece = tuple[str, Call, dict[Any, Call | None] | None]
# Matrix products run in our C++ operators. The loops that are left to Inductor are too short for a
# second thread: it costs more than it gains, and twenty times a piece where the core is busy.
CPU_OPTIONS: dict[str, Any] = {"cpp_wrapper": True, "cpp.threads": 1, "size_asserts": False}
CUDA_OPTIONS: dict[str, Any] = {
    # For each product of few rows, measure the library (ATEN) against Inductor's Triton kernel,
    # into which the neighbouring operations can be fused.
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON,ATEN",
    "epilogue_fusion": True,
    "prologue_fusion": True,
    "triton.cudagraphs": False,
    "combo_kernels": True,  # small kernels that do not wait for each other are one launch
    "benchmark_combo_kernel": False,
    "split_reductions": False,  # a tree's rows fill a GPU: a sum in two launches gains nothing
}


COMPILER_HINT = "install a C++ compiler, such as g++, or name one in CXX and CC"
HEADERS_HINT = "; a GPU's needs Python's headers too (Python.h, on Debian in python3-dev)"
# What a compiler that is missing, broken or asked too much fails with.
COMPILE_ERRORS = (RuntimeError, ImportError, OSError, subprocess.SubprocessError)


@cache
def compiles(device: torch.device) -> bool:
    """Whether torch.compile works on a device: one line is compiled, once. A warning says why where
    it does not; on a GPU it needs a C compiler as well."""
    try:
        three = torch.compile(lambda x: x * 2 + 1, fullgraph=True)(torch.ones(64, device=device))
        why = "" if bool((three == 3).all()) else "it computes 2 * 1 + 1 wrongly"
    except COMPILE_ERRORS as error:
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if why:
        advice = no_programs(compiled_folder())
        logger.warning(
            "steps run operator by operator, which is several times slower: torch.compile does not "
            "work on %s (%s); %s",
            device,
            why,
            advice or COMPILER_HINT + HEADERS_HINT * (device.type == "cuda"),
        )
    return not why


@dataclass
class Compiled(Eager):
    """torch.compile around every piece, in batches of `sizes`; in others pieces run as they are."""

    sizes: Collection[int] = ()
    name: ClassVar[str] = "compile"
    # By target and batch size, what runs the prefill, and its cache.
    prefills: dict[Any, tuple[Callable[..., Tensor], Any]] = field(default_factory=dict, repr=False)

    def uncompiled(self) -> Execution | None:
        return Eager() if self.sizes else None

    def prefill(self, target: Target, text: TextFeatures, copies: int, cache: Any) -> Tensor:
        """Compiled once for a target and batch size, on a small cache for the prefix alone, so that
        decoders with caches of any size share it."""
        if text.batch not in self.sizes or not compiles(text.mask.device):
            return target.prefill(text, copies, cache)
        key = id(target), copies, signature_of(text)
        if key not in self.prefills:
            small = target.new_cache(cache.rows, round_up(target.prefix))
            self.prefills[key] = self.compile_prefill(target, text, copies, small), small
        prefill, small = self.prefills[key]
        hidden = prefill(text, copies, small)
        cache.begin_as(small)
        return hidden

    def compile_prefill(
        self, target: Target, text: TextFeatures, copies: int, cache: Any
    ) -> Callable[..., Tensor]:
        """A target's prefill, compiled by running it; as it is where it cannot be compiled."""
        device = text.mask.device
        piece = self.piece(PrefillPiece(target, copies).hidden, device)
        try:
            with compiling(device):
                piece(text, cache)
        except COMPILE_ERRORS as error:
            warn("prefill", error)
            return target.prefill
        return lambda text, _, cache: piece(text, cache)[0]

    def begin(self, loop: Loop, state: Any) -> Any:
        if state.shape not in self.sizes or not compiles(state.trace.codes.device):
            return super().begin(loop, state)
        state.path = {}
        if state.shape not in loop.prepared and not loop.uncompiled_pieces:
            before = snapshot(state)
            step_in_place(loop.pieces(), state)  # lazy choices and buffers exist before tracing
            fill(state, before)
        state.pieces = self.ready(loop, state)
        return state

    def step(self, loop: Loop, state: Any, carries: list[Any] | None = None) -> tuple[Any, ...]:
        """Runs the pieces. A compiled piece always returns the same signature, so the function
        itself is the key of the next piece: to look at every tensor would cost 1 % of a step."""
        if state.pieces is None:
            return super().step(loop, state, carries)
        carry: tuple[Any, ...] = ()
        before: Any = None  # the compiled function of the piece before
        for phase, plain, graphs in state.pieces:
            if graphs is None:
                carry, before = plain(state, *carry), None
            else:
                key = signature_of(carry) if before is None else before
                if key in graphs:
                    carry = (graphs[key] or plain)(state, *carry)
                else:
                    graphs[key], carry = self.compile_piece(phase, plain, state, carry)
                before = graphs[key]
            if carries is not None:
                carries.append(carry)
            state.watch.lap(phase)
        return carry

    def ready(self, loop: Loop, state: Any) -> list[ReadyPiece]:
        """The pieces of a step. Each is compiled in its first call with a signature and kept for
        the loop's runs of this shape. The run's path says how a phase runs: eagerly, if one of its
        pieces does."""
        by_piece: dict[Any, Any] = loop.prepared.setdefault(state.shape, {})
        signature, pieces = signature_of(tensors(state)), list[ReadyPiece]()
        for phase, piece in loop.pieces():
            graphs = None
            if piece.__name__ not in loop.uncompiled_pieces:
                graphs = by_piece.setdefault((piece.__name__, signature), {})
                if state.path.get(phase) != "eager":
                    state.path[phase] = "eager" if None in graphs.values() else "compiled"
            pieces.append((phase, piece, graphs))
        return pieces

    def compile_piece(
        self, phase: str, plain: Call, state: Any, carry: tuple[Any, ...]
    ) -> tuple[Call | None, tuple[Any, ...]]:
        """A piece compiled by running it, or None where that fails, and what it returned. The run's
        path says how it runs."""
        before, device = snapshot(state), state.trace.codes.device
        try:
            piece = self.piece(plain, device)
            with compiling(device):
                return piece, piece(state, *carry)
        except COMPILE_ERRORS as error:
            warn(phase, error)
            fill(state, before)
            state.path[phase] = "eager"
            return None, plain(state, *carry)

    def compile_graph(
        self, graph: Any, inputs: Sequence[Any], device: torch.device
    ) -> GraphFunction:
        """A graph of TorchDynamo's as a function of its inputs."""
        from torch._inductor.compile_fx import compile_fx

        options = CPU_OPTIONS if device.type == "cpu" else CUDA_OPTIONS
        function: Any = compile_fx(graph, inputs, config_patches=options)
        return function

    def piece(self, piece: Call, device: torch.device) -> Call:
        """One piece as one graph, compiled in its first call. Compiled code is kept from run to
        run."""

        def backend(graph: Any, inputs: Sequence[Any]) -> GraphFunction:
            return self.compile_graph(graph, inputs, device)

        options: Any = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        compiled: Call = torch.compile(
            on_own_code(piece), fullgraph=True, backend=backend, options=options
        )
        return compiled


@dataclass(frozen=True)
class PrefillPiece:
    """The prefill of a target with G copies of the captions."""

    target: Target
    copies: int

    def hidden(self, text: TextFeatures, cache: Any) -> tuple[Tensor]:
        """[R, P, D]."""
        return (self.target.prefill(text, self.copies, cache),)


def warn(phase: str, error: Exception) -> None:
    """Says that a piece could not be compiled."""
    logger.warning(
        "the piece %r runs operator by operator: it cannot be compiled (%s)",
        phase,
        str(error).strip().partition("\n")[0],
    )


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """The settings of a piece's first call. On a CPU weights are constants, which TorchDynamo reads
    from the global setting. Inductor prints no tables of the products that it measured. Shapes are
    static by TorchDynamo's settings: `dynamic=False` would be set again in every call."""
    inductor = torch._inductor.config.patch(
        freezing=device.type == "cpu",
        autotune_num_choices_displayed=0,
        max_autotune_report_choices_stats=False,
    )
    static = {"assume_static_by_default": True, "automatic_dynamic_shapes": False}
    with inductor, torch._dynamo.config.patch(static):
        yield


def on_own_code(method: Callable[..., Any]) -> Callable[..., Any]:
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
