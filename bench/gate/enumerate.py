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
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, NODE_SLOT, OVERRUN, SLOTS, Noise

POSITIONS, MOST_SLOTS = 2**10, 2**20  # a key is (round * POSITIONS + position) * MOST_SLOTS + slot
RENEWED = 2**16  # added to the round of numbers that are new in every step
TINY = 1e-13  # a narrower cell is rounding
CHUNK = 4096  # rows that run at once
MOST_RUNS = 32  # of a program: one of few rows takes nearly as long as one of many
# Of the drafts before a block that are accepted. -n: n in every step; NONE is of this kind.
ALL, OFTEN, MOSTLY, NONE = 1.0, 0.75, 0.5, 0.0
OTHER_NUMBERS = 7919  # in the place of those of another block with the same positions
PRIME, LARGEST = 2**31 - 1, 1 - 2.0**-40  # of the numbers that are fixed
REJECTED = 2.0  # a test that even a certain draft fails
RESHAPING = frozenset(  # operations that move numbers and do not read them
    {
        *("__getitem__", "__get__", "__len__", "__repr__", "size", "dim", "numel", "detach", "to"),
        *("view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "expand", "expand_as", "broadcast_to", "repeat", "contiguous", "clone"),
        *("gather", "index_select", "select", "narrow", "unbind", "split", "chunk"),
        *("is_floating_point", "flip", "roll"),
    }
)
JOINING = "cat", "concat", "stack"
COMPLETE = 1e-10  # probability that may be left out of a law that is called complete
# (comparison, whether the number is its first side) -> whether it asks if the number is below.
COMPARISONS = {("lt", True): True, ("ge", True): False, ("gt", False): True, ("le", False): False}


class NotEnumerable(DecoderError):
    """The program uses a random number in a way that shows no thresholds."""


class Spans(NamedTuple):
    """Blocks of positions whose numbers are split: `size` positions from each of first [M] on. A
    block has a law of its own, in which all other numbers are fixed, at values as good as random.
    accept [M]: which of the drafts before it those that test accept. With ALL of them the block is
    met at any level. Else none is accepted at the position before, so that the block begins with a
    first level. -n: n in each step. Behind the block all are accepted. child: only numbers are
    split that draw this draft of a node, and those of plug-ins. ahead: of a verifier that looks
    ahead; the block's first code alone has a law, by the numbers of the step that decides it, where
    accept is NONE."""

    first: Tensor
    size: int = POSITIONS
    accept: Tensor = torch.full((1,), MOSTLY)
    child: int | None = None
    ahead: bool = False


EVERY = Spans(torch.zeros(1, dtype=torch.long))


def fixed(keys: Tensor, first: Tensor, accept: Tensor) -> Tensor:
    """Values [B, n] float64 of numbers that are not free, as good as random but for tests
    of drafts: keys [B, n], of rows whose blocks have these [B, 1]."""
    slot, at = keys % MOST_SLOTS, keys // MOST_SLOTS
    turn, position = at // POSITIONS, at % POSITIONS
    mixed = (keys + 1 + OTHER_NUMBERS * (accept == OFTEN)) % PRIME * 48271 % PRIME
    value = ((mixed ^ (mixed >> 13)) * 69621 % PRIME).double() / PRIME
    purpose = torch.where(slot < NODE_SLOT, slot, slot // NODE_SLOT - 1)  # also node by node
    tested = (purpose >= ACCEPT_SLOT) & (purpose < DRAFT_SLOT)
    every = (1 - accept.clamp_max(0.0)).long()  # at every so many positions none is accepted
    none = ((accept <= NONE) & ((first - 1 - position) % every == 0)) | (position == first - 1)
    earlier = (accept == NONE) & (turn >= RENEWED) & (turn < RENEWED + first - 1)  # steps
    tests = torch.where(none, LARGEST, torch.where(accept == OFTEN, 1.0, MOSTLY) * value)
    tests = torch.where((accept == ALL) | (position >= first), 0.0, tests)
    tests = torch.where((accept < NONE) & ~none, 0.0, tests)
    tests = torch.where(earlier, REJECTED, tests)
    return torch.where(tested, tests, value)


class Rows(NamedTuple):
    """Rows that are run together, or wait. first, accept [B]: of their block; box [B, C, 2]
    float64: the interval of each free number; weight [B] float64: the box's volume."""

    first: Tensor
    accept: Tensor
    box: Tensor
    weight: Tensor

    def at(self, index: Tensor) -> Rows:
        return Rows(*(part[index] for part in self))

    def widened(self, columns: int) -> Rows:
        """The rows with a whole interval for every number that appeared since."""
        new = columns - self.box.shape[1]
        whole = self.box.new_tensor([0.0, 1.0]).expand(len(self.box), new, 2)
        return self._replace(box=torch.cat([self.box, whole], 1)) if new else self


class Script:
    """Decides the numbers of B rows, and queues the cells that they do not follow."""

    def __init__(self, rows: Rows, free: Spans, length: int, columns: dict[int, int]) -> None:
        """length: positions of the image; columns: where the boxes have the interval of a key,
        counted from its block's first position on."""
        self.rows, self.free, self.length, self.columns = rows, free, length, columns
        self.weight = rows.weight.clone()  # of the cells that the rows follow
        self.steps = torch.full_like(rows.first, MOST_SLOTS)  # [B]: later rounds decide nothing
        # Of each split: n rows, the rounds of their numbers, the shares that the rows follow; cells
        # that wait, and of which of the n rows they are.
        self.splits: list[tuple[Tensor, Tensor, Tensor, Rows, Tensor]] = []

    def decide(self, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [B, ...], thresholds [B, ..., M] ascending -> how many the number reaches, [B, n]
        int64. Numbers past the image's end are fixed, unless a verifier looks ahead."""
        batch, first = len(self.weight), self.rows.first[:, None]
        keys = keys.expand(thresholds.shape[:-1]).reshape(batch, -1).long()
        thresholds = thresholds.double().nan_to_num(0.0).reshape(batch, -1, thresholds.shape[-1])
        values = fixed(keys, first, self.rows.accept[:, None])  # [B, n]
        cells = (thresholds <= values[..., None]).sum(-1)  # [B, n]
        at = keys // MOST_SLOTS
        turn, position = at // POSITIONS, at % POSITIONS
        free = (first <= position) & (position < first + self.free.size)
        free &= (position < self.length) | (turn >= RENEWED)
        if self.free.child is not None:
            slot = keys % MOST_SLOTS
            free &= (slot == DRAFT_SLOT + self.free.child) | (slot >= SLOTS)
        if self.free.ahead:
            free &= (turn < RENEWED) | (turn == RENEWED + first - 1)
        for number in free.any(0).nonzero().flatten().tolist():
            rows = free[:, number].nonzero().flatten()
            cells[rows, number] = self._cell(rows, keys[rows, number], thresholds[rows, number])
        return cells

    def _cell(self, rows: Tensor, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [n] of n of the rows, thresholds [n, M] -> the cell that each follows, [n]."""
        distinct, index = (keys - self.rows.first[rows] * MOST_SLOTS).unique(return_inverse=True)
        known = [self.columns.setdefault(key, len(self.columns)) for key in distinct.tolist()]
        self.rows, column = self.rows.widened(len(self.columns)), torch.tensor(known)[index]
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
            others, follows = self.rows.at(rows[which]), share[every, chosen]
            others = others._replace(weight=self.weight[rows[which]] * share[which, cell])
            others.box[torch.arange(len(which)), column[which]] = cells[which, cell]
            turn = keys // MOST_SLOTS // POSITIONS
            self.splits.append((rows, turn, follows, others, which))
            self.weight[rows] *= follows
            box[rows, column] = cells[every, chosen]
        return chosen


class Uniform(Tensor):
    """Numbers of a `Script`, times a factor where there is one; the tensor holds their keys,
    float64."""

    script: Script
    factor: Tensor | None = None  # of numbers that are looked up in sums

    @staticmethod
    def of(keys: Tensor, script: Script, factor: Tensor | None = None) -> Uniform:
        numbers = keys.double().as_subclass(Uniform)
        numbers.script, numbers.factor = script, factor
        return numbers

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = func.__name__, isinstance(args[0], Uniform)
        if name in JOINING and all(isinstance(n, Uniform) and n.factor is None for n in args[0]):
            keys = func([n.as_subclass(Tensor) for n in args[0]], *args[1:], **(kwargs or {}))
            return Uniform.of(keys, args[0][0].script)
        number, other = (args[0], args[1:]) if first else (args[-1], args[:-1])
        factor = getattr(number, "factor", None)
        if first and factor is None and name in RESHAPING:
            result = super().__torch_function__(func, types, args, kwargs or {})
            for part in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(part, Uniform):
                    part.script = number.script
            return result
        if first and factor is None and name in ("clamp_max", "clamp_max_"):
            return number  # it is below one already
        if isinstance(number, Uniform) and len(other) == 1 and not isinstance(other[0], Uniform):
            value, keys = torch.as_tensor(other[0]), number.as_subclass(Tensor)
            below = COMPARISONS.get((name.strip("_"), first))
            if factor is None and name in ("mul", "__mul__", "__rmul__", "multiply"):
                return Uniform.of(keys, number.script, value)
            if factor is None and below is not None:
                keys, value = torch.broadcast_tensors(keys, value)
                cell = number.script.decide(keys, value[..., None])
                return (cell.view(keys.shape) == 0) == below
            if factor is not None and name == "searchsorted" and (kwargs or {}).get("right"):
                cell = number.script.decide(keys.squeeze(-1), value[..., :-1] / factor)
                return cell.view(*value.shape[:-1], 1)
        raise NotEnumerable(
            f"a random number goes through {name}(), which shows no threshold: compare it, or give "
            "it to decoders.noise.sample"
        )


@dataclass(frozen=True)
class Scripted(Noise):
    """`Noise` whose numbers come from a script when they are read; nothing is ever written."""

    script: Any = None

    @staticmethod
    def of(script: Script) -> Scripted:
        position = torch.arange(min(POSITIONS, script.length + OVERRUN))
        keys = (position[:, None] * MOST_SLOTS + torch.arange(SLOTS)).double()  # [L', SLOTS]
        table = Uniform.of(keys.expand(len(script.weight), -1, -1), script)
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
        return Uniform.of(keys[..., None] + torch.arange(count), self.script)

    def gumbel(self, *_: Any, **__: Any) -> Tensor:
        raise NotEnumerable("Gumbel rows show no thresholds")


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
    first, about `most` rows and MOST_RUNS runs at most. What is less likely than COMPLETE is not
    followed.

    Raises NotEnumerable."""
    columns, done, rest = dict[int, int](), list[tuple[Tensor, Tensor, Tensor]](), 0.0
    same = (free.first[:, None] == free.first).sum(-1)
    weight = 1.0 / same.double()  # blocks of the same positions make one law
    waiting = Rows(free.first, free.accept, weight.new_zeros(len(weight), 0, 2), weight)
    while float(waiting.weight.sum()) > COMPLETE and len(done) < MOST_RUNS:
        if sum(len(part) for part, _, _ in done) >= most:
            break
        order = waiting.weight.argsort(descending=True)
        now, later, never = order.tensor_split([CHUNK, CHUNK + most])
        rest += float(waiting.weight[never].sum())
        script = Script(waiting.at(now), free, length, columns)
        value, volume = run(Scripted.of(script)), script.rows.weight.clone()
        queued = [waiting.at(later)]
        for rows, turn, follows, others, which in script.splits:
            matters = turn < script.steps[rows] + RENEWED  # read before the row's image was done
            volume[rows] *= torch.where(matters, follows, 1.0)
            queued.append(others.at(matters[which]))
        done.append((value, volume, script.rows.first))
        wide = [rows.widened(len(columns)) for rows in queued]
        waiting = Rows(*map(torch.cat, zip(*wide, strict=True)))
    value, weight, first = (torch.cat(part) for part in zip(*done, strict=True))
    return Enumerated(value, weight, first, rest + float(waiting.weight.sum()))
