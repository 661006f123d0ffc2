"""The law of whole images of a decoder, by enumeration: every loop, proposer and verifier as they
are, on a table model of V = 3 codes and n = 3 places.

Nothing is sampled (`bench.judge.gate.branching`), so an exact decoder's law equals AR's to 1e-12,
and an error of 1e-9 is seen. Decoders that have too many ways to an image are followed along the
likeliest ones: what they put on an image beyond its probability is then an error all the same.

The table's target and drafter are so small that all that a decoder may do on them can be
enumerated, in float64. The target's state is the mean of what it sees: one vector for every code at
a place, zeros in a slot that was never written. Its law is a random function of that. So a law
differs wherever a slot is missing, doubled, stale, empty or at a wrong place, as in an attention
layer. The same function of the prefix alone, without cache or masks, is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.judge.gate.branching import FREE, Held, Outcome, Scripted, explore
from bench.judge.gate.reference import image_law
from bench.judge.gate.small import Real, same_prompt, small_spec
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.cache import KVCache
from decoders.compose import DecoderSpec, PartSpec
from decoders.executed import execution
from decoders.masks import visible

MOST = 40_000  # rows that are run at most
CERTAIN = 1e-9  # a total variation that is no rounding
DRAFTER = PartSpec("bench.judge.gate.whole_law.TableDrafter")
BEYOND = 8  # places past the image's end that differ from each other
SHORT, NARROW = 16, 24  # places of images whose slots hold a one-hot vector; else a random one of
WIDE, SHARP, APART = 16, 1.0, 1.5  # hidden units; scale of the logits; of the drafter's own share


@dataclass(frozen=True)
class Net:
    """Context [..., W] float64 -> logits [..., V]."""

    first: Tensor
    second: Tensor

    @staticmethod
    def random(width: int, vocab: int, scale: float, generator: torch.Generator) -> Net:
        one, two = (
            torch.randn(*size, generator=generator, dtype=torch.float64)
            for size in ((width, WIDE), (WIDE, vocab))
        )
        return Net(4 * one, scale * two)

    def __call__(self, context: Tensor) -> Tensor:
        return torch.tanh(context @ self.first) @ self.second / WIDE**0.5


class TableTarget:
    """V codes, n places, one prefix position."""

    prefix, barred = 1, None

    def __init__(self, vocab: int, length: int, seed: int) -> None:
        self.vocab_size, self.length = vocab, length
        self.width = 1 + (length + BEYOND) * vocab
        self.generator = torch.Generator().manual_seed(seed)
        rows = torch.eye(self.width, dtype=torch.float64)  # what slots hold; row 0: the prefix
        if length > SHORT:
            rows = torch.randn(self.width, NARROW, generator=self.generator, dtype=torch.float64)
            rows += (1 - rows.sum(-1, keepdim=True)) / NARROW  # a sum of n of them adds up to n
        self.rows, self.width = rows, rows.shape[1]
        self.net = Net.random(self.width, vocab, SHARP, self.generator)

    def content(self, codes: Tensor, places: Tensor) -> Tensor:
        """What a slot holds: codes, places [...] -> [..., W]."""
        return self.rows[1 + places.clamp_max(self.length + BEYOND - 1) * self.vocab_size + codes]

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        return KVCache(1, rows, capacity, 1, self.width, torch.float64, torch.device("cpu"))

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: Any) -> Tensor:
        rows = guidance_rows * text.batch
        start = self.rows[:1].expand(rows, 1, -1)  # [R, P, W]
        slots = torch.zeros(rows, 1, dtype=torch.long)
        cache.write(0, cache.flat_index(slots), start[None, :, None].expand(2, -1, -1, -1, -1))
        return start

    def forward_codes(
        self, codes: Tensor, grid_index: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        content = self.content(codes, grid_index)  # [R, T, W]
        index = cache.flat_index(slots)
        cache.write(0, index, content[None, :, None].expand(2, -1, -1, -1, -1))
        held = cache.read(0)[1][:, 0]  # [R, S, W]
        seen = visible(mask).double()
        return seen @ held / seen.sum(-1, keepdim=True)  # [R, T, W]

    def guided_logits(self, hidden: Tensor, cfg: float) -> Tensor:
        del cfg  # no guidance: one row an image
        return self.net(hidden)

    logits = guided_logits

    def __call__(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """Teacher forcing: no cache, no mask."""
        return self.context(codes)[:, :-1]

    def output(self, hidden: Tensor) -> Tensor:
        return self.net(hidden)

    def context(self, codes: Tensor) -> Tensor:
        """The states that predict each of codes [B, n] and the one behind them, [B, n + 1, W]."""
        places = torch.arange(codes.shape[1]).expand_as(codes)
        start = self.rows[:1].expand(len(codes), 1, -1)
        sums = torch.cat([start, self.content(codes, places)], 1).cumsum(1)
        return sums / sums.sum(-1, keepdim=True)


class TableDrafter:
    """Drafts from logits that are partly the target's."""

    def __init__(self, model: ImageModel) -> None:
        target: Any = model.target
        self.target = target
        generator = torch.Generator().manual_seed(target.generator.initial_seed() + 1)
        self.own = Net.random(target.width, target.vocab_size, APART, generator)

    def begin(
        self, text: TextFeatures, prefix_hidden: Tensor, sampling: Sampling, max_new: int,
        nodes: int,
    ) -> TableSession:  # fmt: skip
        return TableSession(self, prefix_hidden[: text.batch, -1], nodes)


class TableSession:
    """`decoders.api.DraftSession`. sums [B, nodes + 1, W]: what a node and
    those above it hold."""

    def __init__(self, part: TableDrafter, prefix: Tensor, nodes: int) -> None:
        self.part, self.calls = part, 0
        self.sums = prefix[:, None].repeat(1, nodes + 1, 1)
        self.root_code = torch.zeros(len(prefix), dtype=torch.long)
        self.place = torch.zeros(len(prefix), dtype=torch.long)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        span = torch.arange(codes.shape[1])
        new = self.part.target.content(codes, start[:, None] + span)  # [B, T, W]
        self.sums[:, 0] += (new * (span < count[:, None])[..., None]).sum(1)
        self.root_code = codes.gather(1, count[:, None] - 1)[:, 0]
        self.place = start + count - 1
        return self._logits(self.sums[:, 0])

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        index = parents[..., None].expand(-1, -1, self.sums.shape[-1])
        new = self.part.target.content(codes, (self.place[:, None] + depth).expand_as(codes))
        self.sums[:, nodes] = self.sums.gather(1, index) + new
        return self._logits(self.sums[:, nodes])

    def _logits(self, sums: Tensor) -> Tensor:
        self.calls += 1
        context = sums / sums.sum(-1, keepdim=True)
        return 0.6 * self.part.target.net(context) + self.part.own(context)


@dataclass(frozen=True)
class TableSides:
    """The text encoder and the tokenizer of a table model; its codes are no pictures."""

    codebook: Tensor

    def encode(self, prompts: list[str]) -> TextFeatures:
        return TextFeatures(torch.zeros(len(prompts), 1, 1), torch.ones(len(prompts), 1).bool())

    def decode(self, codes: Tensor) -> Tensor:
        raise NotImplementedError("codes of a table model are no pictures")


def table_model(vocab: int = 3, length: int = 3, seed: int = 0) -> ImageModel:
    """V = vocab codes, n = length places, float64, eager."""
    target: Any = TableTarget(vocab, length, seed)
    book = torch.randn(vocab, 2, generator=torch.Generator().manual_seed(seed))
    sides = TableSides(F.normalize(book, dim=-1))
    return ImageModel(
        name=f"table-{vocab}x{length}",
        target=target,
        text=sides,
        tokenizer=sides,
        sampling=Sampling(),
        device=torch.device("cpu"),
        dtype=torch.float64,
        weights_sha256={},
        execution=execution("eager"),
    )


@dataclass(frozen=True)
class WholeLaw:
    """law [M] float64 of the images that were followed, in base-V order of the places that are not
    held; wanted [M]: AR's; rest: the probability of what was not followed; rows: ways to an image
    that were; forwards: mean target forwards of an image, prefill not counted (of what was
    followed)."""

    law: Tensor
    wanted: Tensor
    rest: float
    rows: int
    forwards: float

    @property
    def tv(self) -> float:
        """The total variation where all was followed, else the least that it can be."""
        return float((self.law - self.wanted).clamp_min(0.0).sum())

    @property
    def complete(self) -> bool:
        return self.rest < CERTAIN / 10


def whole_law(
    decoder: Decoder,
    model: ImageModel,
    sampling: Sampling,
    most: int = MOST,
    held: Held = FREE,
) -> WholeLaw:
    """The law of a decoder's images of one caption, on a table model or a small one. held: numbers
    of the first places that are no random ones; wanted is then AR's law given the codes there.
    Raises NotEnumerable where a random number is used in a way that cannot be followed."""
    target, text = model.target, model.text.encode(["x"])
    size, start, now = target.length, held.places, clock_of(target)

    def run(noise: Scripted) -> Outcome:
        made = decoder.generate(same_prompt(text, len(noise.uniform)), noise)
        value = torch.cat([made.codes.long(), made.trace.target_calls.long()[:, None]], 1)
        return Outcome(value, made.trace.step.long().amax(-1))

    found = explore(run, size, most, now, held)
    followed = max(1e-300, 1 - found.rest)
    laws, wanted = [], []
    before = found.value[:, :start]
    for prefix in before.unique(dim=0) if start else before[:1]:
        mine = (before == prefix).all(1)
        given = image_law(model, text, sampling, prefix)
        law = torch.zeros_like(given.probability)
        index = given.index(found.value[mine, start:size], size - start)
        laws.append(law.index_add_(0, index, found.weight[mine]))
        wanted.append(given.probability * (law.sum() / followed if start else 1.0))
    forwards = float(found.weight @ found.value[:, -1].double()) / followed
    return WholeLaw(torch.cat(laws), torch.cat(wanted), found.rest, len(found.weight), forwards)


def clock_of(target: Any) -> Callable[[], int]:
    """Counts, from now on, the forwards of a target since its last prefill."""
    calls, prefill, forward = [0], target.prefill, target.forward_codes

    def started(*args: Any) -> Any:
        calls[0] = 0
        return prefill(*args)

    def ran(*args: Any) -> Any:
        calls[0] += 1
        return forward(*args)

    target.prefill, target.forward_codes = started, ran
    return lambda: calls[0]


def table_spec(spec: DecoderSpec, model: ImageModel, real: Real) -> DecoderSpec:
    """The composition on a table model: k relative to its codebook, its tree cut to what fits, and
    a drafter of table models in the place of its own."""
    made = small_spec(replace(spec, drafter=None), model, real)
    return made if spec.drafter is None else replace(made, drafter=DRAFTER)
