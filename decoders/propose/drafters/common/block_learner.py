"""Block drafters in training: the blocks of several anchors of an image in one forward.

Every block sees the true context before its anchor and its own slots. As a shallower tree is
drafted by a shorter block, the blocks of a training have all lengths from 1 to the net's depth, in
turn: the slots up to the length see each other, as in decoding; one behind it, which learns too,
sees the slots before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.cache import GrowingCache, Reads
from decoders.models.nets.block import BlockNet
from decoders.models.nets.transformer import attention_bias
from decoders.propose.drafters.common.drafter import NetLearner
from decoders.propose.drafters.common.eagle_learner import Head
from decoders.training.states import Drafted, States


@dataclass(frozen=True)
class AddedHead(Head):
    """The target's head with what is added to its logits, [R, m, V]."""

    added: Tensor

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) + self.added


class BlockLearner(NetLearner):
    """Trains a `BlockNet` (`decoders.training.states.Learner`). Roots are the anchors."""

    net: BlockNet

    @property
    def reads(self) -> Reads:
        return self.net.reads

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        """See `decoders.training.states.Learner.draft`; no drafts beyond the net's depth, and
        those of depth 1 from the given roots too."""
        net, target, codes = self.net, self.target, states.codes
        slots, anchors, rows = min(depth, net.depth), len(roots), len(codes)
        assert states.keys_values is not None
        hidden, cache = self.read(states), GrowingCache()  # [R, S, D]
        context = net.context(hidden, states.keys_values.float())
        net.remember(context, net.rope[: context.shape[1]], cache, codes)
        embedded = target.embed(codes[:, roots]).float()  # [R, m, D]
        x = net.block(embedded, slots).flatten(1, 2)  # [R, m slots, D]
        ahead = torch.arange(slots, device=roots.device)
        places = (target.prefix + roots[:, None] + ahead).flatten()  # [m slots]
        bias = attention_bias(self.visible(states, roots, slots), torch.float32)
        out = net.norm(net.run(x, net.rope[places], bias, cache, codes))
        out = out.view(rows, anchors, slots, -1)
        drafted = []
        for k in range(slots):
            at = out[:, :, k]  # [R, m, D]
            if not net.rank:
                drafted.append(Drafted(roots + k + 1, at, Head(target)))
                continue
            before = codes[:, roots + k]  # [R, m]
            images = len(states.images)
            # It judges drafts, and does not change them.
            sure = net.sureness(at[:images].detach()) + net.sureness_after(before[:images])
            head = AddedHead(target, net.bias(before))
            drafted.append(Drafted(roots + k + 1, at, head, confidence=sure))
        return drafted

    def visible(self, states: States, roots: Tensor, slots: int) -> Tensor:
        """What the slots of all blocks see of the context and of all blocks: a mask [R, m slots, S
        + m slots] bool."""
        prefix, anchors, device = self.target.prefix, len(roots), roots.device
        valid = states.text.valid(states.drop)  # [R, P]
        size = states.hidden.shape[1]
        valid = F.pad(valid, (0, size - prefix), value=True)  # [R, S]
        before = torch.arange(size, device=device) < (prefix + roots)[:, None]  # [m, S]
        context = before.repeat_interleave(slots, 0) & valid[:, None]  # [R, m slots, S]
        k = torch.arange(slots, device=device)
        lengths = torch.full_like(roots, slots)
        if self.net.training:
            lengths = torch.arange(anchors, device=device) % slots + 1
        within = k < torch.maximum(lengths[:, None], k + 1)[..., None]  # [m, slots, slots]
        own = torch.block_diag(*within)  # [m slots, m slots]
        return torch.cat([context, own.bool().expand(len(valid), -1, -1)], -1)
