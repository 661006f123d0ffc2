"""The exact law of a random program: every uniform number that it reads is split at the thresholds
that it is compared with, and every combination is run.

A program reads `Noise` for B rows at once, as a decoder's `generate` does. Its numbers are
`Uniform` tensors. They may be indexed and reshaped, compared with a probability, or given to
`decoders.noise.sample`. A comparison cuts the number's interval into cells. The row follows one,
and a new row is queued for each of the others. A number that is read twice keeps the interval of
its first use, so that a wrong second use shows in the law. What a row returns has the
probability of its box, and the boxes divide the unit cube.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, OVERRUN, SLOTS, Noise

POSITIONS, MOST_SLOTS = 2**10, 2**20  # a key is (round * POSITIONS + position) * MOST_SLOTS + slot
RENEWED = 2**16  # added to the round of numbers that are new in every step
TINY = 1e-13  # a narrower cell is rounding
CHUNK = 4096  # rows that run at once
ALL, MOSTLY, NONE = 1.0, 0.5, 0.0  # of the drafts before a block that are accepted
PRIME, LARGEST = 2**31 - 1, 1 - 2.0**-40  # of the numbers that are fixed
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


class Spans(NamedTuple):
    """Blocks of positions whose numbers are split: `size` positions from each of first [M] on. A
    block has a law of its own, in which all other numbers are fixed, at values as good as random.
    accept [M]: which of the drafts before it those that test accept. With ALL of them the block is
    met at any level. Else none is accepted at the position before, so that the block begins with a
    first level. Behind it all are accepted. drafts: only numbers are split that draw a node's first
    draft, and those of plug-ins."""

    first: Tensor
    size: int = POSITIONS
    accept: Tensor = torch.full((1,), MOSTLY)
    drafts: bool = False


EVERY = Spans(torch.zeros(1, dtype=torch.long))


def fixed(keys: Tensor, first: Tensor, accept: Tensor) -> Tensor:
    """Values [B, n] float64 in [0, 1) of numbers that are not free, as good as random but for tests
    of drafts: keys [B, n], of rows whose blocks have these [B, 1]."""
    slot, position = keys % MOST_SLOTS, keys // MOST_SLOTS % POSITIONS
    mixed = (keys + 1) % PRIME * 48271 % PRIME
    value = ((mixed ^ (mixed >> 13)) * 69621 % PRIME).double() / PRIME
    tested = (slot >= ACCEPT_SLOT) & (slot < DRAFT_SLOT)
    none = (accept == NONE) | (position == first - 1)
    tests = torch.where(none, LARGEST, MOSTLY * value)
    tests = torch.where((accept == ALL) | (position >= first), 0.0, tests)
    return torch.where(tested, tests, value)


@dataclass(frozen=True)
class Rows:
    """Rows that are run together, or wait. first, accept [B]: of their block; box [B, C, 2]
    float64: the interval of each free number; weight [B] float64: the box's volume."""

    first: Tensor
    accept: Tensor
    box: Tensor
    weight: Tensor

    def __getitem__(self, index: Tensor) -> Rows:
        return Rows(self.first[index], self.accept[index], self.box[index], self.weight[index])

    def widened(self, columns: int) -> Rows:
        """The rows with a whole interval for every number that appeared since."""
        new = columns - self.box.shape[1]
        whole = self.box.new_tensor([0.0, 1.0]).expand(len(self.box), new, 2)
        return replace(self, box=torch.cat([self.box, whole], 1)) if new else self


class Script:
    """Decides the numbers of B rows, and queues the cells that they do not follow."""

    def __init__(self, rows: Rows, free: Spans, length: int, columns: dict[int, int]) -> None:
        """length: positions of the image; columns: where the boxes have the interval of a key,
        counted from its block's first position on."""
        self.rows, self.free, self.length, self.columns = rows, free, length, columns
        self.weight = rows.weight.clone()  # of the cells that the rows follow
        self.steps: Tensor | None = None  # [B], of each image: later rounds decide nothing
        self.used: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, rounds, shares
        self.others: list[tuple[Tensor, Tensor, Rows]] = []  # rows, rounds, what waits

    def matters(self, rows: Tensor, turn: Tensor) -> Tensor:
        """Whether numbers of these rounds were read before the rows' images were done."""
        return turn >= 0 if self.steps is None else turn < self.steps[rows] + RENEWED

    def decide(self, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [B, ...], thresholds [B, ..., M] ascending -> how many the number reaches, [B, n]
        int64. Numbers past the image's end are fixed, unless a verifier looks ahead."""
        batch, first = len(self.weight), self.rows.first[:, None]
        keys = keys.as_subclass(Tensor).expand(thresholds.shape[:-1]).reshape(batch, -1).long()
        thresholds = thresholds.double().nan_to_num(0.0).reshape(batch, -1, thresholds.shape[-1])
        values = fixed(keys, first, self.rows.accept[:, None])  # [B, n]
        cells = (thresholds <= values[..., None]).sum(-1)  # [B, n]
        at = keys // MOST_SLOTS
        turn, position = at // POSITIONS, at % POSITIONS
        free = (first <= position) & (position < first + self.free.size)
        free &= (position < self.length) | (turn >= RENEWED)
        if self.free.drafts:
            free &= (keys % MOST_SLOTS == DRAFT_SLOT) | (keys % MOST_SLOTS >= SLOTS)
        for number in free.any(0).nonzero().flatten().tolist():
            rows = free[:, number].nonzero().flatten()
            cells[rows, number] = self._cell(rows, keys[rows, number], thresholds[rows, number])
        return cells

    def _column(self, keys: Tensor) -> Tensor:
        """keys [n] -> their columns [n], made on first use."""
        distinct, inverse = keys.unique(return_inverse=True)
        columns = [self.columns.setdefault(key, len(self.columns)) for key in distinct.tolist()]
        self.rows = self.rows.widened(len(self.columns))
        return torch.tensor(columns)[inverse]

    def _cell(self, rows: Tensor, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [n] of n of the rows, thresholds [n, M] -> the cell that each follows, [n]."""
        column = self._column(keys - self.rows.first[rows] * MOST_SLOTS)
        box, every = self.rows.box, torch.arange(len(rows))
        low, high = box[rows, column].split(1, 1)  # [n, 1]
        inner = torch.minimum(torch.maximum(thresholds, low), high)
        cells = torch.cat([low, inner, high], 1).unfold(1, 2, 1)  # [n, M + 1, 2]
        share = cells[..., 1] - cells[..., 0]
        chosen = share.argmax(1)
        possible = share > TINY
        possible[every, chosen] = False
        share = share / (high - low)
        which, cell = possible.nonzero(as_tuple=True)
        if len(which):
            turn, row = keys // MOST_SLOTS // POSITIONS, rows[which]
            others = replace(self.rows, weight=self.weight)[row]
            others.weight.mul_(share[which, cell])
            others.box[torch.arange(len(row)), column[which]] = cells[which, cell]
            self.others.append((row, turn[which], others))
            self.used.append((rows, turn, share[every, chosen]))
            self.weight[rows] *= share[every, chosen]
            box[rows, column] = cells[every, chosen]
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
    """A number times a factor, to be looked up in sums."""

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
        position = torch.arange(min(POSITIONS, script.length + OVERRUN))
        keys = position[:, None] * MOST_SLOTS + torch.arange(SLOTS)  # [positions, SLOTS]
        table = _numbers(keys.expand(len(script.weight), -1, -1), script)
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
        keys = (turn * POSITIONS + position.clamp_max(POSITIONS - 1)) * MOST_SLOTS + slot
        return _numbers(keys[..., None] + torch.arange(count), self.script)

    def gumbel(self, *_: Any, **__: Any) -> Tensor:
        raise NotEnumerable("Gumbel rows show no thresholds")


def _numbers(keys: Tensor, script: Script) -> Uniform:
    numbers = keys.double().as_subclass(Uniform)
    numbers.script = script
    return numbers


class Enumerated(NamedTuple):
    """value [n, k], weight [n] and the block's first position [n] of all rows that ran; rest: the
    weight of those that did not."""

    value: Tensor
    weight: Tensor
    first: Tensor
    rest: float


def enumerate_program(
    run: Callable[[Scripted], Tensor], length: int, most: int, free: Spans = EVERY
) -> Enumerated:
    """Runs a program, which returns [B, k] for B rows, on every combination of cells, the likeliest
    first, about `most` rows at most.

    Raises NotEnumerable."""
    columns, done, rest = dict[int, int](), list[tuple[Tensor, Tensor, Tensor]](), 0.0
    same = (free.first[:, None] == free.first).sum(-1)
    weight = 1.0 / same.double()  # blocks of the same positions make one law
    waiting = Rows(free.first, free.accept, weight.new_zeros(len(weight), 0, 2), weight)
    while len(waiting.weight) and sum(len(value) for value, _, _ in done) < most:
        order = waiting.weight.argsort(descending=True)
        now, later, never = order[:CHUNK], order[CHUNK:][:most], order[CHUNK:][most:]
        rest += float(waiting.weight[never].sum())
        script = Script(waiting[now], free, length, columns)
        value, volume = run(Scripted.of(script)), script.rows.weight.clone()
        for rows, turn, share in script.used:
            volume[rows] *= torch.where(script.matters(rows, turn), share, 1.0)
        done.append((value, volume, script.rows.first))
        queued = [waiting[later]]
        for row, turn, others in script.others:
            queued.append(others[script.matters(row, turn)])
        wide = [rows.widened(len(columns)) for rows in queued]
        parts = ([getattr(r, name) for r in wide] for name in ("first", "accept", "box", "weight"))
        waiting = Rows(*map(torch.cat, parts))
    value, weight, first = (torch.cat(part) for part in zip(*done, strict=True))
    return Enumerated(value, weight, first, rest + float(waiting.weight.sum()))
