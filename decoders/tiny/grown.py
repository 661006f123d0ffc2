"""The embedded model at another size: its weights, grown so that it computes the same function.

Why: speculative decoding pays where a step waits for memory, and how large a model must be for that
depends on the machine. The small model lives in a processor's cache. Grown, it draws the same
images and reads as many bytes per step as a size asks for, so that the regime can be chosen, and
nothing but the regime changes. `load` trains nothing and stores no weights; the large embedded
model is trained on from there, as a trained model is a better start than random numbers.

The new states are the old ones with zeros behind them, and a new layer adds nothing at first:

* What writes to the states (`wo`, `w2`, the caption projection's last matrix, the embedding) writes
  zeros to the new places, and reads zeros from new heads and hidden units.
* What reads them (`wqkv`, `w13`, `output`) reads zeros there, so those columns may be random: the
  first step of the training then has a gradient for both sides.
* The root mean square over more entries is smaller by sqrt(old width / new width), which the
  norms' weights take back.
* A new layer is a copy of the one below it whose `wo` and `w2` are all but zero. (A matrix of
  nothing but zeros is refused on loading, as it mostly is a file that was not written to its end.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel
from decoders.models.eagle_net import EagleNet
from decoders.models.shape import TransformerConfig
from decoders.models.transformer import Transformer, cast
from decoders.tiny import bundle

SEED = 0  # of the entries that nothing reads yet
NOTHING = 1e-6  # of what a new layer writes: lost in the rounding of the states, 4e-3 in bfloat16
STD = 0.02  # of new entries that read zeros at first; that of a new transformer's


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str | None = None,
    drafters: bool = True,
    width: int = 384,
    layers: int = 16,
    ffn: int = 1024,
) -> ImageModel:
    """The embedded model of `checkpoint` (None: the shipped one) with a target of this size, and
    its drafter likewise. Heads keep their width, so there are more of them. Raises DecoderError on
    a size that it cannot be grown to."""
    given = bundle.load(device, dtype, checkpoint, drafters)
    exact = bundle.load("cpu", "float32", checkpoint, drafters)
    old = exact.target
    assert isinstance(old, Transformer)
    if width % old.cfg.head_dim:
        raise DecoderError(
            f"width must be a multiple of {old.cfg.head_dim}, the width of a head, found {width}"
        )
    config = replace(old.cfg, width=width, layers=layers, ffn=ffn, heads=width // old.cfg.head_dim)
    built = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        target = Transformer(config)
        grow(old, target)
        if drafters:
            net = EagleNet(config)
            grow_drafter(exact.drafters["eagle"], net)
            built["eagle"] = cast(net.eval().requires_grad_(False), given.device, given.dtype)
    size = hashlib.sha256(f"{width} {layers} {ffn} {SEED}".encode()).hexdigest()
    return replace(
        given,
        name="tiny_grown",
        target=cast(target.eval().requires_grad_(False), given.device, given.dtype),
        weights_sha256=given.weights_sha256 | {"size": size},
        drafters=built,
    )


def places(old: int, new: int) -> dict[int, int]:
    """Where old layers go among the new ones, spread evenly: {new index: old index}."""
    if old == 1:
        return {0: 0}
    return {round(i * (new - 1) / (old - 1)): i for i in range(old)}


@torch.no_grad()
def grow(old: Transformer, new: Transformer) -> None:
    """Fills `new` so that its logits are those of `old`. Raises DecoderError where it cannot."""
    check(old.cfg, new.cfg)
    width = new.cfg.width
    new.tok_embeddings.weight.copy_(padded(old.tok_embeddings.weight, (-1, width)))
    before: Any = old.cls_embedding
    after: Any = new.cls_embedding
    after.uncond_embedding.copy_(before.uncond_embedding)
    _fill(after.cap_proj.fc1, before.cap_proj.fc1.weight, std=STD)
    _fill(after.cap_proj.fc2, before.cap_proj.fc2.weight)
    _grow_norm(new.norm, old.norm)
    _fill(new.output, old.output.weight, std=STD)
    source = places(old.cfg.layers, new.cfg.layers)
    layers: Any = new.layers
    below = 0
    for index, layer in enumerate(layers):
        below = source.get(index, below)
        _grow_layer(layer, old.layers[below])
        if index not in source:
            layer.attention.wo.weight.normal_(std=NOTHING)
            layer.feed_forward.w2.weight.normal_(std=NOTHING)


@torch.no_grad()
def grow_drafter(old: EagleNet, new: EagleNet) -> None:
    """Fills `new` so that it predicts for a target that `grow` made what `old` did for the old
    target, whose states are the beginning of the new one's, with zeros behind."""
    check(old.cfg, new.cfg)
    narrow, width = old.cfg.width, new.cfg.width
    new.embed_tokens.weight.copy_(padded(old.embed_tokens.weight, (-1, width)))
    embedded, state = old.fc.weight.split(narrow, 1)  # [D, D] each
    halves = [padded(embedded, (width, width)), padded(state, (width, width))]
    new.fc.weight.copy_(torch.cat(halves, 1))  # [D', 2 D']
    new.fc.bias.copy_(padded(old.fc.bias, (width,)))
    _grow_layer(new.layers[0], old.layers[0])


def check(old: TransformerConfig, new: TransformerConfig) -> None:
    """Raises DecoderError where the one cannot become the other."""
    same = (
        "vocab", "grid", "prefix", "text_width", "conditioning", "head_dim", "group", "norm_eps",
    )  # fmt: skip
    unequal = [name for name in same if getattr(old, name) != getattr(new, name)]
    smaller = [n for n in ("width", "layers", "ffn") if getattr(old, n) > getattr(new, n)]
    if unequal or smaller:
        raise DecoderError(
            f"cannot grow {old.width} x {old.layers} into {new.width} x {new.layers}: "
            f"{', '.join(unequal + smaller)} must be "
            + ("the same" if unequal else "at least as large")
        )


def padded(old: Tensor, shape: Sequence[int]) -> Tensor:
    """`old` with zeros behind it up to `shape`; -1: as it is."""
    sizes = [o if n < 0 else n for o, n in zip(old.shape, shape, strict=True)]
    out = old.new_zeros(sizes)
    out[tuple(slice(size) for size in old.shape)] = old
    return out


def _fill(linear: nn.Linear, old: Tensor, parts: Sequence[int] = (1,), std: float = 0.0) -> None:
    """Every one of the stacked matrices [out, in], whose rows are as `parts`, has the old one at
    its upper left, and what is new random with `std`, or zero."""
    fresh = torch.randn_like(linear.weight) * std
    chunks, owns = (
        stacked.split([len(stacked) * part // sum(parts) for part in parts])
        for stacked in (fresh, old)
    )
    for chunk, own in zip(chunks, owns, strict=True):
        chunk[: own.shape[0], : own.shape[1]] = own
    linear.weight.copy_(fresh)


def _grow_norm(norm: Any, old: Any) -> None:
    if isinstance(old, nn.Identity):
        return
    narrow, width = len(old.weight), len(norm.weight)
    norm.weight.fill_(float(old.weight.mean()))
    norm.weight[:narrow] = old.weight
    norm.weight.mul_(math.sqrt(narrow / width))


def _grow_layer(layer: Any, old: Any) -> None:
    group = old.attention.heads // old.attention.kv_heads
    _fill(layer.attention.wqkv, old.attention.wqkv.weight, (group, 1, 1), STD)
    _fill(layer.attention.wo, old.attention.wo.weight)
    _fill(layer.feed_forward.w13, old.feed_forward.w13.weight, (1, 1), STD)
    _fill(layer.feed_forward.w2, old.feed_forward.w2.weight)
    _grow_norm(layer.attention_norm, old.attention_norm)
    _grow_norm(layer.ffn_norm, old.ffn_norm)
