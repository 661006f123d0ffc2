"""Steps of plain next-code decoding as one call of the CPU kernel: the last codes through the
layers, guided logits, softmax, and the code that the noise picks, again and again.

A step computes what `decoders.loops.autoregressive.Autoregressive` does in some twenty operators,
and writes what that writes, in the tensors of the run.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.execution.cpu.layers import check
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.packing import Native
from decoders.execution.cpu.structures import Filter, NextCode
from decoders.noise import TARGET_SLOT


def require_state(rows: int, batch: int, **wanted: tuple[Tensor, torch.dtype]) -> None:
    """Raises DecoderError where a tensor that a call changes in place is not of its dtype,
    contiguous, for B images (`seen`: R rows)."""
    for name, (tensor, dtype) in wanted.items():
        shape = {"seen": (rows, 1), "place": (1,), "bad": ()}.get(name, (batch,))
        found, whole = tensor.shape[: len(shape)], name == "uniform" or tensor.is_contiguous()
        if tensor.dtype != dtype or found != shape or not whole or tensor.device.type != "cpu":
            raise DecoderError(
                f"the CPU kernel expected {name} {list(shape)} and on in {dtype}, contiguous, "
                f"found {list(tensor.shape)} in {tensor.dtype} on {tensor.device}"
            )


class NativeNext:
    """The steps of one run of `loop`, as long as its tensors and its cache stay where they are."""

    def __init__(self, loop: Any, run: Any, native: Native) -> None:
        target, sampling, cache, record = loop.model.target, loop.sampling, run.cache, run.record
        layers, head, embedding = native.layers, native.project, embedded(target, native)
        rows, batch, vocab = cache.rows, len(run.codes), head.outputs
        if rows != batch * sampling.guidance_rows:
            raise DecoderError(f"{batch} codes with guidance {sampling.cfg} in {rows} cache rows")
        uniform, long = run.noise.uniform[..., TARGET_SLOT], torch.int64  # [B, N], strided
        require_state(
            rows, batch, seen=(run.seen, torch.bool), uniform=(uniform, torch.float32),
            codes=(run.codes, long), place=(run.place, long), chosen=(record.codes, long),
            bad=(record.bad, torch.bool),
        )  # fmt: skip
        ids, slots = torch.zeros(2, rows, 1, dtype=torch.long)  # rows of the embedding, slots
        mask = run.seen[..., : cache.capacity]
        layers.check_cache(cache, rows, 1, mask)
        out = torch.empty(rows, 1, layers.width, dtype=layers.dtype)
        logits = torch.empty(2 + sampling.guidance_rows, batch, vocab)  # guided, p, of the rows
        self.cache = cache.data
        self._call = NextCode(
            # A code's place in the rotary table is its slot.
            body=layers.forward(ids, slots, slots, mask, cache.data, out, embedding),
            batch=batch, prefix=target.prefix, vocab=vocab, tokens=target.code_tokens,
            head=head.weight, cfg=sampling.cfg, filter=Filter.of(sampling),
            uniform=uniform, uniform_row=uniform.stride(0),
            uniform_place=uniform.stride(1), uniforms=uniform.shape[1],
            codes=run.codes, place=run.place,
            chosen=record.codes, recorded=record.codes.shape[1],
            bad=record.bad, raw=logits[2], logits=logits[0], p=logits[1],
        )  # fmt: skip
        half = ctypes.c_int(layers.dtype == torch.bfloat16)
        self._arguments = (library().lantern_next, ctypes.byref(self._call), half)

    def __call__(self, count: int = 1) -> None:
        """`count` steps. Raises DecoderError past the image's end, or for a code outside the
        tables, before the first of them."""
        self._call.count = count
        run("next", *self._arguments)


def embedded(target: Any, native: Native) -> Tensor:
    """The target's embedding [tokens, D], contiguous. Raises DecoderError where it does not fit
    the layers."""
    weight: Tensor = target.tok_embeddings.weight
    check(weight, native.layers.width, native.layers.dtype)
    return weight.detach().contiguous()
