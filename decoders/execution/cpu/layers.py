"""Modules of the CPU kernel (`kernel.cpp`) that take the place of a net's: all layers of a
transformer are one torch operator, and every other matrix is one.

They compute what `decoders.models.nets.transformer` computes (RMSNorm, rotation, append to the
cache, attention over the visible slots, SwiGLU; Touvron et al., 2302.13971), with sums and the
residual stream in float32 whatever the net's dtype. Their weights are packed copies, so they are
made once the weights are final, for decoding only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.cache import KVCache, zeros
from decoders.execution.cpu.library import load, missing
from decoders.models.nets.block import BlockNet
from decoders.models.nets.body import BodyNet
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.flash import FlashTransformer
from decoders.models.nets.transformer import Transformer

LAYERED = Transformer, EagleNet, BlockNet  # nets whose method `stack` runs all of their layers
LANES = 16  # outputs of a packed panel
HEAD_WIDTHS = (16, 32, 64, 128)  # widths of a head
KERNEL_DTYPES = (torch.bfloat16, torch.float32)
MOST_WEIGHT_BYTES = 2 * 2**30  # of more weights a second, packed copy would take too much memory


def reason(net: Any) -> str | None:
    """Why the kernel cannot run the layers of a target or drafter here; None where it can."""
    layers_it_runs = Transformer.stack, EagleNet.stack, FlashTransformer.stack, BlockNet.stack
    if not isinstance(net, LAYERED) or type(net).stack not in layers_it_runs:
        return f"it runs the layers of decoders.models.nets.transformer, here {type(net).__name__}"
    layers: Any = net.layers
    config, weight = net.config, layers[0].attention.wo.weight
    if config.qk_norm:
        return "it has no norm of queries and keys"
    size = sum(p.nbytes for p in layers.parameters())
    if size > MOST_WEIGHT_BYTES:
        return f"it keeps a second copy of the weights, {size / 2**30:.1f} GiB here"
    if weight.device.type != "cpu":
        return f"it runs on CPUs, the model is on {weight.device.type}"
    if weight.dtype not in KERNEL_DTYPES:
        return f"it computes in bfloat16 and float32, the model in {weight.dtype}"
    if config.head_dim not in HEAD_WIDTHS:
        return f"heads are {' or '.join(map(str, HEAD_WIDTHS))} wide, here {config.head_dim}"
    if config.width % LANES or config.ffn % LANES:
        return f"widths are multiples of {LANES}, here {config.width} and {config.ffn}"
    return missing()


def layered(net: Any) -> Any:
    """Where a drafter's net has layers that the kernel may run: the net or its body, or None."""
    body = net.body if isinstance(net, BodyNet) else net
    return body if isinstance(body, LAYERED) else None


def swap_layers(net: Any) -> None:
    """Replaces the layers of a Transformer, EagleNet or BlockNet that the kernel can run
    (`reason`), and the matrices behind or before them: a target's head, whose logits are then
    float32, or ``fc`` and what makes keys and values of a context."""
    if isinstance(net, FlashTransformer):
        net.runs = [PackedLayers(net, part) if len(part) else None for part in net.parts()]
        vertical: Any = net.vertical
        vertical.output = KernelLinear(vertical.output, net.output.weight.dtype, wide=True)
        if net.gate is not None:
            swap_matrices(net.gate, net.output.weight.dtype)
    else:
        net.stack = PackedLayers(net)
    if isinstance(net, BlockNet):
        weights = net.context_weights()
        merged = nn.Linear(weights.shape[1], len(weights), bias=False, device="meta")
        merged.weight = nn.Parameter(weights, requires_grad=False)
        net.project = KernelLinear(merged, weights.dtype)
    name = "output" if isinstance(net, Transformer) else "fc"
    if isinstance(linear := getattr(net, name), nn.Linear):  # else a drafter shares its target's
        setattr(net, name, KernelLinear(linear, linear.weight.dtype, wide=name == "output"))


def swap_matrices(net: nn.Module, dtype: torch.dtype) -> None:
    """Replaces every nn.Linear of a net, but those of layers that are replaced, by a KernelLinear
    with weights in `dtype`."""
    every: list[Any] = [*net.modules()]
    stacks = [part for part in every if isinstance(vars(part).get("stack"), PackedLayers)]
    within = {module for part in stacks for module in part.layers.modules()}
    for parent in every:
        for name, child in [*parent.named_children()]:
            fits = type(child) is nn.Linear and child not in within and child.in_features % 2 == 0
            if fits and child.weight.dtype in KERNEL_DTYPES:
                setattr(parent, name, KernelLinear(child, dtype))


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


class KernelLinear(nn.Module):
    """An nn.Linear whose product the kernel computes, with weights in `dtype`. The result has the
    dtype of the input; with `wide` it is float32, as the sums are. Raises DecoderError where the
    number of inputs is odd.

    ``weight`` and ``bias`` stay those of the linear layer, for whoever reads them.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, wide: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.dtype, self.wide = linear.weight, linear.bias, dtype, wide
        self.outputs, self.inputs = linear.weight.shape
        if self.inputs % 2:
            raise DecoderError(
                f"the CPU kernel expected an even number of inputs, found weights "
                f"{[*self.weight.shape]}; give them a column of zeros, or use torch.nn.Linear"
            )
        self.panels = packed(self.weight.to(dtype))
        self.added = None if self.bias is None else self.bias.detach().float().clone()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; DecoderError for another width."""
        rows, wide = x.to(self.dtype), self.wide or x.dtype == torch.float32
        check(rows, self.inputs, self.dtype)
        product: Tensor = torch.ops.lantern_cpu.linear(
            self.panels, self.added, self.outputs, rows.contiguous(), wide
        )
        return product if wide else product.to(x.dtype)


class PackedLayers:
    """The layers of a Transformer or a drafter over one cache, and a target's norm after them:
    called as their method `stack`. The weights are read once. part: some of a net's layers,
    without the norm."""

    def __init__(self, net: Any, part: Any = None) -> None:
        config, layers = net.config, list(net.layers if part is None else part)
        self.count, self.width, self.heads = len(layers), config.width, config.heads
        self.dtype = layers[0].attention.wo.weight.dtype
        panels = [packed(weight) for layer in layers for weight in _matrices(layer)]
        together = zeros((sum(map(len, panels)),), self.dtype, panels[0].device)
        torch.cat(panels, out=together)
        whole = part is None and isinstance(net, Transformer)
        last = net.norm if whole else None  # a drafter's is another norm
        parts = [one for layer in layers for one in (layer.attention_norm, layer.ffn_norm)]
        scales = [one.weight.detach() for one in (*parts, last) if _scales(one)]
        tensors = together, torch.stack(scales), torch.view_as_real(net.rope).contiguous()
        sizes = self.count, self.heads, config.ffn, float(config.norm_eps)
        self._fixed = *tensors, *sizes, _scales(parts[0]), _scales(last)

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
