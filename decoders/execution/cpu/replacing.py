"""Execution on a CPU: pieces as calls of the project's C++ kernel, and compiled where it has none.

A class says what its methods compute (`decoders.capability.Known`). Where the kernel has a call for
a whole piece, that takes its place. Every other piece is compiled, whoever wrote it, with the
layers of the nets in it as operators of the kernel. Loops, proposers, rules and models know nothing
of this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Execution, ImageModel, Loop, Piece
from decoders.capability import Capability, knows
from decoders.execution.compiled import Compiled, slower
from decoders.execution.cpu.drafting import native_draft
from decoders.execution.cpu.layers import Native, pack, pack_matrices, reason
from decoders.execution.cpu.library import missing
from decoders.execution.cpu.rules import EXACT, rule_of
from decoders.execution.cpu.speculation import NativeNext, NativeStep
from decoders.execution.eager import chain

logger = logging.getLogger(__name__)
Call = Callable[..., tuple[Any, ...]]


class Cpu(Execution):
    """The execution. It keeps the packed weights of a model's target and drafters. compiled: batch
    sizes at which the pieces without a call are compiled; at others they run operator by operator,
    as pictures alone are not worth the compiling."""

    name = "cpu"

    def __init__(self, compiled: Container[int] = ()) -> None:
        self.compiled, self.compiler = compiled, Compiled(autotune=False)
        self.packed: dict[int, tuple[Any, Native]] = {}

    def uncompiled(self) -> Cpu | None:
        """Products are the kernel's either way, and other sums are in float32."""
        if not self.compiled:
            return None
        plain = Cpu()
        plain.packed = self.packed
        return plain

    def compiles(self, size: int) -> bool:
        return size in self.compiled

    def compiling(self) -> float:
        return self.compiler.compiling()

    def announce(self, tell: Callable[[str], None]) -> None:
        self.compiler.announce(tell)

    def prepare(self, model: ImageModel) -> None:
        """Packs the target. A model that the kernel cannot run keeps PyTorch's operators, with a
        warning. Raises DecoderError where the kernel cannot be built."""
        why = missing()
        if why is not None:
            raise DecoderError(f"backend.layers=native: {why}; or use backend.layers=torch")
        self.offer(model.target, model.name)

    def native(self, net: Any) -> Native | None:
        """The packed weights of a net; None where it runs as tensor code."""
        found = self.packed.get(id(net))
        return None if found is None else found[1]

    def offer(self, net: Any, name: str) -> None:
        """Packs a net, where the kernel can run it: its layers and matrix are operators then."""
        if id(net) in self.packed:
            return
        why = reason(net)
        if why is not None:
            logger.warning("the CPU kernel does not run %s: %s; PyTorch does", name, why)
            return
        net.packed = pack(net)
        self.packed[id(net)] = (net, net.packed)

    def fit(self, loop: Any) -> bool:
        """Packs the proposer's net. Caches need not grow where the target runs in the kernel, which
        reads only the slots that are seen, and may not where a step is compiled."""
        target, drafter = loop.model.target, loop.drafter
        net = None if drafter is None else drafter.net
        if self.native(target) is not None and isinstance(net, torch.nn.Module):
            body = getattr(net, "body", net)
            if hasattr(body, "packed"):
                self.offer(body, f"drafter {drafter}")
            pack_matrices(net, loop.model.dtype)
        return self.native(target) is None and not self.compiled

    def begin(self, loop: Loop, run: Any) -> Any:
        """The same run; the pieces of its steps hang on it."""
        calls, chosen, run.path = self._calls(loop, run), [], {}
        for phase, piece in loop.pieces():
            call, compiles = calls.get(piece.__name__), run.shape in self.compiled
            if call is None and compiles:
                chosen += self.compiler.ready(loop, run, [(phase, piece)])
                continue
            if piece.__name__ not in loop.plain:
                run.path[phase] = slower(run.path.get(phase), "kernel" if call else "eager")
            chosen.append((phase, call or piece))
        run.pieces[id(loop)] = chosen
        return run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        pieces: list[Piece] = run.pieces[id(loop)]
        return chain(pieces, run)

    def _calls(self, loop: Any, run: Any) -> dict[str, Call]:
        """By a piece's name the call that takes its place."""
        alone = knows(loop, Capability.NEXT)
        if not alone and not (knows(loop, Capability.DRAFT) and knows(loop, Capability.FORWARD)):
            return {}
        target = loop.model.target
        native = self.native(target)
        if native is None or target.barred is not None or not knows(target, Capability.TARGET):
            return {}
        if alone:
            return {"next": next_codes(loop, run, native)}
        calls = forward_and_settle(loop, run, native)
        draft = native_draft(run.session, self, loop.renews)
        return calls if draft is None else {**calls, "draft": draft}


def next_codes(loop: Any, run: Any, native: Native) -> Call:
    """AR's step as one call for as many codes as there is room for."""
    made = NativeNext(loop, run, native)

    def next_call(run: Any) -> tuple[int]:
        nonlocal made
        if run.cache.data is not made.cache:
            made = NativeNext(loop, run, native)
        made(run.room)
        return (run.room,)

    return next_call


def forward_and_settle(loop: Any, run: Any, native: Native) -> dict[str, Call]:
    """The target on a draft, and what follows from it where the kernel computes it: acceptance,
    record, commit."""
    size, by_node = loop.model.target.length, knows(loop.verifier, Capability.BY_NODE)
    rule = rule_of(loop.verifier.rule) if by_node else None
    settles = rule is not None and knows(loop, Capability.SETTLE)
    settles = settles and not (loop.proposer.reads_laws or loop.renews)
    step = NativeStep(loop, run, native, rule or EXACT)

    def forward(run: Any, draft: Any, mask: Any) -> tuple[Any, ...]:
        del mask  # the kernel makes its own
        return draft, *step.forward(draft, run.cache)

    def settle(run: Any, draft: Any, hidden: Tensor, logits: Tensor) -> tuple[Any, ...]:
        del hidden, logits  # it reads what `forward` has left
        nodes, count, p = step.settle(draft)
        return run.seen.start, size, draft, nodes, count, p

    return {"forward": forward, "settle": settle} if settles else {"forward": forward}
