"""Verifiers as authors' code has them, where it departs from the papers. All are biased
(decoders.md).

* `BatchLeast`, SJD (a): all rows of a batch commit as many codes as the slowest one. What a faster
  row has accepted beyond that stays in the window; see `decoders.propose.jacobi`, `released`.
* `ReusedRow`, SCD with Gumbel noise (c): the first and the last codes of an image are drawn one by
  one with one row of numbers each, so they are correlated.
* `LongestPath`, SJD-PAC (d): of all paths that are accepted whole the longest is taken. The choice
  looks at the outcome of later tests.
* `Medusa`, typical acceptance (g) as `medusa_generate` calls it: no correction, the longest path,
  and behind it the target's likeliest code (`fast`). Of equally long paths the first is taken.
* `Filled`, SCD on Cosmos (c): a little mass on every code of the residual, so codes with p(x) = 0
  may come out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from decoders.api import AcceptRule, Draft, Law, Settled, Start, Test
from decoders.kinds import Amount, Positive, Share, Within
from decoders.noise import ACCEPT_SLOT, NODE_SLOT
from decoders.verify.by_node import ByNode
from decoders.verify.children import Path, Verdicts
from decoders.verify.entropy import Typical
from decoders.verify.exact import Exact, residual
from decoders.verify.gumbel import drawn

FILL = 1e-10  # what Cosmos' sampler adds to every code of the residual


class BatchLeast(ByNode):
    """The exact tests of every row, and the batch's least count. `Settled.nodes` are each row's
    whole path, so that a proposer sees what was accepted."""

    looks_ahead = True  # a draft that stays is tested again, with a new number

    def __init__(self, model: Any = None) -> None:
        super().__init__(Exact(model))

    def __str__(self) -> str:
        return "exact, least of the batch"

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`."""
        made = super().decide(law, draft, noise, place, state)
        least = self.least(made.count)  # [B]
        more = made.count > least
        after = (least + 1).clamp_max(made.nodes.shape[1] - 1)
        node = made.nodes.gather(1, after[:, None])  # [B, 1], the first draft that waits
        last = torch.where(more, draft.codes.gather(1, node)[:, 0], made.last_code)
        return replace(made, count=least, last_code=last, bonus=made.bonus & ~more)

    def least(self, count: Tensor) -> Tensor:
        """How many drafts every row commits, [B], of those that it accepted [B]."""
        return count.amin().expand_as(count)


class ReusedRow(ByNode):
    """first, last: how many codes at an image's begin and end are drawn one by one. Drafts there
    are thrown away; all other places have the exact tests. The rows are those of the first place
    that has drafts, and of the first one behind all drafts."""

    def __init__(
        self,
        model: Any = None,
        first: Annotated[int, Within(0, 10**6)] = 3,
        last: Amount = 10,
    ) -> None:
        super().__init__(Exact(model))
        self.first, self.last = first, last

    def __str__(self) -> str:
        return f"exact, one row each for the first {self.first} and the last {self.last}"

    def begin(self, start: Start) -> Tensor:
        """The state: where the last codes begin, []."""
        end = max(start.model.target.length - self.last, 0)
        return torch.full((), end, device=start.first.device)

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """See `decoders.api.Verifier`."""
        made = super().decide(law, draft, noise, place, state)
        early = place < self.first  # [B]
        alone = early | (place >= state)
        if law.greedy:
            code = law.logits[:, 0].argmax(-1)
        else:
            row = torch.where(early, self.first, state)
            code = drawn(law.p[:, 0], noise.gumbel(row, law.p.shape[-1]))
        return replace(
            made,
            nodes=torch.where(alone[:, None], 0, made.nodes),
            count=torch.where(alone, 0, made.count),
            last_code=torch.where(alone, code, made.last_code),
            bonus=made.bonus | alone,
        )


class LongestPath(ByNode):
    """The exact tests, or another rule's."""

    def __init__(self, model: Any = None, rule: AcceptRule | None = None) -> None:
        super().__init__(Exact(model) if rule is None else rule)

    def __str__(self) -> str:
        return f"{self.rule}, longest path"

    def tests(self, noise: Any, places: Tensor, count: int) -> Tensor:
        """Every node's children have numbers of their own, as several paths count."""
        nodes, slot = places.shape[1], NODE_SLOT * (1 + ACCEPT_SLOT)
        return noise.at(places[:, 0], slot, nodes * count).unflatten(-1, (nodes, count))

    def path(self, law: Law, draft: Draft, accepted: Tensor) -> Path:
        return super().path(replace(law, greedy=True), draft, accepted)


class Medusa(LongestPath):
    """eps, alpha: `posterior_threshold` and `posterior_alpha`, see `Typical`."""

    def __init__(self, model: Any = None, eps: Share = 0.09, alpha: Positive = 0.3) -> None:
        super().__init__(model, Typical(model, eps, alpha, "paper"))

    def last_code(
        self, law: Law, verdicts: Verdicts, path: Path, noise: Any, place: Tensor
    ) -> Tensor:
        return super().last_code(replace(law, greedy=True), verdicts, path, noise, place)


class Filled(Exact):
    """at_miss: what a rejected place is drawn from: `filled`, as SCD does; or `target`, p itself,
    as the same program's SJD does."""

    beyond_support = True

    def __init__(self, model: Any = None, at_miss: Literal["filled", "target"] = "filled") -> None:
        super().__init__(model)
        self.at_miss = at_miss

    def __str__(self) -> str:
        return f"exact, {self.at_miss} at a miss"

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Test:
        left = p if self.at_miss == "target" else residual(p, q, x, FILL)
        return replace(super().test(p, q, x), residual=left)
