"""Are compiled or captured steps those that the loop's pieces describe?

Two float computations of one law differ by rounding, and after the first code that rounding changed
two images have nothing in common. So not images are compared but steps, each from the same state:
the compiled step runs, and then every piece runs without a compiler on what the compiled piece
before it returned. A third run of the pieces, with the target's weights in twice the precision,
says how far rounding goes at these shapes: a compiled step may lie no further from it than `FACTOR`
times the other. What follows from given logits (acceptance, draws, the path) must be equal.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, Execution, ImageModel, Target, TextFeatures
from decoders.execution.state import fill, snapshot, tensors, without_views
from decoders.loops.autoregressive import Autoregressive
from decoders.noise import Noise

STEPS = 32  # of an image that are compared, the first ones and others spread over it
FIRST = 4
FACTOR, WORST = 1.5, 4.0  # of the error of an uncompiled piece: over all steps, in one step
DRAFTER = 8.0  # of the target's error: a drafter's, which is not known in twice the precision
FIXED = 1e-3  # what float32 sums in another order make of equal logits, relative
TIES = 1  # steps in which they may decide otherwise
LARGE = 1e20  # a logit beyond it stands for minus infinity


@torch.inference_mode()
def compiled_fault(fast: Any, plain: Any, prompt: str, seed: int) -> str:
    """What a compiled decoder computes otherwise than its pieces do without a compiler, beyond
    rounding; "" where there is nothing. Raises DecoderError where the target is no module, whose
    precision cannot be changed."""
    twin, tally = Twin(plain), Tally(torch.finfo(plain.model.dtype).eps)
    text = plain.model.text.encode([prompt])
    noise = Noise.for_prompts(seed, [prompt], plain.model.target.length).to(plain.model.device)
    state = plain.execution.begin(plain, plain.begin(text, noise))
    fast_state = fast.execution.begin(fast, fast.begin(text, noise))
    mine, others = tensors(fast_state.noise), tensors(state.noise)
    if not all(torch.equal(mine[path], value) for path, value in others.items()):
        return "it begins with the random numbers of another image"
    twin.compare_prefill(tally, text, state, fast_state)
    steps = plain.model.target.length - 1
    for number, _ in enumerate(plain.steps(state)):
        if number >= FIRST and number % max(1, steps // STEPS):
            plain.execution.step(plain, state)
            continue
        fill(fast_state, tensors(state))
        carries: list[Any] = []
        fast.execution.step(fast, fast_state, carries)
        twin.compare(tally, state, fast_state, carries)
        if twin.done(state):
            break
    return tally.fault()


def widened(target: Target) -> Any:
    """A copy of a target with its weights in float32, or of one in float32 in float64."""
    if not isinstance(target, nn.Module):
        raise DecoderError(
            f"the precision of {type(target).__name__} cannot be changed: make it an nn.Module"
        )
    wide: Any = copy.deepcopy(target)
    for tensor in [*wide.parameters(), *wide.buffers()]:
        if tensor.is_floating_point():
            half = tensor.dtype in (torch.bfloat16, torch.float16)
            tensor.data = tensor.data.to(torch.float32 if half else torch.float64)
    return wide


@dataclass
class Tally:
    """By what is compared, the errors of each step relative to its size: of the compiled step, and
    of the uncompiled one. eps: the unit of the dtype."""

    eps: float
    errors: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    drafts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    fixed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    draws: dict[str, list[tuple[bool, bool]]] = field(default_factory=lambda: defaultdict(list))

    def fault(self) -> str:
        """The first of them that rounding does not explain, in words."""
        floor = self.eps / 8
        usual = floor
        for name, pairs in self.errors.items():
            mine, other = (_rms([pair[i] for pair in pairs]) for i in (0, 1))
            usual = max(usual, other)
            for error, limit in (
                (mine, FACTOR * max(other, floor)),
                (max(pair[0] for pair in pairs), WORST * max(other, floor)),
            ):
                if not error <= limit:
                    return f"{name} is off by {error:.2g}, rounding explains {limit:.2g}"
        for name, errors in self.drafts.items():
            if not (error := _rms(errors)) <= DRAFTER * usual:
                return f"{name} is off by {error:.2g}, rounding explains {DRAFTER * usual:.2g}"
        for name, errors in self.fixed.items():
            if (count := sum(not error <= FIXED for error in errors)) > TIES:
                return f"{name} differs in {count} of {len(errors)} steps from equal logits"
        for name, flags in self.draws.items():
            mine, other = (sum(flag[i] for flag in flags) for i in (0, 1))
            if mine > 3 * other + 3:
                return f"{name} differs in {mine} of {len(flags)} steps, by rounding in {other}"
        return ""


class Twin:
    """The pieces of a loop without a compiler, and with the target in twice the precision."""

    def __init__(self, plain: Any) -> None:
        how: Execution = plain.execution
        model: ImageModel = plain.model
        self.plain, self.wide = plain, copy.copy(plain)
        self.wide.model = replace(model, target=widened(how.original(model.target)))
        self.pieces, self.wide_pieces = pieces_of(plain), pieces_of(self.wide)
        self.cache: Any = None

    def done(self, state: Any) -> bool:
        """Whether a speculative image has all of its codes."""
        length = getattr(state, "length", None)
        return length is not None and bool((length >= self.plain.model.target.length).all())

    def compare_prefill(
        self, tally: Tally, text: TextFeatures, state: Any, fast_state: Any
    ) -> None:
        """Compares what the captions left in the caches."""
        target, copies = self.wide.model.target, self.plain.sampling.guidance_rows
        self.cache = target.new_cache(state.cache.rows, state.cache.capacity)
        target.prefill(text, copies, self.cache)
        rows, slots = text.row_mask(copies).nonzero().unbind(1)  # of the words, not of the padding
        fast, plain, wide = (
            each.cache.data[:, :, rows, :, slots] for each in (fast_state, state, self)
        )
        tally.errors["the prefill"].append((relative(fast, wide), relative(plain, wide)))

    def compare(self, tally: Tally, state: Any, fast_state: Any, carries: Sequence[Any]) -> None:
        """Runs the pieces on a state that the compiled step, which left `fast_state` and `carries`,
        began with."""
        if isinstance(self.plain, Autoregressive):
            carries = [*carries, ()]  # its piece is two here
        inputs = [(), *carries[:-1]]
        before, cache_before = snapshot(state), state.cache.data.clone()
        self.cache.data.copy_(cache_before)
        wide_state = copy.copy(state)
        wide_state.cache = self.cache
        wides = copy.deepcopy(run(self.wide_pieces, wide_state, inputs))
        wide_after = {path: tensor.clone() for path, tensor in common(wide_state)}
        fill(state, before)
        state.cache.data.copy_(cache_before)
        plains, reads = run(self.pieces, state, inputs), False
        for number, triple in enumerate(zip(carries, plains, wides, strict=True), 1):
            reads = self.compare_carries(tally, number, [*map(tensors, triple)], reads)
        forced = not reads  # what the last piece wrote follows from given logits
        written = (state.cache.data != cache_before).any(-1)  # slots of the step
        keys, wide_keys = state.cache.data[written], self.cache.data[written]
        mine = relative(fast_state.cache.data[written], wide_keys)
        elsewhere = torch.equal(fast_state.cache.data[~written], state.cache.data[~written])
        tally.fixed["the cache at other slots"].append(float(not elsewhere))
        tally.errors["the cache"].append((mine, relative(keys, wide_keys)))
        fast_after = dict(common(fast_state))
        for path, value in common(state):
            name, other = f"the state's {path.lstrip('.')}", fast_after[path]
            same = torch.equal(other, value)
            if forced and value.is_floating_point():
                tally.fixed[name].append(relative(other, value))
            elif forced:
                tally.fixed[name].append(float(not same))
            elif not value.is_floating_point():
                tally.draws[name].append((not same, not torch.equal(wide_after[path], value)))

    def compare_carries(
        self,
        tally: Tally,
        number: int,
        returned: Sequence[dict[str, Tensor]],
        forced: bool,
    ) -> bool:
        """Compares what a piece returned, by path: compiled, without a compiler, and in twice the
        precision. forced: whether the piece before it ran the target, whose logits it was given;
        returns whether this one did."""
        (fast, plain, wide), reads = returned, False
        vocab = self.plain.model.target.vocab_size
        whole = [x for x in plain if not plain[x].is_floating_point()]
        alike = all(torch.equal(fast[path], plain[path]) for path in whole)
        for path, value in plain.items():
            if not value.is_floating_point():
                continue
            name, other = f"piece {number}'s {path.lstrip('.')}", fast[path]
            if (error := relative(value, wide[path])) > 0:
                reads = True
                tally.errors[name].append((relative(other, wide[path]), error))
            elif bool(value.isneginf().any()):  # a mask: its first query sees what is committed
                seen = slice(None) if alike else slice(1)
                tally.fixed[name].append(float(not torch.equal(other[:, seen], value[:, seen])))
            elif is_law(value, vocab):
                where = tally.fixed if forced else tally.drafts
                where[name].append(tv(other, value))
        return reads


def run(pieces: Sequence[Any], state: Any, inputs: Sequence[Any]) -> list[Any]:
    """What each piece returns, given what another run's piece before it returned."""
    return [piece(state, *given) for piece, given in zip(pieces, inputs, strict=True)]


def common(state: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a run but its cache and the drafter's own: what every loop writes."""
    every = tensors(state)
    for path in without_views(every):
        if not path.startswith((".cache", ".session", ".noise", ".pieces")):
            yield path, every[path]


def pieces_of(loop: Any) -> list[Any]:
    """What the step of a loop is made of. AR's one piece is two here: the target's logits, and what
    follows from them."""
    if not isinstance(loop, Autoregressive):
        return [piece for _, piece in loop.pieces()]

    def forward(state: Any) -> tuple[Tensor]:
        return (loop.logits(state),)

    def choose(state: Any, logits: Tensor) -> tuple[()]:
        loop.commit(state, logits)
        return ()

    return [forward, choose]


def relative(one: Tensor, other: Tensor) -> float:
    """The size of a difference relative to that of `other`; infinity where one is not finite. What
    stands for minus infinity must do so in both."""
    one, other = one.double(), other.double()
    shown = other.abs() < LARGE
    if not torch.equal(shown, one.abs() < LARGE):
        return float("inf")
    size = float(other[shown].norm())
    difference = float((one - other)[shown].norm())
    return difference / size if size else difference


def is_law(values: Tensor, vocab: int) -> bool:
    """Whether a tensor holds distributions of codes, or zeros in their place."""
    if values.shape[-1:] != (vocab,) or not bool((values >= 0).all()):
        return False
    mass = values.sum(-1)
    return bool(((mass - 1).abs().minimum(mass.abs()) < FIXED).all())


def tv(one: Tensor, other: Tensor) -> float:
    """The mean TV of distributions [..., V]."""
    return 0.5 * float((one.double() - other.double()).abs().sum(-1).mean())


def _rms(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).square().mean().sqrt())
