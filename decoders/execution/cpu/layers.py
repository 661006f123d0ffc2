"""Layers of a transformer through the CPU kernel of `kernel.cpp`: weights packed once, then one
torch operator per forward.

It computes what `decoders.models.nets.transformer` computes (RMSNorm, rotation, append to the
cache, attention over the visible slots, SwiGLU; Touvron et al., 2302.13971), with sums and the
residual stream in float32 whatever the model's dtype. Packed weights are a copy, so they are made
once the weights are final, for decoding only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.cache import KVCache, zeros
from decoders.execution.cpu.library import load, missing
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer

LANES = 16  # outputs of a packed panel
HEADS = (16, 32, 64, 128)  # widths of a head
DTYPES = (torch.bfloat16, torch.float32)
MOST = 2 * 2**30  # bytes of weights that are worth a second, packed copy


@dataclass(frozen=True)
class PackedNet:
    """A net's packed weights. layers: the layers, and the norm after them; project: a target's
    head, a drafter's ``fc``; None of layers without one."""

    layers: PackedLayers
    project: PackedLinear | None


def reason(net: Any) -> str | None:
    """Why a target or drafter cannot run in the kernel here; None where it can."""
    if hasattr(net, "stacks"):  # see `decoders.models.nets.flash`
        return next(filter(None, (reason(stack) for stack in net.stacks() if stack.layers)), None)
    config: Any = getattr(net, "config", None)
    if not isinstance(config, TransformerConfig) or not hasattr(net, "packed"):
        return f"it runs the layers of decoders.models.nets.transformer, here {type(net).__name__}"
    if config.qk_norm:
        return "it has no norm of queries and keys"
    if hasattr(net, "output") and type(net).logits is not Transformer.logits:
        return f"it makes the logits of a Transformer, {type(net).__name__} has its own"
    size = sum(p.nbytes for p in net.layers.parameters())
    if size > MOST:
        return f"it keeps a second copy of the weights, {size / 2**30:.1f} GiB here"
    weight = net.layers[0].attention.wo.weight
    if weight.device.type != "cpu":
        return f"it runs on CPUs, the model is on {weight.device.type}"
    if weight.dtype not in DTYPES:
        return f"it computes in bfloat16 and float32, the model in {weight.dtype}"
    if config.head_dim not in HEADS:
        return f"heads are {' or '.join(map(str, HEADS))} wide, here {config.head_dim}"
    if config.width % LANES or config.ffn % LANES:
        return f"widths are multiples of {LANES}, here {config.width} and {config.ffn}"
    return missing()


def pack(net: Any) -> Any:
    """The packed weights of a target or drafter that the kernel can run (`reason`): a `PackedNet`;
    of a target of several stacks one each, None of those without layers."""
    if hasattr(net, "stacks"):
        return [pack(stack) if stack.layers else None for stack in net.stacks()]
    linear = _last(net)
    project = None if linear is None else PackedLinear(linear.weight, linear.bias)
    return PackedNet(PackedLayers(net), project)


class Matrix(nn.Linear):
    """A linear layer whose product the kernel computes. What comes in float32 leaves in float32,
    whatever the dtype of the packed weights."""

    packed: PackedLinear

    def forward(self, x: Tensor) -> Tensor:
        packed = self.packed
        if x.dtype == packed.dtype:
            return packed(x)
        out = packed.guided(x.reshape(-1, 1, packed.inputs).to(packed.dtype), 1.0)  # [n, 1, out]
        out = out.view(*x.shape[:-1], packed.outputs).to(x.dtype)
        return out if self.bias is None else out + self.bias


def pack_matrices(net: nn.Module, dtype: torch.dtype) -> None:
    """Makes a `Matrix`, with weights in `dtype`, of every nn.Linear of a net but those that are
    packed with its layers."""
    every: list[Any] = list(net.modules())
    within = [part for part in every if isinstance(getattr(part, "packed", None), PackedNet)]
    done = {id(one) for part in within for one in (_last(part), *part.layers.modules())}
    for module in every:
        plain = type(module) is nn.Linear and id(module) not in done
        if plain and module.in_features % 2 == 0 and module.weight.dtype in DTYPES:
            bias = None if module.bias is None else module.bias.to(dtype)
            module.packed = PackedLinear(module.weight.to(dtype), bias)
            module.__class__ = Matrix


def _last(net: Any) -> nn.Linear:
    """A target's head, a drafter's ``fc``."""
    return net.output if hasattr(net, "output") else net.fc


def packed(weight: Tensor) -> Tensor:
    """[out, in] -> the kernel's panels, flat, zeros after the last output."""
    load()
    panels: Tensor = torch.ops.lantern_cpu.packed(weight.detach().contiguous())
    return panels


def check(x: Tensor, width: int, dtype: torch.dtype) -> None:
    """Raises DecoderError where x is not [..., width] in `dtype` on the CPU."""
    if x.shape[-1] != width or x.dtype != dtype or x.device.type != "cpu":
        raise DecoderError(
            f"the CPU kernel expected [..., {width}] in {dtype}, found {list(x.shape)} in "
            f"{x.dtype} on {x.device.type}"
        )


class PackedLinear:
    """x w^T + b: w [out, in], in even (DecoderError where it is odd); b [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        if self.inputs % 2:
            raise DecoderError(
                f"the CPU kernel expected an even number of inputs, found weights "
                f"{[*weight.shape]}; give them a column of zeros, or use torch.nn.Linear"
            )
        self.dtype, self.weight = weight.dtype, packed(weight)
        self.bias = None if bias is None else bias.detach().clone().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], both in the dtype of the weights; DecoderError for others."""
        check(x, self.inputs, self.dtype)
        product: Tensor = torch.ops.lantern_cpu.linear(
            self.weight, self.bias, self.outputs, x.contiguous()
        )
        return product

    def guided(self, hidden: Tensor, cfg: float) -> Tensor:
        """As a head: hidden [R, T, D], rows [conditional; unconditional] unless cfg is 1 -> guided
        logits [B, T, V] float32, uncond + cfg (cond - uncond)."""
        check(hidden, self.inputs, self.dtype)
        logits: Tensor = torch.ops.lantern_cpu.guided(
            self.weight, self.outputs, hidden.contiguous(), float(cfg)
        )
        return logits


class PackedLayers:
    """The layers of a target or drafter over one cache, and the norm after them where there is one.

    The weights are read once: layers that are trained afterwards need another object.
    """

    def __init__(self, net: Any) -> None:
        config, layers = net.config, list(net.layers)
        self.count, self.width, self.heads = len(layers), config.width, config.heads
        self.dtype = layers[0].attention.wo.weight.dtype
        panels = [packed(weight) for layer in layers for weight in _matrices(layer)]
        together = zeros((sum(map(len, panels)),), self.dtype, panels[0].device)
        torch.cat(panels, out=together)
        # A drafter has no norm behind its layer, whatever it calls a norm of its own.
        last = getattr(net, "norm", None) if hasattr(net, "output") else None
        parts = [one for layer in layers for one in (layer.attention_norm, layer.ffn_norm)]
        scales = [one.weight.detach() for one in (*parts, last) if _scales(one)]
        self._fixed = (
            together, torch.stack(scales), torch.view_as_real(net.rope).contiguous(), self.count,
            self.heads, config.ffn, float(config.norm_eps), _scales(parts[0]), _scales(last),
        )  # fmt: skip

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        cache: KVCache,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Runs all layers: writes keys and values into the cache, and returns the hidden states of
        the wanted queries, [R, W, D] in the dtype of the weights; without `wanted` of all T.

        x: [R, T, D]; positions: in the rotary table, and slots: of the cache, both [R, T] int64;
        mask: [R, T, S], see `decoders.cache`; wanted: [R, W] int64. Raises DecoderError for other
        shapes or dtypes."""
        check(x, self.width, self.dtype)
        for index in (positions, slots):
            if index.dtype != torch.int64 or index.shape != x.shape[:2]:
                raise DecoderError(
                    f"the CPU kernel expected positions and slots {list(x.shape[:2])} in "
                    f"torch.int64, found {list(index.shape)} in {index.dtype}"
                )
        self.check_cache(cache, x.shape[0], x.shape[1], mask)
        if mask.stride(-1) != 1:
            mask = mask.contiguous()
        states: Tensor = torch.ops.lantern_cpu.layers(
            *self._fixed, x.contiguous(), positions, slots, mask, cache.data, wanted
        )
        return states

    def check_cache(self, cache: KVCache, rows: int, queries: int, mask: Tensor) -> None:
        """Raises DecoderError where cache and mask [R, T, S] are not of these layers and rows."""
        size = self.width // self.heads
        shape = (self.count, 2, rows, self.heads, cache.capacity, size)
        if cache.data.shape != shape or cache.data.dtype != self.dtype:
            raise DecoderError(
                f"the CPU kernel expected a cache {list(shape)} in {self.dtype}, found "
                f"{list(cache.data.shape)} in {cache.data.dtype}"
            )
        of_mask = (rows, queries, cache.capacity)
        if mask.shape != of_mask or mask.dtype not in (torch.bool, torch.float32):
            raise DecoderError(
                f"the CPU kernel expected a mask {list(of_mask)} in bool or float32, found "
                f"{list(mask.shape)} in {mask.dtype}"
            )


def _scales(norm: Any) -> bool:
    """Whether it is a norm with weights."""
    return norm is not None and not isinstance(norm, nn.Identity)


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
