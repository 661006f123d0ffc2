"""The verifier of every acceptance rule: the rule judges the children of every node, uniforms
decide which are accepted, and the path follows accepted children from the root.

The distribution by which a child is judged depends on its earlier siblings having been rejected,
never on the uniforms. So every acceptance probability of the tree is computed in K vector steps,
all nodes at once, and the walk only compares uniforms. The exactness gate enumerates the very same
function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import Acceptance, AcceptRule, Draft, TargetProbs, Verified, Verifier, completed
from decoders.cache import ancestry_of
from decoders.checks import AnswerError, class_path, describe, require_floats
from decoders.distribution import drop_sibling
from decoders.noise import ACCEPT_SLOT, TARGET_SLOT, sample
from decoders.repeated import compiled_once


class TokenVerifier(Verifier):
    """rule: judges one draft given p and q, see `decoders.api.AcceptRule`."""

    def __init__(self, rule: AcceptRule) -> None:
        self.rule: AcceptRule = completed(rule, AcceptRule)

    def __str__(self) -> str:
        return str(self.rule)

    def verify(
        self, probs: TargetProbs, draft: Draft, noise: Any, position: Tensor, state: Any
    ) -> Verified:
        codes, valid = children_of(draft)  # [B, N + 1, K]
        verdicts = self.verdicts(probs, draft, codes, valid, position)
        if probs.greedy:
            u = torch.full_like(verdicts.accept, 0.5)
        else:
            u = self.tests(noise, position[:, None] + draft.depth, codes.shape[-1])
        path = self.path(probs, draft, (u < verdicts.accept) & valid)
        tv_shift, bound, relaxed = along_path(path, verdicts, u)
        bonus = ~at_node(valid, path.last).any(-1)  # [B]
        last = self.last_code(probs, verdicts, path, noise, position)
        return Verified(path.nodes, path.count, last, bonus, tv_shift, bound, relaxed)

    def verdicts(
        self, probs: TargetProbs, draft: Draft, codes: Tensor, valid: Tensor, position: Tensor
    ) -> Acceptance:
        """Judges every child of every node, see `Judge`; codes, valid [B, N + 1, K]."""
        rule = self.rule if self.rule.at is None else self.rule.at(draft, position)
        if not probs.greedy:
            return test_children(rule, probs.p, draft.q, codes, valid)
        judged = rule.greedy(probs.p[:, :, None], codes)  # p [B, N + 1, 1, V]: once a node
        accept, strict, tv_shift, bound = (
            torch.where(valid, value, 0.0)
            for value in require_acceptance(rule, "greedy", judged, codes.shape)
        )
        return Acceptance(accept, strict, probs.p, tv_shift, bound)

    def tests(self, noise: Any, positions: Tensor, count: int) -> Tensor:
        """Reads uniforms of `count` children of every node, [B, N + 1, count]."""
        return noise.at(positions, ACCEPT_SLOT, count)

    def path(self, probs: TargetProbs, draft: Draft, accepted: Tensor) -> AcceptedPath:
        """Follows the first accepted child of every node, which is exact; greedy: the longest
        accepted path (METHODS 6). accepted [B, N + 1, K] bool."""
        follow = longest if probs.greedy else walk
        return follow(draft, accepted, draft.levels)

    def last_code(
        self,
        probs: TargetProbs,
        verdicts: Acceptance,
        path: AcceptedPath,
        noise: Any,
        position: Tensor,
    ) -> Tensor:
        """Draws the corrected or bonus code behind the path, [B]."""
        if probs.greedy:
            return at_node(probs.logits, path.last).argmax(-1)
        return code_behind(verdicts.residual, path.last, noise, position + path.count)


def along_path(
    path: AcceptedPath, verdicts: Acceptance, u: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(tv_shift, bound, relaxed) at each depth of the path, [B, D + 1], [B, D + 1], [B, D]. Where
    the accepted drafts end they are those of the first child, which was rejected."""
    batch, _, width = u.shape
    depth = path.order.shape[1]
    flat = path.nodes * width + F.pad(path.order, (0, 1))  # [B, D + 1] (node, child taken)
    taken = flat.clamp_max(u.shape[1] * width - 1)
    tv_shift = verdicts.tv_shift.reshape(batch, -1).gather(1, taken)
    bound = verdicts.bound.reshape(batch, -1).gather(1, taken)
    relaxed = (u >= verdicts.strict).reshape(batch, -1).gather(1, taken[:, :depth])
    return tv_shift, bound, relaxed


# ---- tests of all children, without randomness -------------------------------------------------


# p, q, codes, valid -> the outcomes for every node's children, [B, n, K] each; the residual [B, n,
# V] is what is left once all of them are rejected.
Judge = Callable[[Tensor, Tensor | None, Tensor, Tensor], Acceptance]


def test_children(
    rule: AcceptRule, p: Tensor, q: Tensor | None, codes: Tensor, valid: Tensor
) -> Acceptance:
    """Sequential tests of K children at every node. p [B, n, V]; q [B, n, V] or None (deterministic
    children); codes, valid [B, n, K]. On rejection p becomes the rule's residual and q loses the
    rejected code. Invalid children are never accepted. Returns what a `Judge` does."""
    children: list[Tensor] = []  # [4, B, n] each: accept, strict, tv_shift, bound
    count = codes.shape[-1]
    for j, (x, real) in enumerate(zip(codes.unbind(-1), valid[..., None].unbind(-2), strict=True)):
        judged, p, *left = test_child(rule, p, q, x, real, j + 1 == count)
        children.append(judged)
        q = left[0] if left else q
    stacked = children[0].unsqueeze(-1) if count == 1 else torch.stack(children, -1)
    accept, strict, tv_shift, bound = torch.where(valid, stacked, 0.0).unbind(0)  # [B, n, K]
    return Acceptance(accept, strict, p, tv_shift, bound)


@compiled_once
def test_child(
    rule: AcceptRule, p: Tensor, q: Tensor | None, x: Tensor, real: Tensor, last: bool
) -> tuple[Tensor, ...]:
    """The test of one child x [B, n] of every node: accept, strict, tv_shift and bound, [4, B, n],
    stacked because a compiled region returns a tensor once that it should return twice; then p for
    the next child, and q where there is one. real [B, n, 1] bool; last: no child follows."""
    test = rule.test(p, q, x)
    judged = torch.stack(require_acceptance(rule, "test", test, x.shape))
    require_floats(rule, "test", "a residual [..., V]", test.residual, p.shape)
    p = torch.where(real, test.residual, p)
    if q is None or last:
        return judged, p
    return judged, p, torch.where(real, drop_sibling(q, x), q)


def require_acceptance(
    rule: AcceptRule, method: str, judged: Acceptance, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """accept, strict, tv_shift and bound, as a method of the rule returned them. Raises AnswerError
    where it is something else, or one is not of the codes' shape."""
    if not isinstance(judged, Acceptance):
        raise AnswerError(
            f"{class_path(rule)}.{method} must return a decoders.api.Acceptance(accept, strict, "
            f"residual, tv_shift, bound), found {describe(judged)}"
        )
    values = judged.accept, judged.strict, judged.tv_shift, judged.bound
    for name, value in zip(("accept", "strict", "a tv_shift", "a bound"), values, strict=True):
        require_floats(rule, method, f"{name} [...]", value, shape)
    return values


# ---- the path through a draft -------------------------------------------------------------------


def children_of(draft: Draft) -> tuple[Tensor, Tensor]:
    """Returns codes and validity of every node's children, [B, N + 1, K] each."""
    batch, nodes, width = draft.children.shape
    flat = draft.children.reshape(batch, nodes * width)
    return draft.codes.gather(1, flat).view(batch, nodes, width), draft.children > 0


def at_node(values: Tensor, node: Tensor) -> Tensor:
    """Selects values [B, N + 1, V] at node [B] -> [B, V]."""
    return values.gather(1, node[:, None, None].expand(-1, 1, values.shape[-1]))[:, 0]


def code_behind(probs: Tensor, node: Tensor, noise: Any, position: Tensor) -> Tensor:
    """Draws the code behind a path that ends at `node` [B] from probs [B, N + 1, V] there, by the
    number of its position [B] in the image -> [B]."""
    u = noise.at(position[:, None], TARGET_SLOT)[:, 0, 0]  # [B]
    return sample(at_node(probs, node), u)


@dataclass(frozen=True)
class AcceptedPath:
    """The walk of B rows through their trees."""

    nodes: Tensor  # [B, D + 1] int64, node at each depth; past the end the last accepted node
    count: Tensor  # [B] int64, drafts accepted
    order: Tensor  # [B, D] int64, which child was taken (0 past the end)
    last: Tensor  # [B] int64, the last accepted node (0 = root)


def walk(draft: Draft, taken: Tensor, depth: int) -> AcceptedPath:
    """Follows the first accepted child from the root, `depth` levels at most. taken [B, N + 1, K]
    bool: which children of every node pass their test. Taking the *first* accepted child is what
    makes sampling exact (METHODS 3)."""
    wanted = draft.children * taken  # [B, N + 1, K], 0 where a child is not taken
    first = (wanted > 0).int().argmax(-1, keepdim=True)  # [B, N + 1, 1]
    child = wanted.gather(2, first).squeeze(-1)  # [B, N + 1]
    here = torch.arange(child.shape[1], device=child.device)
    follow = torch.maximum(child, here)  # a node without one stays: children come after parents
    root = torch.zeros_like(draft.parents[:, :1])
    nodes = [root]  # [B, 1] each
    for _ in range(depth):
        nodes.append(follow.gather(1, nodes[-1]))
    path = torch.cat(nodes, 1)  # [B, D + 1]
    above = path.narrow(1, 0, depth)  # [B, D]
    moved = path.narrow(1, 1, depth) > above
    order = first.squeeze(-1).gather(1, above) * moved
    return AcceptedPath(path, moved.sum(1), order, path.select(1, depth))


def table_order(draft: Draft, above: Tensor) -> Tensor:
    """Positions [B, N + 1] of the nodes in the released table of root-to-leaf paths: of two nodes
    at one depth, the one with the lower number is on the earlier row (METHODS 6). above [B, N + 1,
    N + 1] bool, see `Draft.ancestry`. The table is sorted by the numbers of a path's nodes, or with
    `Draft.by_leaf` by the number of the leaf in which the path ends."""
    number = torch.arange(above.shape[1], device=above.device)  # [N + 1]
    size = above.sum(1)  # [B, N + 1], nodes at or below
    if draft.by_leaf:
        below = above & (size == 1)[..., None]  # [B, leaf, N + 1]
        return torch.where(below, number[:, None], len(number)).amin(1)  # the lowest leaf below
    return nodes_before(draft, above, number.expand_as(size))


def nodes_before(draft: Draft, above: Tensor, rank: Tensor) -> Tensor:
    """[B, N + 1]: how many nodes a walk through the whole tree, siblings by rank [B, N + 1], visits
    before a node, without the nodes above it."""
    size = above.sum(1)  # [B, N + 1], nodes at or below
    siblings = draft.parents[:, :, None] == draft.parents[:, None]  # [B, N + 1, N + 1]
    siblings[:, 0] = siblings[:, :, 0] = False  # the root is its own parent, and has none
    earlier = siblings & (rank[:, :, None] > rank[:, None])
    ahead = (earlier * size[:, None]).sum(-1)  # [B, N + 1], nodes below earlier siblings
    return (above * ahead[:, None]).sum(-1)


def sibling_ranks(draft: Draft) -> Tensor:
    """[B, N + 1]: which child of its parent a node is; of the root 0."""
    batch, nodes, width = draft.children.shape
    rank = torch.arange(width, device=draft.codes.device).repeat(nodes).expand(batch, -1)
    ranks = torch.zeros_like(draft.codes).scatter(1, draft.children.flatten(1), rank)
    ranks[:, 0] = 0  # where `children` says 0 there is no child
    return ranks


def path_to(draft: Draft, above: Tensor, node: Tensor, depth: int) -> Tensor:
    """The nodes from the root to `node` [B], and that node again past the end, [B, D + 1]; above:
    see `Draft.ancestry`."""
    batch, nodes = draft.codes.shape
    mine = above.gather(1, node[:, None, None].expand(-1, -1, nodes))[:, 0]  # [B, N + 1]
    level = torch.where(mine, draft.depth, depth + 1)  # what is not on it falls off the end
    number = torch.arange(nodes, device=node.device).expand(batch, -1)
    return node[:, None].repeat(1, depth + 2).scatter(1, level, number)[:, :-1]


def longest(draft: Draft, accepted: Tensor, depth: int) -> AcceptedPath:
    """Greedy: the longest path that was accepted whole; of equally long ones the first in the
    released table of paths (METHODS 6). accepted [B, N + 1, K] bool per (node, child)."""
    hit = torch.zeros_like(draft.codes, dtype=torch.bool)
    hit = hit.scatter(1, draft.children.flatten(1), accepted.flatten(1))
    hit[:, 0] = True  # where `children` says 0 there is no child
    above = ancestry_of(draft)
    whole = (hit[:, None] | ~above).all(-1)  # [B, N + 1], nodes whose path was accepted
    reached = torch.where(whole, draft.depth, -1)
    count = reached.amax(1, keepdim=True)  # [B, 1]
    position = torch.where(reached == count, table_order(draft, above), torch.iinfo(torch.long).max)
    best = position.argmin(1, keepdim=True)  # [B, 1]
    path = path_to(draft, above, best[:, 0], depth)
    live = torch.arange(1, depth + 1, device=accepted.device) <= count  # [B, D]
    order = torch.where(live, sibling_ranks(draft).gather(1, path[:, 1:]), 0)
    return AcceptedPath(path, count[:, 0], order, best[:, 0])
