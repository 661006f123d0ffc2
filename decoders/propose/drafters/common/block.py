"""Block drafters at work: one forward of the drafter per step drafts all levels.

What a session keeps are keys and values of the committed codes' context, in slots numbered as the
target's, and of the block in those behind. A block has as many slots as a draft has levels at most.
Behind a node of any level stand the block's logits of that level; a Markov head adds what follows
from the node's own code.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Prefill
from decoders.cache import CLOSED, KVCache, additive_mask, round_up
from decoders.distribution import code_logits
from decoders.models.nets.block import BlockNet
from decoders.models.nets.transformer import rope_at
from decoders.propose.drafters.common.drafter import TrainedDrafter
from decoders.propose.drafters.common.sessions import Session


class BlockSession(Session):
    """Drafts for B images with a `BlockNet`."""

    net: BlockNet

    def allocate(self, prefill: Prefill, nodes: int) -> None:
        net, target, config = self.net, self.target, self.net.config
        rows, device, weight = len(prefill.hidden), prefill.first.device, net.fc.weight
        self.slots = min(net.depth, max(1, self.max_new - 1))  # of a block
        size = round_up(target.prefix + target.length + self.max_new + self.slots)
        heads = config.heads, config.head_dim
        self.cache = KVCache(len(net.layers), rows, size, *heads, weight.dtype, device)
        self.target_cache = prefill.cache
        self.span = torch.arange(size, device=device)  # [S]
        self.open = torch.zeros(rows, size, device=device)  # but for the padding, a mask
        self.logits = torch.zeros(prefill.batch, self.slots, target.vocab_size, device=device)
        if net.rank:
            self.sure = torch.zeros(prefill.batch, self.slots, device=device)
            self.confidence = torch.zeros(prefill.batch, nodes + 1, device=device)

    def read_prefix(self, prefill: Prefill) -> None:
        valid, size = prefill.text.row_mask(self.copies), self.target.prefix  # [R, P]
        self.open[:, :size].copy_(additive_mask(valid))
        self._remember(prefill.hidden[:, :size], self.span[:size].expand(len(valid), -1))

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        net, target, last = self.net, self.target, self.root(codes, count)  # [B, 1]
        # The state that predicted the code at position j stands in the target's slot P - 1 + j.
        first = (target.prefix - 1 + position)[:, None]
        self._remember(hidden, self._rows(first + self.span[: codes.shape[1]]))
        ahead = self.span[: self.slots]
        places = self._rows(first + last + 1 + ahead)  # [R, n], from the root's on
        seen = torch.where(self.span <= places[:, -1:], self.open, CLOSED)  # [R, S]
        embedded = target.embed(self._rows(self.root_code))  # type: ignore[attr-defined]
        mask = seen[:, None].expand(-1, self.slots, -1)
        x = net.block(embedded, self.slots)
        states = net.norm(net.stack(x, places, places, mask, self.cache))  # [R, n, D]
        positions = position[:, None] + last + 1 + ahead  # [B, n]
        self.logits.copy_(code_logits(target, states, self.cfg, positions))
        if not net.rank:
            return self.logits[:, 0]
        self.sure.copy_(net.sureness(states[: len(count)]))  # of the conditional rows
        return self.expand(self.root_code[:, None], self.span[:1], last, 0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        del parents  # of the drafts above, a node's own code is all that is read
        net, logits = self.net, self.logits[:, depth, None]  # [B, 1, V]
        if not net.rank:
            return logits.expand(-1, codes.shape[1], -1)
        sure = self.sure[:, depth, None] + net.sureness_after(codes)  # [B, w]
        assert self.confidence is not None
        self.confidence.index_copy_(1, nodes, sure.sigmoid())
        return logits + net.bias(codes).float()

    def _remember(self, hidden: Tensor, slots: Tensor) -> None:
        """Reads the target's states at slots [R, T], of which hidden [R, T, D] are the last."""
        net = self.net
        context = net.context(hidden, self.target_cache.read_slots(net.reads, slots))
        rope = rope_at(net.rope, slots)[:, None]  # [R, 1, T, d / 2]
        net.remember(context, rope, self.cache, slots)


class Block(TrainedDrafter):
    """A block drafter as a part, see `TrainedDrafter`. Raises DecoderError where the weights under
    a name are of a net with other settings than `untrained` builds."""

    session, reads_cache, dtype = BlockSession, True, None
    levels_setting, one_forward = "drafter.block", True
    exercised: ClassVar[dict[str, Any]] = {"reads": None}  # a small model has not the same layers

    def __init__(self, model: ImageModel, checkpoint: str | None = None) -> None:
        super().__init__(model, checkpoint)
        wanted: Any = self.untrained(model)
        pairs = {"block": "depth", "layers": "size", "reads": "reads", "rank": "rank"}
        for name, field in pairs.items():
            has, asked = getattr(self.net, field), getattr(wanted, field)
            if has != asked:
                raise DecoderError(
                    f"drafter.checkpoint={checkpoint} has {name} {has}, the settings of {self} say "
                    f"{asked}; give drafter.{name} as it was trained, or another checkpoint"
                )
        self.most_levels = self.net.depth

    def __str__(self) -> str:
        return f"{super().__str__()}(block={self.net.depth})"
