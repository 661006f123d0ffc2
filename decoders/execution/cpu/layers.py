"""Layers of a transformer through the CPU kernel of `kernel.cpp`: weights packed once, then one
call a forward.

What runs is what `decoders.models.transformer` computes (RMSNorm, rotation, append to the cache,
attention over the visible slots, SwiGLU; Touvron et al., 2302.13971), with sums and the residual
stream in float32 whatever the model's dtype. What is packed is a copy, so it is made once the
weights are final, for decoding only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.cache import KVCache, zeros
from decoders.execution.cpu.library import library, missing, run
from decoders.execution.cpu.operators import numbered
from decoders.execution.cpu.structures import Forward, LayerWeights, require
from decoders.models.shape import TransformerConfig

LANES = 16  # outputs of a packed panel
HEADS = (16, 32, 64, 128)  # widths of a head
DTYPES = (torch.bfloat16, torch.float32)
MOST = 2 * 2**30  # bytes of weights that are worth a second, packed copy


@dataclass(frozen=True)
class Native:
    """A net's packed weights. layers: the layers, and the norm after them; project: a target's
    head, a drafter's ``fc``."""

    layers: NativeLayers
    project: NativeLinear


def reason(net: Any) -> str | None:
    """Why a target or drafter cannot run in the kernel here; None where it can."""
    cfg: Any = getattr(net, "cfg", None)
    if not isinstance(cfg, TransformerConfig) or not hasattr(net, "packed"):
        return f"it runs the layers of decoders.models.transformer, here {type(net).__name__}"
    if cfg.qk_norm:
        return "it has no norm of queries and keys"
    if cfg.group > 1:
        return f"every head has keys of its own in it, here {cfg.group} share them"
    if cfg.head != "linear" and hasattr(net, "output"):
        return f"its output head is one matrix, here {cfg.head}"
    size = sum(p.nbytes for p in net.layers.parameters())
    if size > MOST:
        return f"it keeps a second copy of the weights, {size / 2**30:.1f} GiB here"
    weight = net.layers[0].attention.wo.weight
    if weight.device.type != "cpu":
        return f"it runs on CPUs, the model is on {weight.device.type}"
    if weight.dtype not in DTYPES:
        return f"it computes in bfloat16 and float32, the model in {weight.dtype}"
    if cfg.head_dim not in HEADS:
        return f"heads are {' or '.join(map(str, HEADS))} wide, here {cfg.head_dim}"
    if cfg.width % LANES or cfg.ffn % LANES:
        return f"widths are multiples of {LANES}, here {cfg.width} and {cfg.ffn}"
    return missing()


def pack(net: Any) -> Native:
    """The packed weights of a target or drafter. Raises DecoderError where the kernel cannot run it
    (`reason`)."""
    why = reason(net)
    if why is not None:
        raise DecoderError(f"the CPU kernel cannot run these layers: {why}; set layers to torch")
    linear = _last(net)
    return Native(NativeLayers(net), NativeLinear(linear.weight, linear.bias))


class Matrix(nn.Linear):
    """A matrix of a net, whose products are the kernel's. What is in float32 comes out so, whatever
    the kernel's weights are kept in."""

    native: NativeLinear

    def forward(self, x: Tensor) -> Tensor:
        native = self.native
        if x.dtype == native.dtype:
            return native(x)
        out = native.guided(x.reshape(-1, 1, native.inputs).to(native.dtype), 1.0)  # [n, 1, out]
        out = out.view(*x.shape[:-1], native.outputs).to(x.dtype)
        return out if self.bias is None else out + self.bias


def pack_matrices(net: nn.Module, dtype: torch.dtype) -> None:
    """Makes a `Matrix`, with weights in `dtype`, of every nn.Linear of a net but those that are
    packed with its layers."""
    every: list[Any] = list(net.modules())
    within = [part for part in every if getattr(part, "packed", None) is not None]
    done = {id(one) for part in within for one in (_last(part), *part.layers.modules())}
    for module in every:
        plain = type(module) is nn.Linear and id(module) not in done
        if plain and module.in_features % 2 == 0 and module.weight.dtype in DTYPES:
            bias = None if module.bias is None else module.bias.to(dtype)
            module.native = NativeLinear(module.weight.to(dtype), bias)
            module.__class__ = Matrix


def _last(net: Any) -> nn.Linear:
    """A target's head, a drafter's ``fc``."""
    return net.output if hasattr(net, "output") else net.fc


def packed(weights: Sequence[Tensor]) -> list[Tensor]:
    """Each [outputs, inputs] of one dtype -> the kernel's panels, flat, zeros after the last
    output; all of them in one piece of memory."""
    sizes = [-(-len(w) // LANES) * LANES * w.shape[1] for w in weights]
    made = list(zeros((sum(sizes),), weights[0].dtype, weights[0].device).split(sizes))
    for weight, out in zip(weights, made, strict=True):
        source = weight.detach().contiguous()
        library().lantern_pack(source, *weight.shape, out, weight.dtype == torch.bfloat16)
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
        self.dtype, self.half = weight.dtype, weight.dtype == torch.bfloat16
        (self.weight,) = packed([weight])
        self.bias = None if bias is None else bias.detach().clone().contiguous()
        self._library, self.number = library(), numbered(self)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], both in the dtype of the weights; DecoderError for others."""
        check(x, self.inputs, self.dtype)
        made: Tensor = torch.ops.lantern_cpu.linear(self.number, x)
        return made

    def product(self, x: Tensor) -> Tensor:
        """The operator."""
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outputs)
        self._into(x, out)(1)
        return out

    def products(self, rows: int) -> Callable[[int], None]:
        """What multiplies `rows` rows so many times in a call, to be timed."""
        x = torch.randn(rows, self.inputs).to(self.dtype)
        return self._into(x, x.new_empty(rows, self.outputs))

    def _into(self, x: Tensor, out: Tensor) -> Callable[[int], None]:
        """What writes the product into `out`, so many times; both are contiguous."""
        return partial(
            run, "linear", self._library.lantern_linear, x, self.weight, self.bias, out,
            x.numel() // self.inputs, self.inputs, self.outputs, torch.get_num_threads(), self.half,
        )  # fmt: skip

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
        out = torch.empty(rows // copies, queries, self.outputs)
        raw = torch.empty(0 if copies == 1 else rows * queries * self.outputs)
        run(
            "logits", self._library.lantern_logits, hidden.contiguous(), self.weight,
            rows * queries, self.inputs, self.outputs, copies, cfg, raw, out,
            torch.get_num_threads(), self.half,
        )  # fmt: skip
        return out


class NativeLayers:
    """The layers of a target or drafter over one cache, and the norm after them where there is one.

    The weights are read once: layers that are trained afterwards need another object. One call at a
    time: they share their memory.
    """

    def __init__(self, net: Any) -> None:
        cfg, layers = net.cfg, list(net.layers)
        self.width, self.ffn, self.heads, self.eps = cfg.width, cfg.ffn, cfg.heads, cfg.norm_eps
        self.dtype = layers[0].attention.wo.weight.dtype
        self.half = self.dtype == torch.bfloat16
        panels = iter(packed([weight for layer in layers for weight in _matrices(layer)]))
        # Norms are copied as packed weights are, so that all of a forward's are of one moment.
        self._layers = [
            LayerWeights(
                attention_norm=_copy(layer.attention_norm),
                **dict(zip(("wqkv", "wo", "w13", "w2"), panels, strict=False)),
                ffn_norm=_copy(layer.ffn_norm),
            )
            for layer in layers
        ]
        self._table, self.count = (LayerWeights * len(layers))(*self._layers), len(layers)
        # A drafter has none behind its layer, whatever it calls a norm of its own.
        self._norm = _copy(net.norm if hasattr(net, "output") else None)
        self._rope = torch.view_as_real(net.rope).contiguous()
        self._scratch = torch.empty(0)
        self._library, self.number = library(), numbered(self)

    def __call__(
        self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """x [R, T, D]; places [R, T] int64 in the rotary table; slots [R, T] int64 of the cache,
        written; mask [R, T, S] bool, True where a query may look -> [R, T, D] in the dtype of the
        weights."""
        check(x, self.width, self.dtype)
        for index in (places, slots):
            if index.dtype != torch.int64 or index.shape != x.shape[:2]:
                raise DecoderError(
                    f"the CPU kernel expected places and slots {list(x.shape[:2])} in "
                    f"torch.int64, found {list(index.shape)} in {index.dtype}"
                )
        self.check_cache(cache, x.shape[0], x.shape[1], mask)
        made: Tensor = torch.ops.lantern_cpu.layers(self.number, x, places, slots, mask, cache.data)
        return made

    def run(self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: Tensor) -> Tensor:
        """The operator."""
        x = x.contiguous()
        if mask.stride(-1) != 1:
            mask = mask.contiguous()
        out = torch.empty_like(x)
        call = self.forward(x, places, slots, mask, cache, out)
        run("layers", self._library.lantern_forward, call, self.half)
        return out

    def check_cache(self, cache: KVCache, rows: int, queries: int, mask: Tensor) -> None:
        """Raises DecoderError where cache and mask [R, T, S] are not of these layers and rows."""
        size = self.width // self.heads
        whole = (self.count, 2, rows, self.heads, cache.capacity, size)
        require("a cache", cache.data, whole, self.dtype)
        wanted = (rows, queries, cache.capacity)
        if mask.shape != wanted or mask.dtype != torch.bool:
            raise DecoderError(
                f"the CPU kernel expected a mask {list(wanted)} in torch.bool, found "
                f"{list(mask.shape)} in {mask.dtype}"
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

        def multiply(times: int) -> None:
            call.times = times
            run("layers", self._library.lantern_forward, call, self.half)

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
        """The call of these tensors; see `__call__`. embedding: x are rows of it then, [R, T]."""
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
        need = self._library.lantern_scratch(call)
        if need > self._scratch.numel():
            self._scratch = torch.zeros(need)  # no stray NaN for the products alone
        call.scratch = self._scratch.data_ptr()
        call.held["all"] = (self, x, places, slots, mask, cache, out, embedding, self._scratch)
        return call


def _copy(norm: Any) -> Tensor | None:
    """A norm's weights; None where there is none."""
    if norm is None or isinstance(norm, nn.Identity):
        return None
    copied: Tensor = norm.weight.detach().clone(memory_format=torch.contiguous_format)
    return copied


def _matrices(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """wqkv, wo, w13 and w2, with their rows in the kernel's order: of w13 `LANES` of the gate and
    of up in turn, of the others after it and of wo the halves of the inputs one after the other."""
    attention, forward = layer.attention, layer.feed_forward
    gate, up = (half.unflatten(0, (-1, LANES)) for half in forward.w13.weight.detach().chunk(2))
    w13 = torch.stack([gate, up], 1).flatten(0, 2)  # [2 F, D]
    return attention.wqkv.weight, _halves(attention.wo), w13, _halves(forward.w2)


def _halves(linear: nn.Linear) -> Tensor:
    """[out, in] -> [2 out, in / 2]: weights of the first half of the inputs, then of the others."""
    return torch.cat(linear.weight.detach().chunk(2, 1))
