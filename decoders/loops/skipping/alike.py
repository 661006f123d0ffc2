"""Whether the paths of a draft look alike: when dynamic VVS skips a step (2511.13587, METHODS2
(s)).

At every level: the mean cosine between the latents of the codes of two paths, over all pairs of
root-to-leaf paths that reach it (two paths through one node have cosine 1). The levels are weighed
by decay^(level - 1). Where all paths would draw much the same picture, an untested one does little
harm. The published text leaves open how pairs are weighed: this is the plain reading of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import Draft
from decoders.verify.children import ancestry


class Alike:
    """threshold: weighted cosine above which a step is skipped; codebook [V, C]."""

    def __init__(self, codebook: Tensor, threshold: float, decay: float) -> None:
        self.threshold, self.decay = threshold, decay
        self.latents = torch.nn.functional.normalize(codebook.float(), dim=-1)  # [V, C]

    def __call__(self, tree: Draft) -> Tensor:
        """[B] bool."""
        return self.cosine(tree) > self.threshold

    def cosine(self, tree: Draft) -> Tensor:
        """The weighted cosine, [B]; 0 of a draft with a single path."""
        leaf, above = leaves(tree)
        paths = (leaf[..., None] & above).sum(1).float()  # [B, N + 1], through every node
        level = torch.arange(1, tree.levels + 1, device=leaf.device)
        own = paths[..., None] * (tree.depth[..., None] == level)  # [B, N + 1, D]
        count = own.sum(1)  # [B, D], paths that reach a level
        total = own.transpose(1, 2) @ self.latents[tree.codes]  # [B, D, C]
        pairs = count * (count - 1)
        mean = (total.square().sum(-1) - count) / pairs.clamp_min(1)
        weight = torch.where(pairs > 0, self.decay ** (level - 1.0), 0.0)  # [B, D]
        return (weight * mean).sum(-1) / weight.sum(-1).clamp_min(1e-9)


def leaves(tree: Draft) -> tuple[Tensor, Tensor]:
    """The leaves that can be reached, [B, N + 1] bool, and who is above whom, [B, N + 1, N + 1]."""
    above = ancestry(tree.parents, tree.levels) if tree.ancestry is None else tree.ancestry
    child = tree.children.reshape(len(tree.codes), -1)
    linked = torch.zeros_like(tree.codes).scatter(1, child, 1).bool()
    linked[:, 0] = True
    whole = (linked[:, None] | ~above).all(-1)  # [B, N + 1], nodes that can be reached
    return whole & ~(tree.children > 0).any(-1), above
