"""Medusa drafter (2401.10774): heads on the target's last state, one for every distance ahead.

Head d is a residual block and an output head of its own, W2 (SiLU(W1 h + b1) + h); it predicts the
code d places behind the next one from the state h that predicted the root. Nothing is run between
depths: every node of a level gets the same logits, whatever its parent's code. The paper starts
with W1 = 0 and W2 = the target's head, so an untrained head drafts the target's own next code.

This file is also the worked example of docs/new_drafter.md: a net, a session, a part, a learner.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, Sampling, TextFeatures
from decoders.distribution import code_logits
from decoders.kinds import Within
from decoders.models.weights import load_into, read_json, read_tensors, write_weights
from decoders.training.states import Drafted, States, transformer_of

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Heads = Annotated[int, Within(most=64)]


class Head(nn.Module):
    """One distance: D -> V. ``barred`` as in a target: where codes may not stand, if anywhere."""

    barred: Tensor | None

    def __init__(self, width: int, vocab: int, barred: Tensor | None) -> None:
        super().__init__()
        self.block = nn.Linear(width, width)
        self.output = nn.Linear(width, vocab, bias=False)
        self.register_buffer("barred", barred, persistent=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        hidden = hidden.to(self.output.weight.dtype)
        return self.output(F.silu(self.block(hidden)) + hidden)


class MedusaNet(nn.Module):
    """The trained part: `heads` heads for the codes at +2, +3, ... of the target's state."""

    def __init__(self, model: ImageModel, heads: int) -> None:
        super().__init__()
        target = transformer_of(model)
        if heads < 1:
            raise DecoderError(f"drafter.heads must be at least 1, found {heads}")
        made = [Head(target.width, target.vocab_size, target.barred) for _ in range(heads)]
        self.heads = nn.ModuleList(made)
        with torch.no_grad():
            for head in made:
                head.block.weight.zero_()
                head.block.bias.zero_()
                head.output.weight.copy_(target.output.weight)


class MedusaSession:
    """Drafts for B images. What it keeps of them is the root's state, [R, 1, D]; a recorded step
    needs every tensor in place from the start."""

    def __init__(self, net: MedusaNet, sampling: Sampling, batch: int, like: Tensor) -> None:
        self.net, self.cfg, self.calls = net, sampling.cfg, 0
        self.root_code = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.place = torch.zeros(batch, 1, dtype=torch.long, device=like.device)
        self.state = torch.zeros_like(like[:, :1])

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
        last = count[:, None] - 1  # [B, 1]
        self.root_code = codes.gather(1, last)[:, 0]
        self.place = start[:, None] + last  # [B, 1], of the root
        rows = last.repeat(len(hidden) // len(codes), 1)  # [R, 1]
        self.state = hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[-1]))
        return self._logits(0)[:, 0]

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        del nodes, parents  # a head knows the depth and nothing else
        return self._logits(depth).expand(-1, codes.shape[1], -1)  # [B, w, V]

    def _logits(self, depth: int) -> Tensor:
        """Guided logits [B, 1, V] of the codes behind nodes of one depth."""
        heads = self.net.heads
        if depth >= len(heads):
            raise DecoderError(
                f"the tree is deeper than the drafter's {len(heads)} heads; set tree.depth to at "
                f"most {len(heads)}, or train more heads (drafter.heads)"
            )
        self.calls += 1
        head: Any = heads[depth]  # what code_logits reads of a target
        return code_logits(head, self.state, self.cfg, self.place + depth + 1)


class Medusa:
    """The drafter as a part. checkpoint: a folder that `bench train drafter=medusa` wrote; null:
    `heads` untrained heads."""

    def __init__(self, model: ImageModel, checkpoint: str | None = None, heads: Heads = 4) -> None:
        net = MedusaNet(model, heads) if checkpoint is None else read_medusa(model, checkpoint)
        self.net = net.to(model.device, model.dtype).eval().requires_grad_(False)

    def __str__(self) -> str:
        return f"medusa({len(self.net.heads)} heads)"

    def begin(
        self,
        text: TextFeatures,
        prefix_hidden: Tensor,
        sampling: Sampling,
        max_new: int,
        nodes: int,
    ) -> MedusaSession:
        del max_new, nodes  # no cache
        return MedusaSession(self.net, sampling, text.batch, prefix_hidden)


class MedusaLearner:
    """Trains the heads (`decoders.training.states.Learner`): a head's drafts along known codes are
    its logits on the true states, whatever the depth."""

    net: nn.Module

    def __init__(self, model: ImageModel, checkpoint: str | None = None, heads: Heads = 4) -> None:
        net = MedusaNet(model, heads) if checkpoint is None else read_medusa(model, checkpoint)
        self.net = self.medusa = net.to(model.device).float()
        self.start = transformer_of(model).prefix - 1

    def draft(
        self, states: States, roots: Tensor, depth: int, noise: Tensor | None = None
    ) -> list[Drafted]:
        length = states.codes.shape[1]
        read = states.hidden.float() if noise is None else states.hidden + noise
        every = torch.arange(length - 1, device=read.device)  # all roots cost little
        drafted = []
        for d in range(min(depth, len(self.medusa.heads))):
            at = every[: length - 1 - d]  # roots whose draft at this depth is in the image
            hidden = read[:, self.start + at]  # [R, m, D], the states that predicted the roots
            drafted.append(Drafted(at + d + 1, hidden, self.medusa.heads[d]))
        return drafted

    def save(self, folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        config = {"heads": len(self.medusa.heads)}
        (folder / CONFIG).write_text(json.dumps(config) + "\n")
        return write_weights(self.medusa, folder / WEIGHTS)


def read_medusa(model: ImageModel, folder: str) -> MedusaNet:
    """The heads of a folder that `MedusaLearner.save` wrote. Raises DecoderError."""
    described = read_json(Path(folder) / CONFIG, {"heads": Annotated[int, Within(1, 64)]})
    net = MedusaNet(model, described.get("heads", 0))
    path = Path(folder) / WEIGHTS
    load_into(net, read_tensors(path), str(path))
    return net
