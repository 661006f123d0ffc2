"""Layers of a transformer through the CPU kernel of `kernel.cpp`: weights packed once, then one
call a forward.

What runs is what `decoders.models.transformer` computes (RMSNorm, rotation, append to the cache,
attention over the visible slots, SwiGLU; Touvron et al., 2302.13971), with sums and the residual
stream in float32 whatever the model's dtype.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.cache import KVCache, zeros
from decoders.execution.cpu.library import library, missing, run
from decoders.execution.cpu.operators import numbered
from decoders.execution.cpu.structures import Forward, LayerWeights

LANES = 16  # outputs of a packed panel
HEADS = (16, 32, 64, 128)  # widths of a head
DTYPES = (torch.bfloat16, torch.float32)
MOST = 2 * 2**30  # bytes of weights that are worth a second, packed copy


@dataclass(frozen=True)
class Weights:
    """One layer's: wqkv [3 D, D], wo [D, D], w13 [2 F, D] (gate, then up), w2 [D, F], norms [D];
    attention_norm None where the layer has none."""

    attention_norm: Tensor | None
    wqkv: Tensor
    wo: Tensor
    ffn_norm: Tensor
    w13: Tensor
    w2: Tensor


def reason(
    width: int, heads: int, ffn: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why the kernel does not run such layers here; None where it does."""
    if device.type != "cpu":
        return f"it runs on CPUs, the model is on {device.type}"
    if dtype not in DTYPES:
        return f"it computes in bfloat16 and float32, the model in {dtype}"
    if width // heads not in HEADS:
        return f"heads are {' or '.join(map(str, HEADS))} wide, here {width // heads}"
    if width % LANES or ffn % LANES:
        return f"widths are multiples of {LANES}, here {width} and {ffn}"
    return missing()


def packed(weights: Sequence[Tensor]) -> list[Tensor]:
    """Each [outputs, inputs] of one dtype -> the kernel's panels, flat, zeros after the last
    output; all of them in one piece of memory."""
    sizes = [-(-len(w) // LANES) * LANES * w.shape[1] for w in weights]
    made = list(zeros((sum(sizes),), weights[0].dtype, weights[0].device).split(sizes))
    for weight, out in zip(weights, made, strict=True):
        source = weight.detach().contiguous()
        library().lantern_pack(
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_long(weight.shape[0]),
            ctypes.c_long(weight.shape[1]),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int(weight.dtype == torch.bfloat16),
        )
    return made


def check(x: Tensor, width: int, dtype: torch.dtype) -> None:
    """Raises DecoderError where x is not [..., width] in `dtype` on the CPU."""
    if x.shape[-1] != width or x.dtype != dtype or x.device.type != "cpu":
        raise DecoderError(
            f"the CPU kernel expected [..., {width}] in {dtype}, found {list(x.shape)} in "
            f"{x.dtype} on {x.device.type}"
        )


class NativeLinear:
    """x w^T + b: w [out, in], in even (DecoderError where it is odd); b [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        if self.inputs % 2:
            raise DecoderError(
                f"the CPU kernel expected an even number of inputs, found weights "
                f"{[*weight.shape]}; give them a column of zeros, or use torch.nn.Linear"
            )
        self.dtype = weight.dtype
        (self.weight,) = packed([weight])
        self.bias = None if bias is None else bias.detach().clone().contiguous()
        self._call, self._logits = library().lantern_linear, library().lantern_logits
        self.number = numbered(self)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], both in the dtype of the weights; DecoderError for others."""
        check(x, self.inputs, self.dtype)
        made: Tensor = torch.ops.lantern_cpu.linear(self.number, x)
        return made

    def product(self, x: Tensor) -> Tensor:
        """The operator."""
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outputs)
        run("linear", self._call, *self._arguments(x, out))
        return out

    def products(self, rows: int) -> Callable[[int], None]:
        """What multiplies `rows` rows so many times in a call, to be timed."""
        x = torch.randn(rows, self.inputs).to(self.dtype)
        kept = (x, x.new_empty(rows, self.outputs))
        arguments = self._arguments(*kept)

        def multiply(times: int, kept: tuple[Tensor, Tensor] = kept) -> None:
            del kept  # what the arguments point to
            run("linear", self._call, *arguments[:-1], ctypes.c_long(times))

        return multiply

    def _arguments(self, x: Tensor, out: Tensor) -> tuple[Any, ...]:
        """Of `lantern_linear`; x and out, contiguous, must live until it is over."""
        return (
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(self.weight.data_ptr()),
            ctypes.c_void_p(None if self.bias is None else self.bias.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_long(x.numel() // self.inputs),
            ctypes.c_long(self.inputs),
            ctypes.c_long(self.outputs),
            ctypes.c_int(torch.get_num_threads()),
            ctypes.c_int(self.dtype == torch.bfloat16),
            ctypes.c_long(1),
        )

    def guided(self, hidden: Tensor, cfg: float) -> Tensor:
        """As a head: hidden [R, T, D], rows [conditional; unconditional] unless cfg is 1 -> guided
        logits [B, T, V] float32, uncond + cfg (cond - uncond)."""
        check(hidden, self.inputs, self.dtype)
        made: Tensor = torch.ops.lantern_cpu.guided(self.number, hidden, float(cfg))
        return made

    def guidance(self, hidden: Tensor, cfg: float) -> Tensor:
        """The operator."""
        rows, queries, _ = hidden.shape
        copies = 1 if cfg == 1 else 2
        hidden = hidden.contiguous()
        out = torch.empty(rows // copies, queries, self.outputs)
        raw = torch.empty(0 if copies == 1 else rows * queries * self.outputs)
        run(
            "logits",
            self._logits,
            ctypes.c_void_p(hidden.data_ptr()),
            ctypes.c_void_p(self.weight.data_ptr()),
            ctypes.c_long(rows * queries),
            ctypes.c_long(self.inputs),
            ctypes.c_long(self.outputs),
            ctypes.c_int(copies),
            ctypes.c_float(cfg),
            ctypes.c_void_p(raw.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int(torch.get_num_threads()),
            ctypes.c_int(self.dtype == torch.bfloat16),
        )
        return out


class NativeLayers:
    """A chain of layers over one cache, and the norm after them where there is one.

    rope: the rotary table, complex64 [places, d / 2]. The weights are read once: layers that are
    trained afterwards need another object. One call at a time: they share their memory.
    """

    def __init__(
        self, layers: Sequence[Weights], norm: Tensor | None, rope: Tensor, heads: int, eps: float
    ) -> None:
        first = layers[0]
        self.width, self.ffn = len(first.wo), first.w2.shape[1]
        self.heads, self.eps, self.dtype = heads, eps, first.wo.dtype
        panels = iter(packed([w for one in layers for w in _matrices(one)]))
        # Norms are copied as packed weights are, so that all of a forward's are of one moment.
        self._layers = [
            LayerWeights(
                attention_norm=None if one.attention_norm is None else _copy(one.attention_norm),
                **dict(zip(("wqkv", "wo", "w13", "w2"), panels, strict=False)),
                ffn_norm=_copy(one.ffn_norm),
            )
            for one in layers
        ]
        self._table, self.count = (LayerWeights * len(layers))(*self._layers), len(layers)
        self._norm = None if norm is None else _copy(norm)
        self._rope = torch.view_as_real(rope).contiguous()
        self._scratch = torch.empty(0)
        self._library = library()
        self.number = numbered(self)

    def __call__(
        self,
        x: Tensor,
        places: Tensor,
        slots: Tensor,
        mask: Tensor,
        cache: KVCache,
    ) -> Tensor:
        """x [R, T, D]; places [R, T] int64 in the rotary table; slots [R, T] int64 of the cache,
        written; mask [R, T, S] bool, True where a query may look -> [R, T, D] in the dtype of the
        weights."""
        check(x, self.width, self.dtype)
        rows, queries = x.shape[:2]
        for index in (places, slots):
            if index.dtype != torch.int64 or index.shape != (rows, queries):
                raise DecoderError(
                    f"the CPU kernel expected places and slots {[rows, queries]} in "
                    f"torch.int64, found {list(index.shape)} in {index.dtype}"
                )
        self.check_cache(cache, rows, queries, mask)
        made: Tensor = torch.ops.lantern_cpu.layers(self.number, x, places, slots, mask, cache.data)
        return made

    def run(self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: Tensor) -> Tensor:
        """The operator."""
        x = x.contiguous()
        if mask.stride(-1) != 1:
            mask = mask.contiguous()
        out = torch.empty_like(x)
        call = self.forward(x, places, slots, mask, cache, out)
        half = ctypes.c_int(self.dtype == torch.bfloat16)
        run("layers", self._library.lantern_forward, ctypes.byref(call), half)
        return out

    def check_cache(self, cache: KVCache, rows: int, queries: int, mask: Tensor) -> None:
        """Raises DecoderError where cache and mask [R, T, S] are not of these layers and rows."""
        layers, heads = self.count, self.heads
        wanted = (layers, 2, rows, heads, cache.capacity, self.width // heads)
        if cache.data.shape != wanted or cache.data.dtype != self.dtype:
            raise DecoderError(
                f"the CPU kernel expected a cache {list(wanted)} in {self.dtype}, found "
                f"{list(cache.data.shape)} in {cache.data.dtype}"
            )
        if mask.shape != (rows, queries, cache.capacity) or mask.dtype != torch.bool:
            raise DecoderError(
                f"the CPU kernel expected a mask {[rows, queries, cache.capacity]} in torch.bool, "
                f"found {list(mask.shape)} in {mask.dtype}"
            )

    def products(self, rows: int, queries: int, seen: int = 0) -> Callable[[int], None]:
        """What runs the products with weights of a forward of R rows and T queries and nothing
        else, so many times in a call, to be timed; with `seen` > 0 attention too, over so many
        slots (its rotation and append with it). They read whatever numbers the last forward has
        left behind."""
        width, slots = self.width, max(seen, queries)
        x = torch.zeros(rows, queries, width, dtype=self.dtype)
        places = torch.arange(queries).expand(rows, -1).contiguous()
        mask = torch.ones(rows, queries, slots, dtype=torch.bool)
        shape = (self.count, 2, rows, self.heads, slots, width // self.heads)
        cache = zeros(shape if seen else (0,), self.dtype, x.device)
        call = self.forward(x, places, places, mask, cache, torch.empty_like(x))
        call.products = 2 if seen else 1
        arguments = (ctypes.byref(call), ctypes.c_int(self.dtype == torch.bfloat16))

        def multiply(times: int) -> None:
            call.times = times
            run("layers", self._library.lantern_forward, *arguments)

        return multiply

    def forward(
        self,
        x: Tensor,
        places: Tensor,
        slots: Tensor,
        mask: Tensor,
        cache: Tensor,
        out: Tensor,
        embedding: Tensor | None = None,
    ) -> Forward:
        """The call of these tensors; see `__call__`."""
        rows, queries, capacity = mask.shape
        source, codes = (x, None) if embedding is None else (embedding, x.data_ptr())
        size = 0 if embedding is None else len(embedding)
        norm = None if self._norm is None else self._norm.data_ptr()
        call = Forward(
            rows, queries, self.width, self.heads, self.ffn, self.count, capacity,
            self.eps, torch.get_num_threads(), ctypes.addressof(self._table), norm,
            source.data_ptr(), codes, size, out.data_ptr(), cache.data_ptr(),
            self._rope.data_ptr(), len(self._rope), places.data_ptr(), *places.stride(),
            slots.data_ptr(), *slots.stride(), mask.data_ptr(), *mask.stride()[:2], None, 0, 1,
        )  # fmt: skip
        need = self._library.lantern_scratch(ctypes.byref(call))
        if need > self._scratch.numel():
            self._scratch = torch.zeros(need)  # no stray NaN for the products alone
        call.scratch = self._scratch.data_ptr()
        call.held["all"] = (self, x, places, slots, mask, cache, out, embedding, self._scratch)
        return call


def _copy(weight: Tensor) -> Tensor:
    """As packed weights are, so that all of a forward's are of one moment."""
    return weight.detach().clone(memory_format=torch.contiguous_format)


def _matrices(one: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """wqkv, wo, w13 and w2, with their rows in the kernel's order."""
    return one.wqkv, _halves(one.wo), _blocks(one.w13), _halves(one.w2)


def _halves(weight: Tensor) -> Tensor:
    """[out, in] -> [2 out, in / 2]: weights of the first half of the inputs, then of the others."""
    return torch.cat(weight.detach().chunk(2, 1))


def _blocks(w13: Tensor) -> Tensor:
    """[2 F, D], gate then up -> the same rows, `LANES` of the gate and of up in turn."""
    gate, up = (half.unflatten(0, (-1, LANES)) for half in w13.detach().chunk(2))
    return torch.stack([gate, up], 1).flatten(0, 2)
