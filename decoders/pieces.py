"""Parts of a decoding step to be timed: of a loop, and of the networks that it calls.

Everything runs half-way through an image and as the model's execution runs a step: eagerly, as a
graph, or in the CPU kernel. A loop says what its pieces are and stands at a place (`standing`).
What no loop has as a piece (a drafter's call, matrix products) is a loop of one piece here, which
an execution runs like any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import Decoder, ImageModel, Piece, Sampling, TextFeatures
from decoders.cache import BLOCK
from decoders.compose import PartSpec, assembled
from decoders.distribution import processed
from decoders.executed import execution
from decoders.execution.cpu.layers import Native
from decoders.loops.autoregressive import AT_ONCE, Autoregressive
from decoders.loops.speculative import Speculative
from decoders.loops.start import Stopwatch, begin
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.jacobi import Jacobi
from decoders.propose.trees.chain import Chain
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact

AHEAD = 8  # steps that an AR decoder takes before it is put back, or one call's, if those are more
CALL = 0.005  # seconds of a call of several AR steps, at most: as long as one of verification
TRIES = 5  # calls of one AR step, of which the fastest says how many fit

Call = Callable[[], Any]


@dataclass
class State:
    """What a piece on a device reads and changes; `shape` decides the shapes of its tensors;
    session: its drafter's."""

    device: torch.device
    shape: int
    tensors: dict[str, Tensor]
    session: Any = None
    path: dict[str, str] = field(default_factory=dict)
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    pairs: None = None  # nothing is recorded

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.device)
        codes = torch.zeros(1, dtype=torch.long, device=self.device)
        self.record = SimpleNamespace(codes=codes)  # an execution asks on which device it is


@dataclass
class Alone:
    """A loop of one piece."""

    phase: str
    piece: Callable[[Any], tuple[Any, ...]]
    prepared: dict[Any, Any] = field(default_factory=dict)
    plain: frozenset[str] = frozenset({"step"})  # a part of what is compiled: not worth it alone

    def pieces(self) -> list[Piece]:
        return [(self.phase, self.step)]

    def step(self, run: Any) -> tuple[Any, ...]:
        return self.piece(run)


@dataclass(frozen=True)
class Steps:
    """A call that takes `count` steps, or does `count` times what is held against a step."""

    count: int
    call: Call

    def __call__(self) -> Any:
        return self.call()


def ar_steps(model: ImageModel, sampling: Sampling, text: TextFeatures) -> Steps:
    """The next steps of an AR decoder, with a cache as large as it is there. It goes back after a
    few steps, which costs little. Where `generate` asks the CPU kernel for several codes a call, so
    does this, as far as CALL goes: a call has a cost of its own, a tenth of a small model's step
    and nothing to a large one's."""
    loop, target = Autoregressive(model, sampling), model.target
    half = target.length // 2
    run = loop.standing(text, _noise(model), half, target.prefix + half + BLOCK // 2)
    run = loop.execution.begin(loop, run)

    def taking(count: int) -> Call:
        start = half - count // 2
        ahead = itertools.cycle(range(max(1, min(AHEAD, target.length - start) // count)))

        def steps() -> None:
            if next(ahead) == 0:
                run.place.fill_(start)
                run.seen[..., target.prefix + start - 1 :] = False
            loop.execution.step(loop, run)

        run.room = count
        return steps

    one = taking(1)
    if run.path.get("forward") != "kernel":  # tensor code takes one code a step
        return Steps(1, one)
    seconds = []
    for _ in range(TRIES):
        began = time.perf_counter()
        one()
        seconds.append(time.perf_counter() - began)
    count = max(1, min(int(CALL / min(seconds)), AT_ONCE, half))
    return Steps(count, taking(count))


def speculative_step(loop: Speculative, text: TextFeatures, committed: int) -> list[Call]:
    """Two calls: one drafts as the loop does after a step that committed so many codes, the other
    is the target's forward over what was drafted."""
    half = loop.model.target.length // 2
    run = loop.standing(text, _noise(loop.model), half, min(committed, half))
    run = loop.execution.begin(loop, run)
    chosen = run.pieces.get(id(loop), loop.pieces())
    drafts = [piece for phase, piece in chosen if phase == "draft"]
    forward = chosen[len(drafts)][1]

    def draft(run: Any) -> tuple[Any, ...]:
        carry: tuple[Any, ...] = ()
        for piece in drafts:
            carry = piece(run, *carry)
        return carry

    drafted = draft(run)
    pieces = Alone("draft", draft), Alone("forward", lambda run: forward(run, *drafted))
    return [repeated(loop.model, piece, run) for piece in pieces]


def prefills(loop: Speculative, text: TextFeatures) -> list[Call]:
    """Two calls: the prefill of the target, and that of the loop's proposer."""
    model, copies = loop.model, loop.sampling.guidance_rows
    target: Any = model.target
    start = begin(model, loop.sampling, text, _noise(model), target.prefix)
    return [
        lambda: target.prefill(text, copies, start.cache),
        lambda: loop.proposer.begin(start),
    ]


def verification(model: ImageModel, sampling: Sampling, text: TextFeatures, nodes: int) -> Call:
    """The target's forward over a chain of `nodes` nodes, as `speculative_step` does."""
    loop = Speculative(model, sampling, Jacobi(None, nodes + 1), ByNode(Exact()))
    return speculative_step(loop, text, 1)[1]


def shallower(decoder: Any, loop: PartSpec, depth: int) -> Decoder:
    """The same decoder on a chain of `depth` levels; loop: its specification. Raises DecoderError
    where the loop refuses it."""
    model, sampling = decoder.model, decoder.sampling
    return assembled(loop, model, sampling, decoder.drafter, Chain(depth=depth), decoder.rule)


def draft_call(model: ImageModel, sampling: Sampling, text: TextFeatures, name: str) -> Call:
    """One call of the drafter `name` on one code, and a draw from it as `Static.grow` draws."""
    target: Any = model.target
    copies, device = sampling.guidance_rows, model.device
    hidden = target.prefill(text, copies, target.new_cache(copies, target.prefix))  # [G, P, D]
    drafter = Eagle(model, name)
    if model.execution is not None:  # one that packs nets does so when a loop is built
        model.execution.offer(drafter.net, f"drafter {name}")
    session = drafter.begin(text, hidden, sampling, 2, 1)
    one = torch.ones(1, dtype=torch.long, device=device)
    session.advance(hidden[:, -1:], one[:, None] - 1, one, one + target.length // 2)
    given = {
        "codes": one[:, None] - 1,  # [1, 1]
        "parents": one[:, None] - 1,
        "nodes": one,
        "u": torch.full((1, 1, 1), 0.5, device=device),
    }

    def step(run: State) -> tuple[Tensor, ...]:
        given = run.tensors
        logits = run.session.expand(given["codes"], given["nodes"], given["parents"], 1)
        if sampling.greedy:
            return (logits.softmax(-1).topk(1, -1).indices,)
        return processed(logits, sampling, given["u"])

    return repeated(model, Alone("draft", step), State(device, 1, given, session))


def products(
    model: ImageModel, net: Any, body: Any, rows: int, queries: int, times: int = 1
) -> Steps | None:
    """The products of a network's body and of the target's head on R rows of T queries, by what
    multiplies in a step, so many times a call in the CPU kernel; None for a plug-in whose layers
    are not where they are expected."""
    native = attended(model, net, rows, queries, 0, times)
    nets = [body, model.target.output]
    if native is not None or not all(isinstance(m, nn.Module) for m in nets):
        return native
    return Steps(1, linears(model, nn.ModuleList(nets), rows * queries))


def attended(
    model: ImageModel, net: Any, rows: int, queries: int, seen: int, times: int = 1
) -> Steps | None:
    """The same in the CPU kernel alone, None outside it; with attention over `seen` > 0 slots."""
    if model.execution is None:
        return None
    own, target = model.execution.native(net), model.execution.native(model.target)
    if own is None or target is None:
        return None
    return Steps(times, native_products(own, target, rows, queries, seen, times))


def linears(model: ImageModel, module: nn.Module, rows: int) -> Call:
    """Every linear layer of a module once, on a random input of so many rows. The results are
    returned, so that none is left out."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    inputs = {
        str(m.in_features): torch.randn(rows, 1, m.in_features, device=model.device).to(
            m.weight.dtype
        )
        for m in layers
    }

    def step(run: State) -> tuple[Tensor, ...]:
        return tuple(F.linear(run.tensors[str(m.in_features)], m.weight, m.bias) for m in layers)

    return repeated(model, Alone("forward", step), State(model.device, rows, inputs))


def native_products(
    net: Native, target: Native, rows: int, queries: int, seen: int = 0, times: int = 1
) -> Call:
    """The products with weights of R rows and T queries in the CPU kernel, by the kernel itself: of
    the layers of a target or drafter, of a drafter's ``fc``, and of the target's head. With `seen`
    > 0 attention over so many slots too. Each of them `times` times in turn: what they are held
    against may take several steps a call, and a call has a cost of its own."""
    linears = [net.project] if net is target else [net.project, target.project]
    calls = [net.layers.products(rows, queries, seen)]
    calls += [one.products(rows * queries) for one in linears]

    def run() -> None:
        for call in calls:
            call(times)

    return run


def repeated(model: ImageModel, loop: Any, start: Any) -> Call:
    """A call that runs the loop's piece once more on its state, as the model's execution does."""
    own = model.execution or execution("eager")
    run = own.begin(loop, start)
    return lambda: own.step(loop, run)


def _noise(model: ImageModel) -> Noise:
    return Noise.for_prompts(0, ["a step"], model.target.length).to(model.device)
