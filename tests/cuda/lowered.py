"""Every kernel of a decoder's step as machine code, for a card that is not there: what
`torch.compile` writes and the project's own programs, with the registers, spills and shared memory
of each.

Inductor lowers the pieces for a pretended device down to Triton source. Triton's compiler and
NVIDIA's assembler, which comes with it, do the rest. The project's programs are compiled with the
arguments that their operators launch them with.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.errors import TritonError
from triton.runtime.jit import JITFunction, MockTensor

from bench.config.compose import compose_study
from bench.config.schedule import cells
from decoders.api import Sampling
from decoders.compose import DecoderSpec, resolve
from tests.cuda.pretend import (
    HOPPER,
    Card,
    Schedule,
    _pretend,
    fake,
    fake_model,
    step,
)
from tests.decoders.compositions import entry

GENERATED = re.compile(r"async_compile\.triton\('([^']+)', '''(.*?)'''", re.DOTALL)
USED = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
FAILURES = (TritonError, RuntimeError)  # of Triton's compiler; its passes raise RuntimeError
# The settings of a draw are arguments of its program: what surrounds it is lowered once for all.
FILTERS = re.compile(r"(?<=lantern\.sample)[^\n]*")
OWN = {
    "lantern.tree_attention.default": "decoders.kernels.tree_attention.tree_attention",
    "lantern.sample.default": "decoders.kernels.sampling.sampled",
}


@dataclass(frozen=True)
class Binary:
    """A kernel as the card would load it. registers: per thread; spilled: bytes of local memory per
    thread; shared: bytes per program."""

    name: str
    registers: int
    spilled: int
    shared: int

    def reason(self, card: Card) -> str | None:
        """Why it is not good enough for a card; None where it is. A product may spill: it is one of
        many, and a library's, that a card would choose from by measurement."""
        if self.shared > card.shared:
            return (
                f"{self.name} wants {self.shared} bytes of shared memory, {card.name} "
                f"(sm_{card.cc}) has {card.shared}"
            )
        if self.spilled and not self.name.startswith("triton_tem_"):
            return f"{self.name} spills {self.spilled} bytes per thread on sm_{card.cc}"
        return None


Kernel = Binary | str  # or why there is none


class Driver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return hash(self.target)  # by which Triton keeps what it has compiled

    def get_current_stream(self, *_: Any) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def is_active(self) -> bool:
        return True


@contextmanager
def compiling(target: GPUTarget) -> Iterator[list[Any]]:
    """Launches of Triton programs compile for the target and do not run; the list is of what Triton
    made of them. Tensors may be fake; their memory counts as aligned."""
    made: list[Any] = []
    run = JITFunction.run

    def warm(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        del warmup  # never more than that here
        args = tuple(MockTensor(x.dtype) if isinstance(x, torch.Tensor) else x for x in args)
        made.append(run(self, *args, grid=grid, warmup=True, **options))
        return made[-1]

    with targeting(target), mock.patch.object(JITFunction, "run", warm):
        yield made


def targeting(target: GPUTarget) -> Any:
    """A context in which Triton finds a device."""
    return mock.patch.object(triton.runtime.driver, "_active", Driver(target))


def binary(kernel: Any, name: str) -> Binary:
    """Reads the resources of what Triton compiled for a CUDA card."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        run = [tool, "--dump-resource-usage", file.name]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    found = USED.search(said)
    if found is None:
        raise ValueError(f"expected REG, STACK and LOCAL of {name} from cuobjdump, found {said!r}")
    registers, stack, local = map(int, found.groups())
    return Binary(name, registers, stack + local, kernel.metadata.shared)


@dataclass(frozen=True)
class Step:
    """The kernels of a step, and how many each of its pieces launches."""

    kernels: list[Kernel]
    launches: dict[str, int]


def spec_of(name: str) -> DecoderSpec:
    """See `tests.decoders.compositions.entry`; with the settings in which one step shows all of a
    loop."""
    spec = cells(compose_study([f"decoders=[{entry(name)}]"]), Sampling())[-1].entry.spec
    shown = getattr(resolve(spec.loop.target), "exercised", {})
    return replace(spec, loop=replace(spec.loop, kwargs={**spec.loop.kwargs, **shown}))


class Written(Schedule):
    """Lowers as `Schedule` does, and goes on to machine code; a graph that it knows is not lowered
    again."""

    def __init__(self, compiler: Compiler, card: Card, kernels: list[Kernel]) -> None:
        super().__init__(card)
        self.compiler, self.kernels = compiler, kernels
        self.written: list[Kernel] = []

    def __call__(self, graph: Any, inputs: list[Any]) -> Any:
        for node in graph.graph.nodes:
            if str(node.target) in OWN:
                given = torch.fx.map_arg(
                    (node.args, node.kwargs), lambda arg: arg.meta["example_value"]
                )
                self.kernels += self.compiler.own(str(node.target), given, self.card)
        forms = [(x.shape, x.stride(), x.dtype) if hasattr(x, "stride") else x for x in inputs]
        text = FILTERS.sub("", graph.print_readable(print_output=False))
        key = f"{self.card.cc} {forms} {text}"
        if key in self.compiler.pieces:
            kernels, self.found = self.compiler.pieces[key]
            self.kernels += kernels
            return graph.forward
        run = super().__call__(graph, inputs)
        self.kernels += self.written
        self.compiler.pieces[key] = self.written, self.found
        return run

    def _end(self, lowered: Any) -> None:
        code, _ = lowered.codegen()
        self.written = [
            self.compiler.generated(name, source, self.card)
            for name, source in GENERATED.findall(code.value)
        ]


@dataclass
class Compiler:
    """Lowers a graph once and compiles a kernel once, whichever steps they are part of.

    pieces: by graph and card, the generated kernels and the names of what is launched; known: by
    source and card.
    """

    pieces: dict[str, tuple[list[Kernel], Counter[str]]] = field(default_factory=dict)
    known: dict[tuple[str, int], Kernel] = field(default_factory=dict)

    def step(self, name: str, sampling: Sampling, card: Card = HOPPER) -> Step:
        """A step of the decoder `name` of conf/decoder, at LlamaGen-XL's sizes with one layer, in
        bfloat16 at batch 1 with guidance."""
        kernels: list[Kernel] = []
        with fake(card), targeting(GPUTarget("cuda", card.cc, 32)):
            model = fake_model()
            backend = partial(Written, self, card, kernels)
            found = step(model, spec_of(name), sampling, backend)
        return Step(kernels, {phase: each.total() for phase, each in found.items()})

    def own(self, operator: str, given: Any, card: Card) -> list[Kernel]:
        """The programs that an operator of the project launches for (arguments, options)."""
        args, options = given
        module, _, name = OWN[operator].rpartition(".")
        run = getattr(importlib.import_module(module), name)._init_fn
        with compiling(GPUTarget("cuda", card.cc, 32)) as launched, args[0].fake_mode:
            try:
                run(*args, **options)
            except FAILURES as error:
                return [f"{operator}: {_line(error)}"]
        return [self._once((kernel.hash, card.cc), kernel) for kernel in launched]

    def _once(self, key: tuple[str, int], kernel: Any) -> Kernel:
        if key not in self.known:
            self.known[key] = binary(kernel, kernel.metadata.name)
        return self.known[key]

    def generated(self, name: str, source: str, card: Card) -> Kernel:
        """A kernel that Inductor wrote, in the first of its configurations that fits the card and
        spills nothing, as Inductor would choose among them."""
        key = source.replace(name, "triton_"), card.cc
        if key not in self.known:
            self.known[key] = self._compiled(name, source, card)
        return self.known[key]

    def _compiled(self, name: str, source: str, card: Card) -> Kernel:
        import torch._inductor.runtime.triton_heuristics as heuristics
        from torch._inductor.codecache import PyCodeCache

        with ExitStack() as stack:
            _pretend(stack, card)
            helpers = heuristics.triton_helpers
            for what in ("set_driver_to_gpu", "set_driver_to_cpu"):
                stack.enter_context(mock.patch.object(helpers, what, lambda *_: None))
            stack.enter_context(mock.patch.object(heuristics.log, "exception"))  # returned instead
            compiled = stack.enter_context(mock.patch("triton.compile", Kept(triton.compile)))
            tuner = getattr(PyCodeCache.load(source), name)
            for configuration in tuner.configs:
                try:
                    tuner._precompile_config(configuration)
                except FAILURES as error:
                    return f"{name}: {_line(error)}"
                made = binary(compiled.last, name)
                if made.reason(card) is None:
                    break
        return made


class Kept:
    """A function that remembers what it returned last."""

    def __init__(self, function: Any) -> None:
        self.function, self.last = function, None

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.last = self.function(*args, **options)
        return self.last


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
