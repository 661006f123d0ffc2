"""Steps of plain next-code decoding as one call of the CPU kernel: the last codes through the
layers, guided logits, softmax, and the code that the noise picks, again and again.

A step computes what `decoders.loops.autoregressive.Autoregressive` does in some twenty operators,
and writes what that writes, in the tensors of the run.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.cache import KVCache
from decoders.execution.cpu.layers import NativeLayers, NativeLinear, check
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.structures import Filter, NextCode


@dataclass(frozen=True)
class Head:
    """What stands around the layers: the packed output matrix, the embedding [tokens, D], the
    codes' rows in it, [V] int64 (None: the codes themselves), and the prefix's length."""

    output: NativeLinear
    embedding: Tensor
    tokens: Tensor | None
    prefix: int


@dataclass(frozen=True)
class Moving:
    """What a step of B images reads and changes in place. R rows, places up to N."""

    seen: Tensor  # [R, 1, S] bool, cache slots that the next query may look at
    uniform: Tensor  # [B, N] float32, the noise of every place, strided as it may be
    codes: Tensor  # [B] int64, the last codes
    place: Tensor  # [1] int64, of the next ones
    chosen: Tensor  # [B, N'] int64, the images so far
    accepted: Tensor  # [B, steps] int16, drafts accepted in a step: none
    steps: Tensor  # [1] int64, taken so far
    bad: Tensor  # [] bool, set where logits are not finite

    def require(self, rows: int, batch: int) -> None:
        """Raises DecoderError where a tensor is not what is said above."""
        long = torch.int64
        wanted = {
            "seen": (self.seen, torch.bool, (rows, 1)),
            "uniform": (self.uniform, torch.float32, (batch,)),
            "codes": (self.codes, long, (batch,)),
            "place": (self.place, long, (1,)),
            "chosen": (self.chosen, long, (batch,)),
            "accepted": (self.accepted, torch.int16, (batch,)),
            "steps": (self.steps, long, (1,)),
            "bad": (self.bad, torch.bool, ()),
        }
        for name, (tensor, dtype, shape) in wanted.items():
            whole = name == "uniform" or tensor.is_contiguous()
            found = tensor.shape[: len(shape)]
            if tensor.dtype != dtype or found != shape or not whole or tensor.device.type != "cpu":
                raise DecoderError(
                    f"the CPU kernel expected {name} {list(shape)} and on in {dtype}, contiguous, "
                    f"found {list(tensor.shape)} in {tensor.dtype} on {tensor.device}"
                )


class NativeNext:
    """The steps of one run, as long as its tensors and its cache stay where they are."""

    def __init__(
        self, layers: NativeLayers, head: Head, sampling: Sampling, state: Moving, cache: KVCache
    ) -> None:
        check(head.embedding, layers.width, layers.dtype)
        rows, batch, vocab = cache.rows, len(state.codes), head.output.outputs
        if rows != batch * sampling.guidance_rows:
            raise DecoderError(f"{batch} codes with guidance {sampling.cfg} in {rows} cache rows")
        state.require(rows, batch)
        embedding = head.embedding.detach().contiguous()
        ids, slots = torch.zeros(2, rows, 1, dtype=torch.long)  # rows of the embedding, slots
        mask = state.seen[..., : cache.capacity]
        layers.check_cache(cache, rows, 1, mask)
        out = torch.empty(rows, 1, layers.width, dtype=layers.dtype)
        logits = torch.empty(2 + sampling.guidance_rows, batch, vocab)  # guided, p, of the rows
        self._call = NextCode(
            # A code's place in the rotary table is its slot.
            body=layers.forward(ids, slots, slots, mask, cache.data, out, embedding),
            batch=batch, prefix=head.prefix, vocab=vocab, tokens=head.tokens,
            head=head.output.weight, cfg=sampling.cfg, filter=Filter.of(sampling),
            uniform=state.uniform, uniform_row=state.uniform.stride(0),
            uniform_place=state.uniform.stride(1), uniforms=state.uniform.shape[1],
            codes=state.codes, place=state.place,
            chosen=state.chosen, recorded=state.chosen.shape[1],
            accepted=state.accepted, most=state.accepted.shape[1],
            steps=state.steps, bad=state.bad, raw=logits[2], logits=logits[0], p=logits[1],
        )  # fmt: skip
        half = ctypes.c_int(layers.dtype == torch.bfloat16)
        self._arguments = (library().lantern_next, ctypes.byref(self._call), half)

    def __call__(self, count: int = 1) -> None:
        """`count` steps. Raises DecoderError past the image's end, or for a code outside the
        tables, before the first of them."""
        self._call.count = count
        run("next", *self._arguments)
