"""A call of an EAGLE drafter through the CPU kernel: from the codes of a level to the guided logits
after them, with the session's features and masks read and written in place.

It computes what `decoders.drafters.eagle.EagleSession.expand` does in some twenty operators.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from decoders.cache import KVCache
from decoders.kernels.cpu.layers import NativeLayers, NativeLinear, check
from decoders.kernels.cpu.library import Expand, library, run


class NativeExpand:
    """One session's calls. layers: the drafter's one; fc, head: packed; embedding [tokens, D];
    tokens [V] int64, rows of the embedding, or None; cache of R rows."""

    def __init__(
        self,
        layers: NativeLayers,
        fc: NativeLinear,
        head: NativeLinear,
        embedding: Tensor,
        tokens: Tensor | None,
        cache: KVCache,
        batch: int,
        cfg: float,
    ) -> None:
        self.layers, self.fc, self.head = layers, fc, head
        self.embedding, self.tokens = embedding.detach().contiguous(), tokens
        self.cache, self.batch, self.cfg = cache, batch, cfg
        self._call = library().lantern_expand

    def __call__(
        self,
        codes: Tensor,
        nodes: Tensor,
        parents: Tensor,
        depth: int,
        features: Tensor,
        seen: Tensor,
        root_slot: Tensor,
    ) -> Tensor:
        """codes, parents [B, w], nodes [w] int64; features [R, n, D] and seen [R, n, S] bool are
        read at the parents and written at the nodes; root_slot [R, 1] -> guided logits [B, w, V]
        float32."""
        check(features, self.layers.width, self.layers.dtype)
        rows, width, size = self.cache.rows, codes.shape[1], self.layers.width
        codes, parents, nodes = codes.contiguous(), parents.contiguous(), nodes.contiguous()
        root_slot = root_slot.contiguous()
        x = features.new_empty(4, rows, width, size)  # input, output, embedding and feature
        places = codes.new_empty(2, rows, width)
        mask = seen.new_empty(rows, width, self.cache.capacity)
        vocab = self.head.outputs
        logits = torch.empty(1 + rows // self.batch, self.batch, width, vocab)
        layer = self.layers.forward(x[0], places[0], places[1], mask, self.cache.data, x[1])
        bias = self.fc.bias
        call = Expand(
            layer, self.batch, features.shape[1], self.embedding.data_ptr(), len(self.embedding),
            None if self.tokens is None else self.tokens.data_ptr(), self.fc.weight.data_ptr(),
            None if bias is None else bias.data_ptr(), self.head.weight.data_ptr(), vocab, self.cfg,
            features.data_ptr(), seen.data_ptr(), root_slot.data_ptr(), codes.data_ptr(),
            nodes.data_ptr(), parents.data_ptr(), depth, x[2].data_ptr(), logits[1].data_ptr(),
            logits[0].data_ptr(),
        )  # fmt: skip
        half = ctypes.c_int(features.dtype == torch.bfloat16)
        run("expand", self._call, ctypes.byref(call), half)
        return logits[0]
