"""The law of a random program, exactly: every uniform number that it reads is split at the
thresholds that it is compared with, and every combination is run.

A program is anything that reads `Noise` (a decoder's `generate`) on B rows at once. Its numbers are
`Uniform` tensors, which may be indexed and reshaped, and used in two ways: compared with a
probability, or given to `decoders.noise.sample`. Such a use cuts the interval in which the number
lies into cells. The row follows one cell, and another row is run for each of the others, later. A
number that is read twice keeps the interval that its first use left, so that a number used again
where a new one is needed shows in the law. The rows' boxes share the unit cube out among them: what
a row returns has the probability of its box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, SLOTS, Noise

PLACES, MOST_SLOTS = 2**10, 2**20  # of the numbers' keys
TINY = 1e-13  # a cell narrower than this is rounding
POINT = TINY / 10  # width of a number that is held
CHUNK = 4096  # rows that are run at once
SHAPING = frozenset(  # what moves numbers and does not look at them
    {
        *("__getitem__", "__get__", "__len__", "__repr__", "size", "dim", "numel", "detach", "to"),
        *("view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "expand", "expand_as", "broadcast_to", "repeat", "contiguous", "clone"),
        *("gather", "index_select", "select", "narrow", "unbind", "split", "chunk"),
        "is_floating_point",
    }
)
# Comparisons, where the number is the first side or not, and whether each asks if it is below.
COMPARED = {("lt", True): True, ("ge", True): False, ("gt", False): True, ("le", False): False}


class NotEnumerable(DecoderError):
    """The program uses a random number in a way that has no thresholds to be seen."""


@dataclass(frozen=True)
class Held:
    """Numbers that are no random ones: those of the first `places`. Tests of drafts read `tested`,
    0 where what can be accepted is to be; all others read `value`. steps: of a verifier that looks
    ahead, whose numbers are new in every step, the first ones in the place of places; last codes
    are drawn with numbers of their places all the same."""

    places: int = 0
    value: float = 0.5
    tested: float = 0.0
    steps: int = 0

    def start(self, key: int) -> float | None:
        """What the number of a key is; None: it is free."""
        where, slot = divmod(key, MOST_SLOTS)
        turn, place = divmod(where, PLACES)
        if (turn >= self.steps) if self.steps and slot else (place >= self.places):
            return None
        return self.tested if ACCEPT_SLOT <= slot < DRAFT_SLOT else self.value


FREE = Held()


@dataclass
class Columns:
    """Where a number stands in a row's box, by its key, and where it may lie at first."""

    held: Held
    places: dict[int, int] = field(default_factory=dict)
    ends: list[tuple[float, float]] = field(default_factory=list)

    def of(self, key: int) -> int:
        if key not in self.places:
            self.places[key] = len(self.places)
            start = self.held.start(key)
            self.ends.append((0.0, 1.0) if start is None else (start, start + POINT))
        return self.places[key]

    def widened(self, boxes: Tensor) -> Tensor:
        """Boxes [B, C, 2] of C numbers, with those that were met since, [B, len(ends), 2]."""
        new = torch.tensor(self.ends[boxes.shape[1] :], dtype=torch.float64).view(-1, 2)
        return torch.cat([boxes, new.expand(len(boxes), -1, -1)], 1) if len(new) else boxes


@dataclass
class Script:
    """What is fixed of the numbers of B rows, and what else they might have been. `now`: the
    moment, as the program counts them."""

    box: Tensor  # [B, C, 2] float64, between which ends the numbers lie
    weight: Tensor  # [B] float64, volume of the box
    columns: Columns
    length: int  # places of the image
    now: Callable[[], int]
    used: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)  # moment, beyond, share
    others: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def decide(self, keys: Tensor, thresholds: Tensor) -> Tensor:
        """keys [B, ...], thresholds [B, ..., M] ascending -> how many of them the number is not
        below, [B, ...] int64."""
        batch, cuts = len(self.box), thresholds.shape[-1]
        keys = keys.as_subclass(Tensor).expand(thresholds.shape[:-1]).reshape(batch, -1).long()
        thresholds = thresholds.double().nan_to_num(0.0).reshape(batch, -1, cuts)
        beyond = (keys // MOST_SLOTS % PLACES >= self.length).all(1)  # [B]
        cells = [
            self._one(self._column(keys[:, i]), thresholds[:, i], beyond)
            for i in range(keys.shape[1])
        ]
        return torch.stack(cells, 1)

    def _column(self, keys: Tensor) -> Tensor:
        """[B] -> where these numbers stand, made on their first use."""
        found, inverse = keys.unique(return_inverse=True)
        places = [self.columns.of(key) for key in found.tolist()]
        self.box = self.columns.widened(self.box)
        return torch.tensor(places)[inverse]

    def _one(self, column: Tensor, thresholds: Tensor, beyond: Tensor) -> Tensor:
        """column [B], thresholds [B, M] -> the cell that is followed, [B]."""
        rows = torch.arange(len(column))
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
            boxes = self.box[row]
            boxes[torch.arange(len(row)), column[row]] = cells[row, cell]
            weight = self.weight[row] * share[row, cell]
            self.others.append((self.now(), beyond[row], row, boxes, weight))
            followed = share[rows, chosen]
            self.used.append((self.now(), beyond, followed))
            self.weight = self.weight * followed
            self.box[rows, column] = cells[rows, chosen]
        return chosen


class Uniform(Tensor):
    """Numbers of a `Script`; what it holds are their keys, float64."""

    script: Script

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if name in SHAPING:
            found = super().__torch_function__(func, types, args, kwargs or {})
            for part in found if isinstance(found, (tuple, list)) else [found]:
                if isinstance(part, Uniform):
                    part.script = args[0].script
            return found
        if name in ("clamp_max", "clamp_max_") and isinstance(args[0], Uniform):
            return args[0]  # below one: it is
        if name in ("mul", "__mul__", "__rmul__", "multiply"):
            mine, factor = args if isinstance(args[0], Uniform) else args[::-1]
            if not isinstance(factor, Uniform):
                return Scaled(mine, torch.as_tensor(factor))
        first = isinstance(args[0], Uniform)
        below = COMPARED.get((name.strip("_"), first))
        if below is not None and not (first and isinstance(args[1], Uniform)):
            mine, other = args if first else args[::-1]
            return _below(mine, torch.as_tensor(other)) == below
        raise NotEnumerable(
            f"a random number goes through {name}(), which has no threshold to be seen: compare "
            "it, or give it to decoders.noise.sample"
        )


@dataclass(frozen=True)
class Scaled:
    """A number times a factor, to be compared or to be looked up in sums."""

    number: Uniform
    factor: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ != "searchsorted" or not (kwargs or {}).get("right"):
            raise NotEnumerable(f"a scaled random number goes through {func.__name__}()")
        sums, mine = args
        number = mine.number.squeeze(-1)
        cell = number.script.decide(number, sums[..., :-1] / mine.factor)
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
    """`Noise` whose numbers are a script's."""

    script: Any = None

    @staticmethod
    def of(script: Script) -> Scripted:
        place = torch.arange(min(PLACES, script.length + 64))
        keys = place[:, None] * MOST_SLOTS + torch.arange(SLOTS)  # [places, SLOTS]
        table = _numbers(keys.expand(len(script.box), -1, -1), script)
        return Scripted(table, None, script=script)

    def to(self, device: torch.device) -> Scripted:
        return self

    def rows(self, images: Sequence[int] | slice) -> Scripted:
        """All of them: the script decides for every image of a batch at once."""
        return self

    def stepping(self, steps: Tensor, renewed: bool) -> Scripted:
        """The table is never written: numbers are made when asked for."""
        return replace(self, round=steps.expand(len(self.uniform)), renewed=renewed)

    def renew(self, position: Tensor) -> None:
        """Numbers of a round are made when asked for."""

    def at(self, position: Tensor, slot: int, count: int = 1, round: int | Tensor = 0) -> Uniform:
        turn: Any = round
        if self.renewed and slot >= ACCEPT_SLOT and isinstance(round, int):
            turn = self.round.view(-1, *[1] * (position.ndim - 1))  # type: ignore[union-attr]
        keys = (turn * PLACES + position.clamp_max(PLACES - 1)) * MOST_SLOTS + slot
        return _numbers(keys[..., None] + torch.arange(count), self.script)

    def gumbel(self, *_: Any, **__: Any) -> Tensor:
        raise NotEnumerable("Gumbel rows have no thresholds to be seen")


def _numbers(keys: Tensor, script: Script) -> Uniform:
    made = keys.double().as_subclass(Uniform)
    made.script = script
    return made


@dataclass(frozen=True)
class Outcome:
    """What a program made of B rows. value [B, k]; done [B]: the moment after which nothing of a
    row matters, nor at this moment what is read for places past the image's end alone."""

    value: Tensor
    done: Tensor


@dataclass(frozen=True)
class Explored:
    """value [M, k] and weight [M] of all rows that were run; rest: the weight of those that were
    not."""

    value: Tensor
    weight: Tensor
    rest: float


def explore(
    run: Callable[[Scripted], Outcome],
    length: int,
    most: int,
    now: Callable[[], int] = lambda: 0,
    held: Held = FREE,
) -> Explored:
    """Runs a program on every combination of cells, the likeliest first, `most` rows or a few more.
    held: numbers that stay as they are, so that the law is that of the others, given these.

    Raises NotEnumerable."""
    columns = Columns(held)
    box, weight = torch.zeros(1, 0, 2).double(), torch.ones(1).double()
    values, weights, ran, rest = [], [], 0, 0.0
    while len(weight) and ran < most:
        order = weight.argsort(descending=True)
        now_run, later, never = order.split_with_sizes(_sizes(len(order), most - ran))
        rest += float(weight[never].sum())
        script = Script(box[now_run], weight[now_run], columns, length, now)
        before = script.weight
        made = run(Scripted.of(script))
        for moment, beyond, share in script.used:
            before = torch.where(_matters(moment, beyond, made.done), before * share, before)
        values.append(made.value)
        weights.append(before)
        ran += len(before)
        left = [(box[later], weight[later])]
        for moment, beyond, row, boxes, share in script.others:
            keep = _matters(moment, beyond, made.done[row])
            left.append((boxes[keep], share[keep]))
        box = torch.cat([columns.widened(boxes) for boxes, _ in left])
        weight = torch.cat([share for _, share in left])
    return Explored(torch.cat(values), torch.cat(weights), rest + float(weight.sum()))


def _sizes(rows: int, left: int) -> list[int]:
    """How many of the likeliest rows are run now, and later; the others never are, as `left` more
    will come before them."""
    now = min(rows, CHUNK)
    later = min(rows - now, max(0, left - CHUNK) + CHUNK)
    return [now, later, rows - now - later]


def _matters(moment: int, beyond: Tensor, done: Tensor) -> Tensor:
    return (moment < done) | ((moment == done) & ~beyond)
