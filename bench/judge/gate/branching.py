"""The exact law of a random program: every uniform number that it reads is split at the thresholds
that it is compared with, and every combination is run.

A program reads `Noise` for B rows at once, as a decoder's `generate` does. Its numbers are
`Uniform` tensors. They may be indexed and reshaped, compared with a probability, or given to
`decoders.noise.sample`. A comparison cuts the number's interval into cells. The row follows one
cell, and a new row is queued for each of the others. A number that is read twice keeps the interval
of its first use, so a number that is wrongly used again shows in the law. The rows' boxes divide
the unit cube: what a row returns has the probability of its box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, SLOTS, Noise

PLACES, MOST_SLOTS = 2**10, 2**20  # a key is (round * PLACES + place) * MOST_SLOTS + slot
RENEWED = 2**16  # added to the round of numbers that are new in every step
TINY = 1e-13  # a narrower cell is rounding
POINT = TINY / 10  # width of a fixed number
CHUNK = 4096  # rows that run at once
RESHAPING = frozenset(  # operations that move numbers and do not read them
    {
        *("__getitem__", "__get__", "__len__", "__repr__", "size", "dim", "numel", "detach", "to"),
        *("view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "expand", "expand_as", "broadcast_to", "repeat", "contiguous", "clone"),
        *("gather", "index_select", "select", "narrow", "unbind", "split", "chunk"),
        "is_floating_point",
    }
)
# (comparison, whether the number is its first side) -> whether it asks if the number is below.
COMPARISONS = {("lt", True): True, ("ge", True): False, ("gt", False): True, ("le", False): False}


class NotEnumerable(DecoderError):
    """The program uses a random number in a way that shows no thresholds."""


@dataclass(frozen=True)
class Held:
    """Fixes all numbers but those of the places first..stop - 1: tests of drafts read `tested`,
    others `value`. Numbers of places past the image's end decide nothing and are always fixed,
    unless a verifier looks ahead."""

    first: int = 0
    stop: int = PLACES
    value: float = 0.5
    tested: float = 0.0

    def interval(self, key: int, length: int) -> tuple[float, float]:
        """Where the number of a key lies at first, in an image of so many places."""
        at, slot = divmod(key, MOST_SLOTS)
        renewed = at // PLACES >= RENEWED
        if renewed or self.first <= at % PLACES < min(self.stop, length):
            return 0.0, 1.0
        start = self.tested if ACCEPT_SLOT <= slot < DRAFT_SLOT else self.value
        return start, start + POINT


FREE = Held()


@dataclass
class Columns:
    """The column of each number in the boxes, by its key, and its first interval."""

    held: Held
    length: int  # places of the image
    index: dict[int, int] = field(default_factory=dict)
    ends: list[tuple[float, float]] = field(default_factory=list)

    def column(self, key: int) -> int:
        if key not in self.index:
            self.index[key] = len(self.index)
            self.ends.append(self.held.interval(key, self.length))
        return self.index[key]

    def widened(self, boxes: Tensor) -> Tensor:
        """Boxes [B, C, 2] of C numbers, with those that appeared since, [B, len(ends), 2]."""
        new = torch.tensor(self.ends[boxes.shape[1] :], dtype=torch.float64).view(-1, 2)
        return torch.cat([boxes, new.expand(len(boxes), -1, -1)], 1) if len(new) else boxes


@dataclass
class Script:
    """Decides the numbers of B rows, and queues the cells that they do not follow."""

    box: Tensor  # [B, C, 2] float64, the interval of each number
    weight: Tensor  # [B] float64, volume of the box
    columns: Columns
    steps: Tensor | None = None  # [B], of each image: later rounds decide nothing
    used: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # rounds, shares [B]
    others: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = self.weight  # before any number was read

    def matters(self, turn: Tensor, row: Tensor | slice = slice(None)) -> Tensor:
        """Whether numbers of these rounds were read before the rows' images were done."""
        return turn >= 0 if self.steps is None else turn < self.steps[row] + RENEWED

    def decide(self, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [B, ...], thresholds [B, ..., M] ascending -> how many of the thresholds the number
        reaches, [B, ...] int64."""
        batch, cuts = len(self.box), thresholds.shape[-1]
        keys = keys.as_subclass(Tensor).expand(thresholds.shape[:-1]).reshape(batch, -1).long()
        thresholds = thresholds.double().nan_to_num(0.0).reshape(batch, -1, cuts)
        numbers = zip(keys.unbind(1), thresholds.unbind(1), strict=True)
        return torch.stack([self._cell(*number) for number in numbers], 1)

    def _column(self, keys: Tensor) -> Tensor:
        """keys [B] -> their columns [B], made on first use."""
        distinct, inverse = keys.unique(return_inverse=True)
        columns = [self.columns.column(key) for key in distinct.tolist()]
        self.box = self.columns.widened(self.box)
        return torch.tensor(columns)[inverse]

    def _cell(self, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [B], thresholds [B, M] -> the cell that each row follows, [B]."""
        column, rows = self._column(keys), torch.arange(len(keys))
        low, high = self.box[rows, column].split(1, 1)  # [B, 1]
        inner = torch.minimum(torch.maximum(thresholds, low), high)
        cells = torch.cat([low, inner, high], 1).unfold(1, 2, 1)  # [B, M + 1, 2]
        share = cells[..., 1] - cells[..., 0]
        chosen = share.argmax(1)
        possible = share > TINY
        possible[rows, chosen] = False
        share = share / (high - low)
        row, cell = possible.nonzero(as_tuple=True)
        if len(row):
            turn = keys // MOST_SLOTS // PLACES
            boxes = self.box[row]
            boxes[torch.arange(len(row)), column[row]] = cells[row, cell]
            self.others.append((turn[row], row, boxes, self.weight[row] * share[row, cell]))
            self.used.append((turn, share[rows, chosen]))
            self.weight = self.weight * share[rows, chosen]
            self.box[rows, column] = cells[rows, chosen]
        return chosen


class Uniform(Tensor):
    """Numbers of a `Script`; the tensor holds their keys, float64."""

    script: Script

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if name in RESHAPING:
            result = super().__torch_function__(func, types, args, kwargs or {})
            for part in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(part, Uniform):
                    part.script = args[0].script
            return result
        first = isinstance(args[0], Uniform)
        if name in ("clamp_max", "clamp_max_") and first:
            return args[0]  # a number is below one already
        if name in ("mul", "__mul__", "__rmul__", "multiply"):
            number, factor = args if first else args[::-1]
            if not isinstance(factor, Uniform):
                return Scaled(number, torch.as_tensor(factor))
        below = COMPARISONS.get((name.strip("_"), first))
        if below is not None and not (first and isinstance(args[1], Uniform)):
            number, limit = args if first else args[::-1]
            return _below(number, torch.as_tensor(limit)) == below
        raise NotEnumerable(
            f"a random number goes through {name}(), which shows no threshold: compare it, or give "
            "it to decoders.noise.sample"
        )


@dataclass(frozen=True)
class Scaled:
    """A number times a factor, to be compared or looked up in sums."""

    number: Uniform
    factor: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ != "searchsorted" or not (kwargs or {}).get("right"):
            raise NotEnumerable(f"a scaled random number goes through {func.__name__}()")
        sums, scaled = args
        number = scaled.number.squeeze(-1)
        cell = number.script.decide(number, sums[..., :-1] / scaled.factor)
        return cell.view(*sums.shape[:-1], 1)

    def __lt__(self, other: Tensor) -> Tensor:
        return _below(self.number, other / self.factor)

    def __ge__(self, other: Tensor) -> Tensor:
        return ~(self < other)


def _below(number: Uniform, limit: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(number.shape, limit.shape)
    cell = number.script.decide(number.expand(shape), limit.expand(shape)[..., None])
    return (cell == 0).view(shape)


@dataclass(frozen=True)
class Scripted(Noise):
    """`Noise` whose numbers come from a script when they are read; nothing is ever written."""

    script: Any = None

    @staticmethod
    def of(script: Script) -> Scripted:
        place = torch.arange(min(PLACES, script.columns.length + 64))
        keys = place[:, None] * MOST_SLOTS + torch.arange(SLOTS)  # [places, SLOTS]
        table = _numbers(keys.expand(len(script.box), -1, -1), script)
        return Scripted(table, None, script=script)

    def to(self, device: torch.device) -> Scripted:
        return self

    def rows(self, images: Sequence[int] | slice) -> Scripted:
        """All rows: the script decides for every image of a batch at once."""
        return self

    def stepping(self, steps: Tensor, renewed: bool) -> Scripted:
        return replace(self, round=steps.expand(len(self.uniform)), renewed=renewed)

    def renew(self, position: Tensor) -> None:
        """Nothing to write."""

    def at(self, position: Tensor, slot: int, count: int = 1, round: int | Tensor = 0) -> Uniform:
        turn: Any = round
        if self.renewed and slot >= ACCEPT_SLOT:
            assert self.round is not None, "numbers are renewed by a loop's steps"
            steps = self.round.view(-1, *[1] * (position.ndim - 1))
            turn = RENEWED + (steps if isinstance(round, int) else round)
        keys = (turn * PLACES + position.clamp_max(PLACES - 1)) * MOST_SLOTS + slot
        return _numbers(keys[..., None] + torch.arange(count), self.script)

    def gumbel(self, *_: Any, **__: Any) -> Tensor:
        raise NotEnumerable("Gumbel rows show no thresholds")


def _numbers(keys: Tensor, script: Script) -> Uniform:
    numbers = keys.double().as_subclass(Uniform)
    numbers.script = script
    return numbers


@dataclass(frozen=True)
class Explored:
    """value [M, k] and weight [M] of all rows that ran; rest: the weight of those that did not."""

    value: Tensor
    weight: Tensor
    rest: float


def explore(
    run: Callable[[Scripted], Tensor], length: int, most: int, held: Held = FREE
) -> Explored:
    """Runs a program, which returns [B, k] for B rows, on every combination of cells, the likeliest
    first, about `most` rows at most. held: fixed numbers; the law is then that of the others, given
    these.

    Raises NotEnumerable."""
    columns = Columns(held, length)
    box, weight = torch.zeros(1, 0, 2).double(), torch.ones(1).double()
    values, weights, ran, rest = [], [], 0, 0.0
    while len(weight) and ran < most:
        order = weight.argsort(descending=True)
        count = min(len(order), CHUNK)
        later = min(len(order) - count, max(0, most - ran - CHUNK) + CHUNK)
        batch, queue, never = order.split_with_sizes([count, later, len(order) - count - later])
        rest += float(weight[never].sum())
        script = Script(box[batch], weight[batch], columns)
        values.append(run(Scripted.of(script)))
        volume = script.start
        for turn, share in script.used:
            volume = torch.where(script.matters(turn), volume * share, volume)
        weights.append(volume)
        ran += count
        queued = [(box[queue], weight[queue])]
        for turn, row, boxes, share in script.others:
            keep = script.matters(turn, row)
            queued.append((boxes[keep], share[keep]))
        box = torch.cat([columns.widened(boxes) for boxes, _ in queued])
        weight = torch.cat([share for _, share in queued])
    return Explored(torch.cat(values), torch.cat(weights), rest + float(weight.sum()))
