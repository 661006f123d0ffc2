"""Every kernel that `torch.compile` writes for a decoder's step as machine code, for a card that is
not there, with the registers, spills and shared memory of each.

Inductor lowers the pieces for a pretended device down to Triton source. Triton's compiler and
NVIDIA's assembler, which comes with it, do the rest.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.errors import TritonError

from decoders.api import Sampling
from decoders.compose import DecoderSpec, resolve
from tests.cuda.pretend import HOPPER, Card, fake, fake_model, pretend, step
from tests.decoders.compositions import spec_of

GENERATED = re.compile(r"async_compile\.triton\('([^']+)', '''(.*?)'''", re.DOTALL)
USED = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
FAILURES = (TritonError, RuntimeError)  # of Triton's compiler; its passes raise RuntimeError


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


def targeting(target: GPUTarget) -> Any:
    """A context in which Triton finds a device: what it asks of a driver before it compiles."""
    driver = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: hash(target),  # by which Triton keeps what it has compiled
        get_current_stream=lambda *_: 0,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        map_python_to_cpp_type=lambda kind: kind,
        is_active=lambda: True,
    )
    return mock.patch.object(triton.runtime.driver, "_active", driver)


def binary(kernel: Any, name: str) -> Binary:
    """Reads the resources of what Triton compiled for a CUDA card."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        run = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    hits = USED.search(text)
    if hits is None:
        raise ValueError(f"expected REG, STACK and LOCAL of {name} from cuobjdump, found {text!r}")
    registers, stack, local = map(int, hits.groups())
    return Binary(name, registers, stack + local, kernel.metadata.shared)


@dataclass(frozen=True)
class Step:
    """The kernels of a step, those that read or write a whole cache beside attention, and how often
    each is launched: a kernel of the compiler's is `fused`, others have their operator's name."""

    kernels: list[Kernel]
    copies: list[str]
    launches: Counter[str]


def exercised(spec: DecoderSpec) -> DecoderSpec:
    """With the settings in which one step shows all of a loop."""
    shown = getattr(resolve(spec.loop.target), "exercised", {})
    return replace(spec, loop=replace(spec.loop, kwargs={**spec.loop.kwargs, **shown}))


class Lowered:
    """A backend of `torch.compile` that lowers and fuses as Inductor does and goes on to machine
    code, and then runs the graph as it is. A graph that the compiler knows is not lowered again.

    caches: shapes of a layer's part of a cache; copies: kernels beside attention that read or write
    more than half of one; launches: see `Step`."""

    def __init__(self, compiler: Compiler, card: Card, caches: set[tuple[int, ...]]) -> None:
        self.compiler, self.card, self.caches = compiler, card, caches
        self.kernels: list[Kernel] = []
        self.copies: list[str] = []
        self.launches: Counter[str] = Counter()

    def __call__(self, graph: Any, inputs: list[Any]) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        forms = [(x.shape, x.stride(), x.dtype) if hasattr(x, "stride") else x for x in inputs]
        key = f"{self.card.cc} {forms} {graph.print_readable(print_output=False)}"
        if key in self.compiler.pieces:
            self.kernels, self.copies, self.launches = self.compiler.pieces[key]
            return graph.forward
        lower = aot_autograd(
            fw_compiler=self._lower,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,  # what is written in place stays in the graph
        )
        run = lower(graph, inputs)
        self.compiler.pieces[key] = self.kernels, self.copies, self.launches
        return run

    def _lower(self, graph: Any, inputs: list[Any]) -> Any:
        from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
        from torch._guards import detect_fake_mode
        from torch._inductor.compile_fx import view_to_reshape
        from torch._inductor.debug import DebugContext
        from torch._inductor.fx_passes.joint_graph import canonicalize_quant_mapping
        from torch._inductor.fx_passes.post_grad import post_grad_passes
        from torch._inductor.graph import GraphLowering
        from torch._inductor.virtualized import V

        canonicalize_quant_mapping(graph)
        with ExitStack() as stack:
            pretend(stack, self.card)
            view_to_reshape(graph)
            stack.enter_context(V.set_fake_mode(detect_fake_mode(inputs)))
            post_grad_passes(graph, is_inference=True)
            lowered = GraphLowering(graph, example_inputs=inputs, is_inference=True)
            for context in (
                V.set_graph_handler(lowered),
                V.set_extern_kernel_nodes([]),
                V.set_debug_handler(DebugContext()),
            ):
                stack.enter_context(context)
            lowered.run(*inputs)
            code, _ = lowered.codegen()
            self.kernels = [
                self.compiler.generated(name, source, self.card)
                for name, source in GENERATED.findall(code.value)
            ]
            self.copies += _copies(lowered, self.caches)
            self.launches += _launches(lowered)
        return make_boxed_func(graph.forward)


def _copies(lowered: Any, caches: set[tuple[int, ...]]) -> list[str]:
    """What a graph and its regions do to a layer's part of a cache, apart from attention."""
    from torch._inductor.ir import InvokeSubgraph
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    inputs = {
        name: math.prod(map(int, x.get_size()))
        for name, x in lowered.graph_inputs.items()
        if hasattr(x, "get_size") and tuple(map(int, x.get_size())) in caches
    }
    copies = []
    regions: dict[str, Any] = {}
    for one in (one for node in lowered.scheduler.nodes for one in node.get_nodes()):
        if isinstance(getattr(one, "node", None), InvokeSubgraph):
            regions[one.node.subgraph.name] = one.node.subgraph.graph
            continue
        used = one.read_writes.reads | one.read_writes.writes
        names = {lowered.scheduler.mutation_real_name.get(dep.name, dep.name) for dep in used}
        touched = [name for name in names if name in inputs]
        if isinstance(one, ExternKernelSchedulerNode):
            kernel = str(getattr(one.node, "python_kernel_name", None) or type(one.node).__name__)
            if touched and "scaled_dot_product" not in kernel:
                copies.append(f"{kernel} of {touched}")
        elif not isinstance(one, NopKernelSchedulerNode):
            size = math.prod(int(each) for part in one.get_ranges() for each in part)
            copies += [f"{one.get_name()} of {x}" for x in touched if 2 * size >= inputs[x]]
    return copies + [each for graph in regions.values() for each in _copies(graph, caches)]


def _launches(lowered: Any) -> Counter[str]:
    """The kernels that a graph launches, those of its regions as often as they are called. An
    operator of a library counts as one."""
    from torch._inductor.ir import InvokeSubgraph, MultiOutput
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    counts: Counter[str] = Counter()
    for node in lowered.scheduler.nodes:
        kernel = getattr(node, "node", None)
        if isinstance(kernel, InvokeSubgraph):
            counts += _launches(kernel.subgraph.graph)
        elif isinstance(node, ExternKernelSchedulerNode):
            if not isinstance(kernel, MultiOutput):
                name = getattr(kernel, "python_kernel_name", None) or type(kernel).__name__
                counts[str(name)] += 1
        elif not isinstance(node, NopKernelSchedulerNode):
            counts["fused"] += 1
    return counts


@dataclass
class Compiler:
    """Lowers a graph once and compiles a kernel once, whichever steps they are part of.

    pieces: by graph and card, what `Lowered` gives; binaries: by source and card.
    """

    pieces: dict[str, tuple[list[Kernel], list[str], Counter[str]]] = field(default_factory=dict)
    binaries: dict[tuple[str, int], Kernel] = field(default_factory=dict)

    def step(
        self,
        name: str,
        sampling: Sampling,
        card: Card = HOPPER,
        layers: int = 1,
        attention: str = "efficient",
    ) -> Step:
        """A step of the decoder `name` of conf/decoder, at LlamaGen-XL's sizes with so many layers,
        in bfloat16 at batch 1 with guidance. attention: see `attending`."""
        with fake(attention), targeting(GPUTarget("cuda", card.cc, 32)):
            pieces = step(
                fake_model(layers), exercised(spec_of(name)), sampling, partial(Lowered, self, card)
            )
        return Step(
            [kernel for piece in pieces for kernel in piece.kernels],
            [copy for piece in pieces for copy in piece.copies],
            sum((piece.launches for piece in pieces[1:]), Counter()),  # the first is the prefill
        )

    def generated(self, name: str, source: str, card: Card) -> Kernel:
        """A kernel that Inductor wrote, in the first of its configurations that fits the card and
        spills nothing, as Inductor would choose among them."""
        key = source.replace(name, "triton_"), card.cc
        if key not in self.binaries:
            self.binaries[key] = self._compiled(name, source, card)
        return self.binaries[key]

    def _compiled(self, name: str, source: str, card: Card) -> Kernel:
        import torch._inductor.runtime.triton_heuristics as heuristics
        from torch._inductor.codecache import PyCodeCache

        with ExitStack() as stack:
            pretend(stack, card)
            helpers = heuristics.triton_helpers
            for what in ("set_driver_to_gpu", "set_driver_to_cpu"):
                stack.enter_context(mock.patch.object(helpers, what, lambda *_: None))
            stack.enter_context(mock.patch.object(heuristics.log, "exception"))  # returned instead
            compiled, compile = [], triton.compile

            def noting(*given: Any, **options: Any) -> Any:
                compiled.append(compile(*given, **options))
                return compiled[-1]

            stack.enter_context(mock.patch("triton.compile", noting))
            tuner = getattr(PyCodeCache.load(source), name)
            for configuration in tuner.configs:
                try:
                    tuner._precompile_config(configuration)
                except FAILURES as error:
                    return f"{name}: {_line(error)}"
                result = binary(compiled[-1], name)
                if result.reason(card) is None:
                    break
        return result


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
