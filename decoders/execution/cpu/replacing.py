"""Execution on a CPU with calls of the project's C++ kernel in the place of pieces.

A part says what its methods compute (`decoders.api.Computes`). Where the kernel computes the same,
a call takes the method's place, by its name, on this object alone. What a subclass overrides is
left to it, and everything around it is still a call. Loops, proposers, rules and models know
nothing of this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decoders.api import AcceptRule, DecoderError, ImageModel
from decoders.capability import computed
from decoders.execution.cpu.drafts import replace_draft
from decoders.execution.cpu.judge import native_judge
from decoders.execution.cpu.library import missing
from decoders.execution.cpu.packing import Native, pack, reason
from decoders.execution.cpu.rules import EXACT, rule_of
from decoders.execution.cpu.speculation import NativeStep, Parts, State
from decoders.execution.cpu.stepping import Head, Moving, NativeNext
from decoders.execution.eager import Loop, Piece, chain, give_judge
from decoders.noise import TARGET_SLOT
from decoders.verify.children import Judge

logger = logging.getLogger(__name__)
Call = Callable[..., tuple[Any, ...]]
WHOLE = ("forward_codes", "guided_logits", "cache")  # what a call of a whole step replaces


class Cpu:
    """The execution. It keeps the packed weights of a model's target and drafters."""

    name = "cpu"

    def __init__(self) -> None:
        self.packed: dict[int, tuple[Any, Native]] = {}

    def prepare(self, model: ImageModel) -> None:
        """Packs the target. A model that the kernel cannot run keeps PyTorch's operators, with a
        warning. Raises DecoderError where the kernel cannot be built."""
        why = missing()
        if why is not None:
            raise DecoderError(f"backend.layers=native: {why}; or use backend.layers=torch")
        self.offer(model.target, model.name)

    def judge(self, rule: AcceptRule, device: torch.device) -> Judge | None:
        found = rule_of(rule)
        return None if found is None else native_judge(found)

    def native(self, net: Any) -> Native | None:
        """The packed weights of a net; None where it runs as tensor code."""
        found = self.packed.get(id(net))
        return None if found is None else found[1]

    def offer(self, net: Any, name: str) -> None:
        """Packs a net, where the kernel can run it, and gives it the calls."""
        if id(net) in self.packed:
            return
        why = reason(net)
        if why is not None:
            logger.warning("the CPU kernel does not run %s: %s; PyTorch does", name, why)
            return
        native = pack(net)
        self.packed[id(net)] = (net, native)
        install(net, native)

    def fit(self, loop: Any) -> bool:
        """Packs the proposer's net and gives the verifier the kernel's judge. Where the target runs
        in the kernel, which reads only the slots that are seen, caches need not grow."""
        target = loop.model.target
        net = getattr(getattr(loop.proposer, "drafter", None), "net", None)
        if self.native(target) is not None and isinstance(net, torch.nn.Module):
            self.offer(net, f"drafter {loop.proposer.drafter}")
        give_judge(self, loop)
        return self.native(target) is None

    def begin(self, loop: Loop, run: Any) -> Any:
        """The same run; the pieces of its steps hang on it."""
        calls = self._calls(loop, run)
        chosen = [(phase, calls.get(piece.__name__, piece)) for phase, piece in loop.pieces()]
        run.pieces = {**getattr(run, "pieces", {}), id(loop): chosen}
        run.path = {
            phase: "kernel" if piece.__name__ in calls else "tensor"
            for phase, piece in loop.pieces()
        }
        return run

    def step(self, loop: Loop, run: Any) -> tuple[Any, ...]:
        pieces: list[Piece] = run.pieces[id(loop)]
        return chain(pieces, run)

    def _calls(self, loop: Any, run: Any) -> dict[str, Call]:
        """By a piece's name the call that takes its place."""
        if computed(loop, "next"):
            whole = self._whole(loop.model.target)
            return {} if whole is None else {"next": next_codes(loop, run, *whole)}
        calls: dict[str, Call] = {}
        drafted = replace_draft(run.session, self) if hasattr(run, "session") else False
        if not computed(loop, "draft") or not computed(loop, "forward"):
            return calls
        whole = self._whole(loop.model.target)
        if whole is None:
            return calls
        calls["forward"], settle = forward_and_settle(loop, run, *whole)
        if settle is not None:
            calls["settle"] = settle
        if drafted:
            calls["draft"] = unmasked
        return calls

    def _whole(self, target: Any) -> tuple[Native, Head] | None:
        """A target whose forward may be one call from codes to logits; None where a part of it is
        not built in, and with structural codes."""
        native = self.native(target)
        if native is None or target.barred is not None:
            return None
        if not all(computed(target, name) for name in WHOLE):
            return None
        weight = target.tok_embeddings.weight
        return native, Head(native.project, weight, target.code_tokens, target.prefix)


def unmasked(run: Any) -> tuple[Any, None]:
    """The proposer's draft without a mask: the kernel's forward makes its own."""
    return run.session.propose(run.seen, run.noise, run.length), None


def same(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes what the method does in whose place it stands."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.unchanged = True  # type: ignore[attr-defined]  # see decoders.capability.computed
    return call


def install(net: Any, native: Native) -> None:
    """Calls in the place of a net's methods, but for those that are its own."""
    layers, project = native.layers, native.project

    def forward_codes(
        codes: Tensor, grid: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        table = net.tok_embeddings.weight
        return layers(net.token_ids(codes), net.prefix + grid, slots, mask, cache, table)

    def mix(ids: Tensor, features: Tensor) -> Tensor:
        embedded = net.embed_tokens(ids).to(features.dtype)
        return project(torch.cat([embedded, features], -1))

    def step(ids: Tensor, features: Tensor, *rest: Any) -> Tensor:
        return layers(net.mix(ids, features), *rest)

    calls: dict[str, Callable[..., Any]] = {
        "stack": layers, "forward_codes": forward_codes, "logits": project,
        "guided_logits": project.guided, "mix": mix, "step": step,
    }  # fmt: skip
    for name in [name for name in calls if computed(net, name)]:
        setattr(net, name, same(calls[name]))


def next_codes(loop: Any, run: Any, native: Native, head: Head) -> Call:
    """AR's step as one call for as many codes as there is room for."""
    record, uniform = run.record, run.noise.uniform[..., TARGET_SLOT]
    state = Moving(
        run.seen, uniform, run.codes, run.place,
        record.codes, record.accepted, record.steps, record.bad,
    )  # fmt: skip
    made: dict[int, NativeNext] = {}  # by the cache's memory

    def next_call(run: Any) -> tuple[int]:
        key = run.cache.data.data_ptr()
        if key not in made:
            made.clear()
            made[key] = NativeNext(native.layers, head, loop.sampling, state, run.cache)
        made[key](run.room)
        return (run.room,)

    return next_call


def forward_and_settle(loop: Any, run: Any, native: Native, head: Head) -> tuple[Call, Call | None]:
    """The target on a draft, and what follows from it where the kernel computes it: acceptance,
    record, commit."""
    size, proposer = loop.model.target.length, loop.proposer
    rule = rule_of(loop.verifier.rule) if computed(loop.verifier, "by node") else None
    settles = rule is not None and computed(loop, "settle") and not proposer.reads_laws
    settles = settles and not loop.renews
    depth, calls = proposer.depth, loop.draft_calls or 0
    parts = Parts(native.layers, head, size, loop.sampling, rule or EXACT, depth, calls)
    done = run.target_calls, run.drafter_calls
    seen = run.seen
    told = (seen.hidden, seen.codes, seen.count, seen.start)
    state = State(run.open, run.noise.uniform.contiguous(), run.length, run.record, *done, *told)
    step = NativeStep(parts, state, proposer.nodes + 1, proposer.branching)

    def forward(run: Any, draft: Any, mask: Any) -> tuple[Any, ...]:
        del mask  # the kernel makes its own
        return draft, *step.forward(draft, run.cache)

    def settle(run: Any, draft: Any, hidden: Tensor, logits: Tensor) -> tuple[Any, ...]:
        del hidden, logits  # it reads what `forward` has left
        nodes, count, p = step.settle(draft)
        return run.seen.start, size, draft, nodes, count, p

    return forward, settle if settles else None
