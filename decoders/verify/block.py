"""Block verification of a chain of drafts (Sun et al., 2403.10444): exact, and on average no exact
verification of a chain accepts more in a step.

Likely drafts make up for an unlikely one after them: with
    s_0 = 1,  s_i = min(1, s_{i-1} p_i(x_i) / q_i(x_i)),
the first i drafts are acceptable with probability
    h_i = R_i / (R_i + 1 - s_i),  R_i = sum_y (s_i p_{i+1}(y) - q_{i+1}(y))+,  h_g = s_g for all g,
where g is the last draft that a chain has, and the largest i whose test succeeds is taken. The next
code is drawn from p after all g drafts, else from norm((s_i p_{i+1} - q_{i+1})+).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Verified
from decoders.distribution import normalised, pick
from decoders.noise import ACCEPT_SLOT
from decoders.verify.token_verifier import at_node, children_of, code_behind
from decoders.verify.traversal import WholeDraft, drawn_from, exactly_verified


class Block(WholeDraft):
    """For chains; a tree's verifier is `decoders.verify.traversal.Traversal`."""

    def __str__(self) -> str:
        return "block"

    def judge(self, p: Tensor, draft: Draft, noise: Any, position: Tensor) -> Verified:
        """Raises DecoderError for a tree, and for deterministic drafts."""
        size, q = draft.levels, drawn_from(draft, "block verification")
        if draft.children.shape[-1] != 1 or draft.codes.shape[1] != size + 1:
            raise DecoderError(
                f"block verification judges a chain, found a tree of {draft.codes.shape[1] - 1} "
                f"nodes on {size} levels; use tree=chain, or acceptance=traversal"
            )
        codes, real = draft.codes[:, 1:], children_of(draft)[1][:, :, 0]  # [B, g], [B, g + 1]
        real = real.long().cumprod(1) > 0  # whether a node has a draft behind it: some end earlier
        ratio = pick(p[:, :-1], codes) / pick(q[:, :-1], codes).clamp_min(1e-30)  # [B, g]
        shares = [torch.ones_like(ratio[:, 0])]
        for i in range(size):
            shares.append((shares[-1] * ratio[:, i]).clamp_max(1.0))
        s = torch.stack(shares, 1)  # [B, g + 1]
        left = (s[..., None] * p - q).clamp_min(0.0)
        left = torch.where(real[..., None], left, p)  # [B, g + 1, V], of the next code
        mass = left.sum(-1)[:, 1:-1]  # [B, g - 1], R_i
        open_ = mass + 1 - s[:, 1:-1]
        inner = torch.where(open_ > 0, mass / open_.clamp_min(1e-30), 1.0)
        h = torch.cat([inner, s[:, -1:]], 1)  # [B, g]
        h = torch.where(real[:, 1:], h, s[:, 1:]) * real[:, :-1]
        level = torch.arange(size + 1, device=p.device)
        u = noise.at(position[:, None] + level[:-1], ACCEPT_SLOT)[..., 0]  # [B, g]
        count = torch.where(u < h, level[1:], 0).amax(1)  # [B]
        last = code_behind(normalised(left, p), count, noise, position + count)
        bonus = ~at_node(real[..., None], count)[:, 0]
        return exactly_verified(torch.minimum(level, count[:, None]), count, last, bonus)
