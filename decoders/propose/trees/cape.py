"""CaPE (2402.02082): a chain of drafts that have more siblings where the drafter is less sure.

At every position the drafter's distribution q has a confidence c, its largest probability, and n
children: 8, 8, 8, 6, 6, 6, 4, 4, 2, 2, 2 where int(10 c) is 0, 1, .. 10. The first goes on. The
paper takes the n likeliest codes, which is what happens here at temperature 0. While sampling they
are drawn from q without replacement, because verifiers judge all children of a node by one
distribution: a drawn code with fixed siblings would fit none. How many there are follows from q
alone, never from what was drawn, so the draft is exact.

Shapes are static, so a draft has exactly `nodes` nodes: the chain, then siblings from the root on
until all are used; 8 times the depth is enough for all of the paper's. Unused nodes go through the
target's forward too, but no verifier reads them.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, DraftSession, Sampling, Tree
from decoders.checks import likeliest, require_logits
from decoders.distribution import draw_distinct, probabilities
from decoders.kinds import Within
from decoders.noise import DRAFT_SLOT, Noise
from decoders.propose.trees.static import drop_impossible

MOST_CHILDREN = 8  # children, with two less from each of these tenths of confidence on
FEWER_FROM_TENTHS = 3, 6, 8


class Cape(Tree):
    """depth: of the chain; nodes: of the draft."""

    branching = MOST_CHILDREN

    def __init__(
        self,
        model: Any = None,
        depth: Annotated[int, Within(most=256)] = 4,
        nodes: Annotated[int, Within(most=4096)] = 32,
    ) -> None:
        del model
        if depth < 1 or not depth <= nodes <= MOST_CHILDREN * depth:
            raise DecoderError(
                f"tree depth={depth}, nodes={nodes}: expected depth >= 1 and depth <= nodes <= "
                f"{MOST_CHILDREN * max(depth, 1)} ({MOST_CHILDREN} children at every position)"
            )
        self.depth, self.nodes, self.session_nodes = depth, nodes, depth - 1

    def __str__(self) -> str:
        return f"cape(depth={self.depth}, nodes={self.nodes})"

    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Noise,
        position: Tensor,
    ) -> Draft:
        batch, vocab = root_logits.shape
        numbers = torch.arange(self.depth + 1, device=root_logits.device)
        logits, by_level, drawn = root_logits, [], []  # [B, V], [B, V] each, [B, K] each
        for level in range(1, self.depth + 1):
            probs = probabilities(logits, sampling)
            if sampling.greedy:
                codes = likeliest(probs, MOST_CHILDREN)[1]
            else:
                u = noise.of_nodes(position + level - 1, DRAFT_SLOT, 1, MOST_CHILDREN)
                codes = draw_distinct(probs[:, None], u)[:, 0]
            by_level.append(probs)
            drawn.append(codes)
            if level < self.depth:
                node, above = numbers[level : level + 1], numbers[level - 1].expand(batch, 1)
                below = session.expand(codes[:, :1], node, above, level)
                logits = require_logits(session, below, batch, 1, vocab)[:, 0]
        probs = torch.stack(by_level, 1)  # [B, D, V]
        return self._draft(session.root_code, torch.stack(drawn, 1), probs, sampling.greedy)

    def _draft(self, root: Tensor, drawn: Tensor, probs: Tensor, greedy: bool) -> Draft:
        """drawn [B, D, K]: the children's codes; probs [B, D, V]. Nodes 1..D are the chain.
        Children without a node are written to node 0, which the root's values then replace."""
        (batch, depth, width), device = drawn.shape, drawn.device
        number = self.child_numbers(probs.amax(-1))  # [B, D, K]
        above = torch.arange(depth, device=device)[:, None].expand(batch, -1, width)
        flat = number.flatten(1)

        def placed(values: Tensor, empty: int, first: Tensor | int) -> Tensor:
            """values [B, D, K] of the children -> [B, N + 1], by node; first: of the root."""
            nodes = torch.full((batch, self.nodes + 1), empty, dtype=torch.long, device=device)
            nodes.scatter_(1, flat, values.flatten(1))
            nodes[:, 0] = first
            return nodes

        codes, parents = placed(drawn, 0, root), placed(above, 0, 0)
        children = torch.zeros(batch, self.nodes + 1, width, dtype=torch.long, device=device)
        children[:, :depth] = number
        q = None
        if not greedy:
            q = probs.new_zeros(batch, self.nodes + 1, probs.shape[-1])
            q[:, :depth] = probs
            children = drop_impossible(children, codes, q)
        return Draft(codes, parents, placed(above + 1, 1, 0), children, q, levels=depth)

    def child_numbers(self, confidence: Tensor) -> Tensor:
        """Confidences [B, D] -> the nodes of all children, [B, D, K]: 1 to D on the chain, siblings
        from D + 1 on; 0: there is none."""
        batch, depth = confidence.shape
        tenths = (10 * confidence).long()
        count = torch.full_like(tenths, MOST_CHILDREN)  # [B, D]
        for tenth in FEWER_FROM_TENTHS:
            count = count - 2 * (tenths >= tenth)
        rank = torch.arange(1, MOST_CHILDREN, device=count.device)
        siblings = rank < count[..., None]  # [B, D, K - 1]
        number = depth + siblings.flatten(1).cumsum(1).view_as(siblings)
        number = torch.where(siblings & (number <= self.nodes), number, 0)
        chain = torch.arange(1, depth + 1, device=count.device).expand(batch, -1)
        return torch.cat([chain[..., None], number], -1)
