"""Layers of a transformer through the CPU kernel of `stack.cpp`: weights packed once, then one call
a forward.

What runs is what `decoders.models.transformer` computes (RMSNorm, rotation, append to the cache,
attention over the visible slots, SwiGLU; Touvron et al., 2302.13971), with sums and the residual
stream in float32 whatever the model's dtype.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.cache import KVCache
from decoders.kernels.cpu.library import Forward, LayerWeights, library, missing

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


def reason(width: int, heads: int, ffn: int, dtype: torch.dtype, device: torch.device) -> str | None:
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


def packed(weight: Tensor) -> Tensor:
    """[outputs, inputs] -> the kernel's panels, flat, zeros after the last output."""
    outputs, inputs = weight.shape
    panels = -(-outputs // LANES)
    out = torch.empty(panels * LANES * inputs, dtype=weight.dtype)
    library().lantern_pack(
        ctypes.c_void_p(weight.contiguous().data_ptr()),
        ctypes.c_long(outputs),
        ctypes.c_long(inputs),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int(weight.dtype == torch.bfloat16),
    )
    return out


class NativeLinear:
    """x w^T + b: w [out, in], in even; b [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        self.weight = packed(weight.detach())
        self.bias = None if bias is None else bias.detach().contiguous()
        self._call = library().lantern_linear

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the dtype of the weights."""
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outputs)
        self._call(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(self.weight.data_ptr()),
            ctypes.c_void_p(None if self.bias is None else self.bias.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_long(x.numel() // self.inputs),
            ctypes.c_long(self.inputs),
            ctypes.c_long(self.outputs),
            ctypes.c_int(torch.get_num_threads()),
            ctypes.c_int(self.dtype == torch.bfloat16),
        )
        return out


class NativeLayers:
    """A chain of layers over one cache, and the norm after them where there is one.

    rope: the rotary table, complex64 [places, d / 2]. The weights are read once: layers that are
    trained afterwards need another object.
    """

    def __init__(
        self, layers: Sequence[Weights], norm: Tensor | None, rope: Tensor, heads: int, eps: float
    ) -> None:
        first = layers[0]
        self.width, self.ffn = len(first.wo), first.w2.shape[1]
        self.heads, self.eps, self.dtype = heads, eps, first.wo.dtype
        self._kept: list[Tensor] = []  # what the kernel holds addresses of
        self._table = (LayerWeights * len(layers))(*(self._layer(one) for one in layers))
        self._norm = None if norm is None else self._address(norm)
        self._rope = torch.view_as_real(rope).contiguous()
        self._scratch = torch.empty(0)
        self._library = library()

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    def _layer(self, one: Weights) -> LayerWeights:
        gate, up = (half.unflatten(0, (-1, LANES)) for half in one.w13.detach().chunk(2))
        both = torch.stack([gate, up], 1).flatten(0, 2)  # [2 F, D], blocks of gate and up in turn
        return LayerWeights(
            None if one.attention_norm is None else self._address(one.attention_norm),
            self._address(packed(one.wqkv.detach())),
            self._address(packed(one.wo.detach())),
            self._address(one.ffn_norm),
            self._address(packed(both)),
            self._address(packed(one.w2.detach())),
        )

    def __call__(
        self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """x [R, T, D]; places [R, T] int64 in the rotary table; slots [R, T] int64 of the cache,
        written; mask [R, T, S] bool, True where a query may look -> [R, T, D] in the dtype of x."""
        x = x.contiguous()
        if mask.stride(-1) != 1:
            mask = mask.contiguous()
        out = torch.empty_like(x)
        self._run(x, places, slots, mask, cache, out, False)
        return out

    def products(self, rows: int) -> None:
        """The matrix products of a forward of `rows` rows and nothing else, to be timed."""
        x = torch.zeros(rows, 1, self.width, dtype=self.dtype)
        nothing = torch.zeros(rows, 1, dtype=torch.long)
        cache = KVCache(1, 1, 1, self.heads, self.width // self.heads, self.dtype, x.device)
        mask = torch.ones(rows, 1, 1, dtype=torch.bool)
        self._run(x, nothing, nothing, mask, cache, torch.empty_like(x), True)

    def _run(
        self,
        x: Tensor,
        places: Tensor,
        slots: Tensor,
        mask: Tensor,
        cache: KVCache,
        out: Tensor,
        products: bool,
    ) -> None:
        rows, queries, _ = x.shape
        call = Forward(
            rows, queries, self.width, self.heads, self.ffn, len(self._table), cache.capacity,
            self.eps, torch.get_num_threads(), ctypes.addressof(self._table), self._norm,
            x.data_ptr(), out.data_ptr(), cache.data.data_ptr(),
            self._rope.data_ptr(), len(self._rope), places.data_ptr(), *places.stride(),
            slots.data_ptr(), *slots.stride(), mask.data_ptr(), *mask.stride()[:2], None, products,
        )  # fmt: skip
        need = self._library.lantern_scratch(ctypes.byref(call))
        if need > self._scratch.numel():
            self._scratch = torch.empty(need)
        call.scratch = self._scratch.data_ptr()
        half = ctypes.c_int(self.dtype == torch.bfloat16)
        self._library.lantern_forward(ctypes.byref(call), half)
