"""The kernels that `torch.compile` writes for a card, run without one: on the processor's tensors,
by Triton's interpreter (TRITON_INTERPRET=1 before Triton is imported).

A piece is traced on the processor, its graph is moved to a pretended card and lowered there. The
generated code then runs as it is, in its own order, with its own launches; only its allocations and
streams are the processor's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton.language as tl
from torch._inductor.codecache import PyCodeCache
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget

from decoders.execution.compiled import Compiled, fresh
from tests.cuda.lowered import GENERATED, targeting
from tests.cuda.pretend import CUDA, Schedule, _mode_of

HERE = (  # what the generated code says of its card, and what it is given in its place
    ("empty_strided_cuda(", "empty_strided_cpu("),
    ("from torch._C import _cuda_getCurrentRawStream as get_raw_stream", "get_raw_stream = int"),
    ("device(type='cuda', index=0)", "device(type='cpu')"),
)


class Library:
    """In place of NVIDIA's library of functions, which is machine code: Triton's own of that name.
    The interpreter changes them while a kernel runs, so they are looked up then."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tl.math, name)

    def isnan(self, x: Any) -> Any:
        return x != x

    def isinf(self, x: Any) -> Any:
        return tl.math.abs(x) == float("inf")


def uncompiled(_: Any, name: str, source: str, *__: Any, **___: Any) -> Any:
    """A generated kernel that is launched in the interpreter."""
    return getattr(PyCodeCache.load(source), name)


def on_card(x: Any) -> Any:
    """A fake tensor of the same layout on the card; an integer stays."""
    if not isinstance(x, torch.Tensor):
        return x
    size = x.untyped_storage().nbytes() // x.itemsize
    memory = torch.empty(size, dtype=x.dtype, device=CUDA)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


class Generated(Schedule):
    """A backend of `torch.compile` whose code is a card's and runs here."""

    def __init__(self, owner: Interpreted) -> None:
        super().__init__()
        self.owner = owner
        self.code, self.constants = "", {}

    def _count(self, graph: Any, inputs: list[Any]) -> Any:
        mode = _mode_of(inputs)
        for node in graph.graph.nodes:
            device = node.kwargs.get("device")
            if isinstance(device, torch.device):
                node.kwargs = {**node.kwargs, "device": CUDA}
        with mode:
            moved = [on_card(x) for x in inputs]
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*moved)
        with targeting(GPUTarget("cuda", self.card.cc, 32)):
            super()._count(graph, moved)
        with unset_fake_temporarily():
            return self._run()

    def _end(self, lowered: Any) -> None:
        self.code, self.constants = lowered.codegen()[0].value, lowered.constants
        self.owner.kernels += len(GENERATED.findall(self.code))

    def _run(self) -> Callable[..., Any]:
        for there, here in HERE:
            self.code = self.code.replace(there, here)
        module = {"__name__": "generated", **self.constants}
        answers = {
            "torch.cuda._DeviceGuard": lambda *_: nullcontext(),
            "torch.cuda.set_device": lambda *_: None,
            "torch._inductor.async_compile.AsyncCompile.triton": uncompiled,
            "torch._inductor.runtime.triton_helpers.set_driver_to_gpu": lambda: None,
            "torch._inductor.runtime.triton_helpers.libdevice": Library(),
        }
        with ExitStack() as stack:
            for name, answer in answers.items():
                stack.enter_context(mock.patch(name, answer))
            exec(compile(self.code, "generated", "exec"), module)
        call = module["call"]

        def run(inputs: list[Any]) -> Any:
            with ExitStack() as stack:
                for name, answer in answers.items():
                    stack.enter_context(mock.patch(name, answer))
                return call(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


@dataclass
class Interpreted(Compiled):
    """Every piece as a card would run it compiled. kernels: generated so far."""

    kernels: int = 0

    def piece(self, plain: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        del device
        backend = Generated(self)
        return torch.compile(fresh(plain), dynamic=False, fullgraph=True, backend=backend)
