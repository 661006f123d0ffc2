"""Checks a target model's batch rows, mask, positions and KV cache before anything is timed: all
decoders rely on them, and an error shows in no image of AR.

Why: a target whose forward of several codes stands one position off has right AR images and wrong
ones with all decoders that verify drafts. So its probabilities are compared with those of AR steps:
*rows* (each row of a batch is as it is alone), *mask* (no query sees what its mask closes),
*positions* (several codes per forward, a chain and a tree, are as one by one), *cache* (after a
commit it is as freshly made), *mass* (a barred code has none). Two prompts, a few codes: seconds.

How far two float computations of the same law may lie apart is measured: the same step in a batch
of another size. The project's own targets are not examined, since its tests do that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import BenchError, Failure, attempt
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.cache import additive_mask, round_up
from decoders.distribution import code_logits

CODES, COPIES = 6, 3  # codes of a path, at least; images of the batch that rounding is measured in
ROUNDING_FACTOR = 4  # so many measured differences, or units of the dtype, are rounding
LEAST_TV, MOST_TV, MOST_UNITS = 1e-5, 1e-3, 32  # that rounding may explain; units of the dtype
# Nodes of a tree that each node sees: siblings, cousins, and two paths of three codes at the end.
TREE = [0], [0, 1], [0, 2], [0, 3], [0, 1, 4], [0, 1, 5], [0, 2, 6], [0, 1, 7], [0, 2, 8]
LOOK = {
    "rows": "`Target.prefill` and `forward_codes`: each row has its own codes, `positions`, "
    "`slots` and mask, and sees no other row",
    "mask": "`Target.forward_codes`: a query sees the cache slots that its row of `mask` opens, "
    "and no others (both kinds of decoders.cache)",
    "positions": "`Target.forward_codes`: a code stands at its own `positions` and is written to "
    "its own slot, whatever else is in the forward",
    "cache": "`Target.new_cache` and `forward_codes`: all that is kept of a code lies in its slot "
    "of the cache, which `commit` moves",
    "mass": "`Target.barred` and `logits`: a code that is barred at a position has no probability "
    "there, and others have some",
}


class TargetError(BenchError):
    """A target that breaks the contract of `decoders.api.Target`."""


class DecodedPath(NamedTuple):
    """Codes decoded one per forward. laws: of the next code, by row."""

    codes: Tensor  # [B, T]
    laws: Tensor  # [R, T, V]
    cache: Any


@torch.inference_mode()
def examine(
    model: ImageModel, prompts: Callable[[], Sequence[str]], cfg: float, width: int = 0
) -> None:
    """Raises TargetError where the model's target is not as its contract says. prompts: some that
    the model reads; cfg: guidance; width: codes of the widest forward of the study's decoders."""
    kind = type(model.target)
    if kind.__module__.startswith("decoders."):  # this project's, which its tests examine
        return
    result = attempt(lambda: Exam(model, prompts()[:2], cfg, width).run(), (TargetError,))
    if isinstance(result, Failure):
        raise TargetError(
            f"the target {kind.__name__} could not be examined, which decodes a few codes of two "
            f"images as decoders do: {result.error}. Look at its methods in decoders.api.Target"
        )


def rounding(dtype: torch.dtype, measured: float) -> float:
    """The TV that rounding explains, where two runs of the same step lie `measured` apart."""
    unit = torch.finfo(dtype).eps
    explained = max(LEAST_TV, ROUNDING_FACTOR * unit, ROUNDING_FACTOR * measured)
    return min(explained, max(MOST_TV, MOST_UNITS * unit))


def distance(one: Tensor, other: Tensor) -> float:
    """The largest TV of laws [..., V]; infinity where one is not finite."""
    largest = 0.5 * float((one - other).abs().sum(-1).max())
    return largest if largest == largest else float("inf")


class Exam:
    """The checks of one target. allowed: the TV that rounding explains."""

    def __init__(self, model: ImageModel, prompts: Sequence[str], cfg: float, width: int) -> None:
        self.target, self.device, self.cfg = model.target, model.device, cfg
        self.copies, self.dtype = Sampling(cfg=cfg).guidance_rows, model.dtype
        self.text = model.text.encode([*prompts, *prompts][:2])
        row = self.target.grid()[1] + 1  # a row, its end, and the first code of the next
        self.size = min(max(CODES, row), self.target.length)  # T
        # Siblings more under the root, as many as make the forward as wide as a decoder's.
        self.tree = [*TREE, *([0, node] for node in range(len(TREE), width))]
        self.capacity = round_up(self.target.prefix + max(self.size, len(self.tree)))
        self.generator, self.allowed = torch.Generator().manual_seed(0), LEAST_TV

    def run(self) -> None:
        """Raises TargetError."""
        path = self.one_by_one(self.text)
        alone = [self.one_by_one(self.text.rows([b]), path.codes[b : b + 1]).laws for b in range(2)]
        copies = self.one_by_one(self.text.rows([0] * COPIES), path.codes[:1].expand(COPIES, -1))
        same = copies.laws[::COPIES]  # [G, T, V]
        self.allowed = rounding(self.dtype, distance(same, alone[0]))
        self.require("rows", same, alone[0], "an image alone and in a batch of its copies")
        each = torch.stack(alone, 1).flatten(0, 1)  # [R, T, V], as in a batch
        self.require("rows", path.laws, each, "an image alone and in a batch")
        last = self.size - 1
        positions = torch.tensor([[last], [last - 1]], device=self.device)  # [B, 1]
        codes = path.codes.gather(1, positions)
        _, after = self.forward(self.text, path.cache, codes, positions)
        expected = each_image(path.laws[:, last], path.laws[:, last - 1])
        self.require("rows", after[:, 0], expected, "images at different positions")
        chain = [[*range(n + 1)] for n in range(self.size)]
        self.at_once(chain, chain[-1:], [path], (self.size // 2, last))
        if self.size <= len(TREE[-1]):
            return
        # Two paths in one forward, and the cache with another of them committed in each row.
        other = (path.codes[:, 1] + 1) % self.target.vocab_size
        branch = self.one_by_one(self.text, torch.stack([path.codes[:, 0], other], 1))
        changed = {*range(1, len(TREE)), len(self.tree) - 1}
        cache = self.at_once(self.tree, TREE[-2:], (path, branch), sorted(changed))
        count, prefix = len(TREE[-1]), self.target.prefix
        taken = torch.tensor([TREE[-1], TREE[-2]] * self.copies, device=self.device)  # [R, n]
        slots = torch.arange(count, device=self.device).expand_as(taken)
        cache.commit(taken + prefix, slots + prefix)
        codes = torch.stack([branch.codes[:1, count], path.codes[1:, count]])  # [B, 1]
        _, after = self.forward(self.text, cache, codes, torch.full_like(codes, count))
        expected = each_image(branch.laws[:, count], path.laws[:, count])
        self.require("cache", after[:, 0], expected, "a code after a committed path and one by one")

    def at_once(
        self,
        tree: Sequence[list[int]],
        ends: Sequence[list[int]],
        paths: Sequence[DecodedPath],
        changed: Sequence[int],
    ) -> Any:
        """Several codes per forward. The paths along `ends` of a tree are as one by one; and a
        code that is changed (`changed`), in one image, changes the laws of no node that does not
        see it. tree: of each node those that it sees. -> the cache.

        The forwards have one shape, so that rounding explains no more than another run of the same
        one shows."""
        device = self.device
        sees = torch.zeros(len(tree), len(tree), dtype=torch.bool, device=device)
        codes = torch.zeros(2, len(tree), dtype=torch.long, device=device)
        for node, seen in enumerate(tree):
            sees[node, seen] = True
        for end, path in zip(ends, paths, strict=True):
            codes[:, end] = path.codes[:, : len(end)]
        depth = (sees.sum(-1) - 1).expand_as(codes)

        def laws(codes: Tensor) -> tuple[Tensor, Any]:
            """[R, n, V], after a prefill, and the cache."""
            cache = self.target.new_cache(len(codes) * self.copies, self.capacity)
            self.target.prefill(self.text, self.copies, cache)
            return self.forward(self.text, cache, codes, depth, sees)[1], cache

        (before, _), (again, cache) = laws(codes), laws(codes)
        allowed = max(LEAST_TV, ROUNDING_FACTOR * distance(before, again))
        for node in changed:
            other = codes.clone()
            other[0, node] = (other[0, node] + 1) % self.target.vocab_size
            after, blind = laws(other)[0], ~sees[:, node]
            words = "codes that do not see one, before and after it is changed,"
            self.require("mask", after[:, blind], before[:, blind], words, allowed)
            words = "an image, before and after another one is changed,"
            self.require("rows", after[1::2], before[1::2], words, allowed)
        for end, path in zip(ends, paths, strict=True):
            words = f"a path of {len(end)} codes, in a forward of {len(tree)} and one by one,"
            self.require("positions", again[:, end], path.laws[:, : len(end)], words)
        return cache

    def one_by_one(self, text: TextFeatures, codes: Tensor | None = None) -> DecodedPath:
        """Decodes `size` codes with a forward each: first `codes` [B, n], then drawn ones. Raises
        TargetError where the law that decoders see has mass on a code that is barred."""
        target, chosen, laws = self.target, list[Tensor](), list[Tensor]()
        cache, barred = target.new_cache(text.batch * self.copies, self.capacity), target.barred
        hidden = target.prefill(text, self.copies, cache)[:, -1:]
        for t in range(self.size):
            position = torch.full((text.batch, 1), t, device=self.device)
            law = code_logits(target, hidden, self.cfg, position).softmax(-1)[:, 0]  # [B, V]
            if not bool(torch.isfinite(law).all()):
                raise self.error("mass", f"the logits at position {t} are not finite")
            if barred is not None and (mass := float(law[:, barred[t % len(barred)]].sum())) > 0:
                raise self.error("mass", f"codes barred at position {t} have mass {mass:.2g}")
            drawn = torch.multinomial(law.cpu(), 1, generator=self.generator).to(self.device)
            chosen.append(drawn if codes is None or t >= codes.shape[1] else codes[:, t : t + 1])
            hidden, after = self.forward(text, cache, chosen[-1], position)
            laws.append(after)
        return DecodedPath(torch.cat(chosen, 1), torch.cat(laws, 1), cache)

    def forward(
        self,
        text: TextFeatures,
        cache: Any,
        codes: Tensor,
        positions: Tensor,
        sees: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [R, n, D] and laws [R, n, V] float32 of codes and positions [B, n]. sees
        [n, n] bool: which of them each sees; None: one code, in its position's slot, which sees all
        before it. The mask is of bools for one code and of floats for several, as loops have
        both."""
        if sees is None:
            span = torch.arange(self.size, device=self.device)
            slots, sees = positions, span <= positions[..., None]  # [B, 1, T]
        else:
            slots = torch.arange(codes.shape[1], device=self.device).expand_as(codes)
        slots = slots + self.target.prefix
        ids, grid, written = (part.repeat(self.copies, 1) for part in (codes, positions, slots))
        prefix = text.row_mask(self.copies)[:, None].expand(-1, codes.shape[1], -1)  # [R, n, P]
        image = sees.expand(len(codes), -1, -1).repeat(self.copies, 1, 1)  # [R, n, m]
        mask = torch.cat([prefix, image], -1)
        mask = F.pad(mask, (0, self.capacity - mask.shape[-1]))  # [R, n, S]
        mask = mask if codes.shape[1] == 1 else additive_mask(mask)
        hidden = self.target.forward_codes(ids, grid, written, mask, cache)
        return hidden, self.target.logits(hidden).float().softmax(-1)

    def require(
        self, check: str, one: Tensor, other: Tensor, what: str, allowed: float | None = None
    ) -> None:
        """Raises TargetError unless two laws are the same but for rounding."""
        tv, allowed = distance(one, other), self.allowed if allowed is None else allowed
        if not tv <= allowed:
            text = f"{what} have laws of the next code that differ by TV {tv:.2g}"
            raise self.error(check, f"{text}, of which rounding explains {allowed:.1g}")

    def error(self, check: str, text: str) -> TargetError:
        return TargetError(
            f"the target {type(self.target).__name__} fails a check of this run's own model, "
            f"{check}: {text}. Look at {LOOK[check]}. Nothing was decoded: the images of most "
            "decoders would be wrong"
        )


def each_image(first: Tensor, second: Tensor) -> Tensor:
    """Rows of the first image out of `first`, of the second out of `second`, [R, V] each."""
    return torch.stack([first[::2], second[1::2]], 1).flatten(0, 1)
