"""Parts of a decoding step as loops of one piece, so that a backend runs them as it runs a step.

A backend (`decoders.execution.eager`) takes a loop, whose piece reads and changes the tensors of
a state; here they are a drafter call, matrix products alone, and what a decoder's own step is made
of.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.cache import BLOCK
from decoders.executed import execution
from decoders.execution.cpu.packing import Native
from decoders.execution.eager import Piece
from decoders.loops.autoregressive import AT_ONCE, Autoregressive
from decoders.loops.speculative import Speculative
from decoders.loops.timing import Stopwatch
from decoders.noise import Noise
from decoders.processed import processed
from decoders.propose.grown import Grown
from decoders.propose.trees.chain import Chain
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact

WARM = 0.01  # seconds of its like before a timed run: as in an image, caches and clock are set
AHEAD = 8  # steps that an AR decoder takes before it is put back, or one call's, if those are more
CALL = 0.005  # seconds of a call of several AR steps, at most: as long as one of verification
TRIES = 5  # calls of one AR step, of which the fastest says how many fit


@dataclass
class Record:
    """What a backend asks of a run's record: on which device it is."""

    codes: Tensor


@dataclass
class State:
    """What a piece reads and changes; `shape` decides the shapes of its tensors."""

    watch: Stopwatch
    shape: int
    tensors: dict[str, Tensor]
    record: Record
    session: Any = None
    pairs: None = None  # nothing is recorded


def state(device: torch.device, shape: int, tensors: dict[str, Tensor], **parts: Any) -> State:
    """The state of a piece on a device; parts: its drafter's session."""
    record = Record(torch.zeros(1, dtype=torch.long, device=device))
    return State(Stopwatch(device), shape, tensors, record, **parts)


@dataclass
class Again:
    """A piece of a loop's step by itself, given what the pieces before it have left."""

    phase: str
    piece: Callable[..., tuple[Any, ...]]
    left: tuple[Any, ...] = ()
    prepared: dict[Any, Any] = field(default_factory=dict)
    static: bool = False  # a part of what a decoder's loop has compiled: not worth it alone

    def pieces(self) -> list[Piece]:
        return [(self.phase, self.step)]

    def step(self, run: Any) -> tuple[Any, ...]:
        return self.piece(run, *self.left)


@dataclass
class Silent:
    """A drafter, and its session of one image, that costs nothing and says the same to everything:
    where the target alone is timed."""

    root_code: Tensor  # [1] int64
    logits: Tensor  # [1, V] float32
    calls: int = 0

    def begin(self, *_: Any) -> Silent:
        return self

    def advance(self, *_: Any) -> Tensor:
        return self.logits

    def expand(self, codes: Tensor, *_: Any) -> Tensor:
        return self.logits[:, None].expand(-1, codes.shape[1], -1)  # [1, w, V]


@dataclass
class Draft:
    """One call of the drafter on one code, and a draw from it as `Static.grow` draws."""

    sampling: Sampling
    prepared: dict[Any, Any] = field(default_factory=dict)
    static: bool = False  # a part of what a decoder's loop has compiled: not worth it alone

    def pieces(self) -> list[Piece]:
        return [("draft", self.step)]

    def step(self, run: State) -> tuple[Tensor, ...]:
        given = run.tensors
        logits = run.session.expand(given["codes"], given["nodes"], given["parents"], 1)
        if self.sampling.greedy:
            return (logits.softmax(-1).topk(1, -1).indices,)
        return processed(logits, self.sampling, given["u"])


@dataclass
class Products:
    """Every linear layer of a module once. The results are returned, so that none is left out."""

    module: nn.Module
    prepared: dict[Any, Any] = field(default_factory=dict)
    static: bool = False  # a part of what a decoder's loop has compiled: not worth it alone

    @property
    def layers(self) -> list[nn.Linear]:
        return [m for m in self.module.modules() if isinstance(m, nn.Linear)]

    def pieces(self) -> list[Piece]:
        return [("forward", self.step)]

    def step(self, run: State) -> tuple[Tensor, ...]:
        given = run.tensors
        return tuple(
            F.linear(given[str(m.in_features)], m.weight, m.bias)
            for m in self.module.modules()
            if isinstance(m, nn.Linear)
        )


@dataclass(frozen=True)
class Steps:
    """A call that takes `count` steps, or does `count` times what is held against a step."""

    count: int
    call: Callable[[], Any]

    def __call__(self) -> Any:
        return self.call()


def ar_steps(model: ImageModel, sampling: Sampling, text: TextFeatures) -> Steps:
    """The next steps of an AR decoder half-way through an image, with a cache as large as it is
    there. It goes back after a few steps, which costs little beside them. Where `generate` asks
    the CPU kernel for several codes a call, so does this, as far as CALL goes: a call has a cost of
    its own, a tenth of a small model's step and nothing to a large one's."""
    loop, target = Autoregressive(model, sampling), model.target
    half = target.length // 2
    run = loop.standing(text, _noise(model), half, target.prefix + half + BLOCK // 2)
    run = loop.execution.begin(loop, run)

    def taking(count: int) -> Callable[[], None]:
        start = half - count // 2
        ahead = itertools.cycle(range(max(1, min(AHEAD, target.length - start) // count)))

        def steps() -> None:
            if next(ahead) == 0:
                run.place.fill_(start)
                run.record.steps.zero_()
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


def speculative_step(loop: Speculative, text: TextFeatures, told: int) -> list[Callable[[], Any]]:
    """Two calls, half-way through an image: one drafts as the loop does after a step that committed
    `told` codes, the other is the target's forward over what was drafted."""
    half = loop.model.target.length // 2
    run = loop.standing(text, _noise(loop.model), half, min(told, half))
    run = loop.execution.begin(loop, run)
    chosen = getattr(run, "pieces", {}).get(id(loop), loop.pieces())
    (_, draft), (_, forward), *_ = chosen
    pieces = Again("draft", draft), Again("forward", forward, draft(run))
    return [repeated(loop.model, piece, run) for piece in pieces]


def verification(
    model: ImageModel, sampling: Sampling, text: TextFeatures, nodes: int
) -> Callable[[], Any]:
    """The target's forward over a chain of `nodes` nodes, as `speculative_step` does."""
    code = torch.zeros(1, dtype=torch.long, device=model.device)
    silent = Silent(code, torch.zeros(1, model.target.vocab_size, device=model.device))
    loop = Speculative(model, sampling, Grown(silent, Chain(depth=nodes)), ByNode(Exact()))
    return speculative_step(loop, text, 1)[1]


def _noise(model: ImageModel) -> Noise:
    return Noise.for_prompts(0, ["a step"], model.target.length).to(model.device)


def draft_state(model: ImageModel, sampling: Sampling, text: TextFeatures, name: str) -> State:
    """A session of the drafter `name` half-way through an image, with one code to draft on from."""
    from decoders.propose.drafters.eagle import Eagle

    target: Any = model.target
    copies, device = sampling.guidance_rows, model.device
    hidden = target.prefill(text, copies, target.new_cache(copies, target.prefix))  # [G, P, D]
    drafter = Eagle(model, name)
    offer = getattr(model.execution, "offer", None)
    if offer is not None:  # an execution that packs nets, as it does when a loop is built
        offer(drafter.net, f"drafter {name}")
    session = drafter.begin(text, hidden, sampling, 2, 1)
    one = torch.ones(1, dtype=torch.long, device=device)
    session.advance(hidden[:, -1:], one[:, None] - 1, one, one + target.length // 2)
    tensors = {
        "codes": one[:, None] - 1,  # [1, 1]
        "parents": one[:, None] - 1,
        "nodes": one,
        "u": torch.full((1, 1, 1), 0.5, device=device),
    }
    return state(device, 1, tensors, session=session)


def products_state(loop: Products, rows: int, device: torch.device) -> State:
    """A random input of `rows` rows for each width that a layer takes."""
    inputs = {
        str(m.in_features): torch.randn(rows, 1, m.in_features, device=device).to(m.weight.dtype)
        for m in loop.layers
    }
    return state(device, rows, inputs)


def native_products(
    net: Native, target: Native, rows: int, queries: int, seen: int = 0, times: int = 1
) -> Callable[[], None]:
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


def warmed(*works: Callable[[], Any]) -> None:
    """Runs the works in turn for WARM seconds, once at least. The clock waits for the device: a
    launch is done long before its work is."""
    began = time.perf_counter()
    while True:
        for work in works:
            work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if time.perf_counter() - began >= WARM:
            return


def repeated(model: ImageModel, loop: Any, start: Any) -> Callable[[], Any]:
    """A call that runs the loop's piece once more on its state, as the model's backend runs it."""
    backend = model.execution or execution("eager")
    run = backend.begin(loop, start)
    return lambda: backend.step(loop, run)
