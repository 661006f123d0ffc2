"""Uniforms that nobody knows yet: a function of uniforms is run once for every way they can fall.

A decoder compares uniforms with probabilities (`u < accept`) or looks them up in sums of them
(`decoders.noise.sample`). `Undecided` uniforms answer these two questions from a script. Where the
script ends, the probabilities of all answers are known: every row is split, and the function runs
again. So the decoder's own code is enumerated, in float64, whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from decoders.api import DecoderError

POSSIBLE = 1e-15  # answers of less probability are rounding
Result = TypeVar("Result")


class Split(Exception):
    """A question that the script does not answer: probabilities [R, ..., C] of its answers."""

    def __init__(self, probability: Tensor) -> None:
        super().__init__("a question without an answer")
        self.probability = probability


class Script:
    """Answers so far, each [R, ...] int64."""

    def __init__(self) -> None:
        self.answers: list[Tensor] = []
        self.asked = 0
        self.compared: list[tuple[Tensor, Tensor]] = []  # (threshold, answer)

    def answer(self, probability: Tensor) -> Tensor:
        """probability [R, ..., C] -> [R, ...] int64."""
        if self.asked == len(self.answers):
            raise Split(probability)
        self.asked += 1
        return self.answers[self.asked - 1].view(probability.shape[:-1])

    def below(self, scale: Tensor, threshold: Tensor) -> Tensor:
        """Whether u scale < threshold."""
        hit = torch.where(scale > 0, threshold / scale.clamp_min(1e-300), (threshold > 0).double())
        hit = hit.clamp(0, 1)
        answer = self.answer(torch.stack([1 - hit, hit], -1)).bool()
        self.compared.append((threshold, answer))
        return answer

    def not_below(self, threshold: Tensor) -> Tensor:
        """Whether u >= threshold, for uniforms that were compared with it already."""
        for known, answer in self.compared:
            if known.shape == threshold.shape and torch.equal(known, threshold):
                return ~answer
        raise DecoderError("a uniform is compared twice, with two thresholds: expected one")

    def code(self, sums: Tensor, scale: Tensor) -> Tensor:
        """The first code whose sum is above u times its scale; sums [R, ..., V], scale [R, ...,
        1] -> [R, ..., 1]."""
        mass = sums.diff(dim=-1, prepend=torch.zeros_like(sums[..., :1]))
        first = torch.where((sums > 0).any(-1), (sums > 0).int().argmax(-1), sums.shape[-1] - 1)
        certain = torch.zeros_like(sums).scatter(-1, first[..., None], 1.0)
        law = torch.where(scale > 0, mass / scale.clamp_min(1e-300), certain)
        return self.answer(law)[..., None]


class Undecided(Tensor):
    """u times the tensor's values. 0 stands for a u of 0, which decides nothing."""

    script: Script

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        plain = [a.as_subclass(Tensor) if isinstance(a, Undecided) else a for a in args]
        if name == "clamp_max":  # below one, as it is
            return args[0]
        if name == "searchsorted":
            return cls.script.code(*plain[:2])
        if name in ("lt", "__lt__", "less"):
            return cls.script.below(*plain)
        if name in ("gt", "__gt__", "greater"):
            return cls.script.below(*reversed(plain))
        if name in ("ge", "__ge__", "greater_equal"):
            return cls.script.not_below(plain[1])
        return super().__torch_function__(func, types, args, kwargs or {})


class Unknown:
    """Noise of undecided uniforms. Places from `length` on are past the image's end: nothing is
    split there."""

    def __init__(self, length: int) -> None:
        self.length, self.script = length, Script()
        self.kind = type("Undecided", (Undecided,), {"script": self.script})
        self.round = torch.zeros(1, dtype=torch.long)

    def at(self, position: Tensor, slot: int, count: int = 1, round: int | Tensor = 0) -> Tensor:
        """See `decoders.noise.Noise.at`."""
        del slot, round  # all are independent
        scale = (position < self.length).double()[..., None]
        return scale.repeat(*[1] * position.ndim, count).as_subclass(self.kind)  # type: ignore[arg-type]

    def gumbel(self, *asked: Any) -> Tensor:
        raise DecoderError("Gumbel numbers are not compared with a probability: not enumerable")


def branched(
    function: Callable[[Tensor, Unknown], Result], rows: Tensor, weight: Tensor, noise: Unknown
) -> tuple[Result, Tensor, Tensor]:
    """Runs function(rows, noise) for every way that uniforms can fall: its result on the split
    rows, which rows [R] int64 they are, and their weights [R]."""
    script = noise.script
    script.answers = []
    while True:
        script.asked, script.compared = 0, []
        try:
            return function(rows, noise), rows, weight
        except Split as split:
            index, share, answer = _every(split.probability)
            script.answers = [a[index] for a in script.answers] + [answer]
            rows, weight = rows[index], weight[index] * share


def _every(probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """probability [R, ..., C]: independent questions of R rows -> row, probability and answers
    [S, ...] of all that can be answered together."""
    size = probability.shape[:-1]
    flat = probability.reshape(size[0], -1, probability.shape[-1])  # [R, E, C]
    row = torch.arange(size[0])
    share, answers = torch.ones(size[0], dtype=torch.float64), row[:, None][:, :0]
    for each in range(flat.shape[1]):
        here = flat[row, each]  # [S, C]
        which, answer = (here > POSSIBLE).nonzero(as_tuple=True)
        share = share[which] * here[which, answer]
        answers = torch.cat([answers[which], answer[:, None]], 1)
        row = row[which]
    return row, share, answers.view(len(row), *size[1:])
