"""EAGLE-2's dynamic tree (2406.16858, METHODS 3): grow where the drafter is confident.

``depth`` levels; at each the best ``top_k`` nodes by cumulative log-probability are expanded by
their ``top_k`` likeliest codes; the best ``nodes`` of all candidates are kept. The children are
deterministic given the prefix, so q_j = 1, and the number of nodes is fixed: only the shape varies.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, DraftSession, Sampling, Tree
from decoders.checks import likeliest, require_logits
from decoders.distribution import largest, probabilities
from decoders.kinds import Within
from decoders.noise import Noise

LEAST_PROBABILITY = 1e-30  # probability
LEAST_LOG = math.log(LEAST_PROBABILITY)


@dataclass(eq=False, repr=False)
class Dynamic(Tree):
    draws = False

    model: InitVar[Any] = None
    depth: Annotated[int, Within(most=256)] = 5
    top_k: Annotated[int, Within(most=256)] = 10
    nodes: Annotated[int, Within(most=4096)] = 58

    def __post_init__(self, model: Any) -> None:
        del model
        depth, top_k, nodes = self.depth, self.top_k, self.nodes
        most = top_k + (depth - 1) * top_k**2
        if depth < 1 or top_k < 1 or not depth <= nodes <= most:
            raise DecoderError(
                f"tree depth={depth}, top_k={top_k}, nodes={nodes}: expected depth >= 1, "
                f"top_k >= 1 and depth <= nodes <= {most} (all candidates)"
            )
        self.branching, self.session_nodes = top_k, (depth - 1) * top_k

    def __str__(self) -> str:
        return f"dynamic(depth={self.depth}, top_k={self.top_k}, nodes={self.nodes})"

    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Noise,
        position: Tensor,
    ) -> Draft:
        del noise, position  # deterministic given the prefix
        width, batch = self.top_k, len(root_logits)
        device = root_logits.device
        score, codes = likeliest(_log(root_logits, sampling), width)  # [B, k]
        # Candidates so far: code, cumulative score, candidate index of the parent (-1: the root).
        all_codes, all_scores = [codes], [score]
        all_parents = [torch.full_like(codes, -1)]
        frontier = torch.arange(width, device=device).expand(batch, -1)  # candidate index [B, k]
        above = torch.zeros_like(codes)  # session index of the frontier's parents
        numbers = torch.arange(1 + self.session_nodes, device=device)
        for depth in range(1, self.depth):
            nodes = numbers[1 + (depth - 1) * width : 1 + depth * width]  # [k]
            logits = session.expand(codes, nodes, above, depth)  # [B, k, V]
            require_logits(session, logits, batch, width, root_logits.shape[-1])
            gain, child = largest(_log(logits, sampling), width)  # [B, k, k]
            total = score[..., None] + gain  # [B, k, k]
            first = width + (depth - 1) * width**2  # candidate index of this level's first
            all_codes.append(child.flatten(1))
            all_scores.append(total.flatten(1))
            all_parents.append(frontier.repeat_interleave(width, 1))
            score, best = largest(total.flatten(1), width)  # [B, k]
            codes = child.flatten(1).gather(1, best)
            above = nodes[best // width]  # [B, k]
            frontier = first + best
        return self._prune(
            session.root_code,
            torch.cat(all_codes, 1),
            torch.cat(all_scores, 1),
            torch.cat(all_parents, 1),
        )

    def rank(self, scores: Tensor) -> Tensor:
        """The candidates' log-weights [B, C], level by level; the largest are chosen."""
        return scores

    def _prune(self, root: Tensor, codes: Tensor, scores: Tensor, parents: Tensor) -> Draft:
        """Keeps the best N candidates [B, C]; a parent's score is never below its child's, and the
        stable order keeps parents first, so no node loses its parent."""
        batch, total = codes.shape
        device = codes.device
        order = self.rank(scores).argsort(dim=1, descending=True, stable=True)[:, : self.nodes]
        best = order.sort(1).values  # [B, N] candidate indices, ascending: parents before children
        number = torch.full((batch, total + 1), -1, dtype=torch.long, device=device)
        numbers = torch.arange(1, self.nodes + 1, device=device).expand(batch, -1)
        number.scatter_(1, best, numbers)
        number[:, total] = 0  # the root, which candidates know as -1
        above = parents.gather(1, best)
        above = torch.where(above < 0, total, above)
        parent = torch.cat(
            [torch.zeros_like(root)[:, None], number.gather(1, above)], 1
        )  # [B, N + 1]
        depth = torch.zeros_like(parent)
        step = parent
        for _ in range(self.depth):
            depth = depth + (step != 0)
            step = parent.gather(1, step)
        depth[:, 1:] += 1
        return Draft(
            torch.cat([root[:, None], codes.gather(1, best)], 1),
            parent,
            depth,
            _children(parent, self.branching),
            None,
            levels=self.depth,
            by_leaf=True,  # the order of the released table for a dynamic tree (METHODS 6)
        )


def _children(parent: Tensor, width: int) -> Tensor:
    """parent [B, N + 1] -> children [B, N + 1, K], siblings in node order (likeliest first)."""
    batch, nodes = parent.shape
    same = parent[:, 1:, None] == parent[:, None, 1:]  # [B, N, N]
    rank = same.tril(-1).sum(-1)  # [B, N]
    children = torch.zeros(batch, nodes * width, dtype=torch.long, device=parent.device)
    numbers = torch.arange(1, nodes, device=parent.device).expand(batch, -1)
    children.scatter_(1, parent[:, 1:] * width + rank, numbers)
    return children.view(batch, nodes, width)


def _log(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the processed distribution. Codes that are filtered out stay below all
    others at finite, different values, so that scores remain ordered, always in the same way."""
    p = probabilities(logits, sampling)
    below = LEAST_LOG - torch.arange(p.shape[-1], device=p.device)  # [V]
    return torch.where(p > 0, p.clamp_min(LEAST_PROBABILITY).log(), below)
