"""The VQ models of Janus and Emu3, which `transformers` has in its models: codes to pictures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.models.checkpoint import Checkpoint
from decoders.models.vq.llamagen_vq import to_unit
from decoders.models.vq.tokenizer import VQTokenizer

ROOTS = ("model.vqmodel.", "vqmodel.")  # where checkpoints keep it


class LibraryVQ:
    """net: a VQ model whose `decode` makes pictures [B, 3, H, W] around [-1, 1] of codes [B, L], or
    where `rows` of codes [B, h, w]. codebook [V, C]: in the metric that codes are looked up with.
    It does not encode."""

    encodes = False

    def __init__(self, net: Any, grid: int, codebook: Tensor, rows: bool) -> None:
        self.net, self.grid, self.rows = net, grid, rows
        self.codebook, self.raw_codebook = codebook, net.quantize.embedding.weight.detach()

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, L] -> images [B, 3, H, W] float32 in [0, 1]."""
        return to_unit(self.net.decode(codes.unflatten(1, (self.grid, -1)) if self.rows else codes))


def library_vq(
    whole: Any, opened: Checkpoint, grid: int, l2_norm: bool = False, rows: bool = False
) -> VQTokenizer:
    """The tokenizer of a model of transformers, in float32 as the checkpoint has it. l2_norm:
    whether codes are looked up by cosine. rows: the net takes rows of codes, each of which ends
    with a row end."""
    net = whole.model.vqmodel.float()
    table = "quantize.embedding.weight"
    at = next(root for root in ROOTS if f"{root}{table}" in opened.index)
    for name, values in net.state_dict().items():
        if values.is_floating_point():  # others are counters
            values.copy_(opened.read(f"{at}{name}"))
    codebook = net.get_parameter(table).detach()
    if l2_norm:
        codebook = F.normalize(codebook, dim=-1)
    return VQTokenizer(LibraryVQ(net, grid, codebook, rows), row_end=rows)
