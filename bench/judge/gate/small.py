"""Small random models on which every image or every draw can be enumerated, and the same
composition built on them.

The drafter of a small model is pulled towards its target, so that drafts are accepted and rejected
often: random weights alone hardly ever accept, and errors deep in a tree would stay unseen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.drafters import checkpoints, options_of, shake, small_drafter
from decoders.api import Decoder, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, PartSpec, build_decoder, build_part, resolve
from decoders.executed import executed
from decoders.models.eagle_net import EagleNet
from decoders.models.small import random_model
from decoders.models.transformer import Transformer
from decoders.noise import Noise

WIDTH, LAYERS = 16, 2  # of the target; the drafter is as wide
HEADS, NATIVE_HEADS = 2, 1  # the CPU kernel's are at least 16 wide
DAMPING = 0.5  # scale of the layers' outputs: what the drafter cannot know
HEARING = 0.3  # weight of the previous feature in the drafter


@dataclass(frozen=True)
class Real:
    """What the small models take over from the real one. codebook: its codes, to which k and top-k
    are taken relative; native: does it run in the CPU kernel?"""

    codebook: int = 1024
    native: bool = False


@dataclass(frozen=True)
class SmallTokenizer:
    """A codebook, and the raw one that `metric=raw` asks for."""

    codebook: Tensor
    raw_codebook: Tensor

    def decode(self, codes: Tensor) -> Tensor:
        """[B, L] -> grey images [B, 3, S, S]: the first latent coordinate is the brightness."""
        side = int(codes.shape[1] ** 0.5)
        grey = self.codebook[codes][..., 0].sigmoid().view(len(codes), 1, side, side)
        return grey.expand(-1, 3, -1, -1)


def small_model(
    vocab: int,
    grid: int,
    seed: int,
    drafters: tuple[str, ...] = ("eagle",),
    knows: bool = True,
    native: bool = False,
) -> ImageModel:
    """V = vocab codes, L = grid**2, float32, on the CPU. knows: does the drafter embed codes as the
    target does, so that it half knows what it will say? native: in the CPU kernel."""
    heads = NATIVE_HEADS if native else HEADS
    model = random_model(vocab=vocab, grid=grid, width=WIDTH, layers=LAYERS, seed=seed, heads=heads)
    target, net = model.target, model.drafters["eagle"]
    if not isinstance(target, Transformer) or not isinstance(net, EagleNet):
        raise TypeError("the gate's small models are LlamaGen targets with EAGLE drafters")
    width = target.width
    with torch.no_grad():
        for layer in [*target.layers, *net.layers]:
            layer.attention.wo.weight.mul_(DAMPING)
            layer.feed_forward.w2.weight.mul_(DAMPING)
        if knows:
            net.embed_tokens.weight.copy_(target.tok_embeddings.weight)
        eye = torch.eye(width)
        net.fc.weight.copy_(torch.cat([eye * width**0.5, eye * HEARING], 1))
    generator = torch.Generator().manual_seed(seed)
    raw = model.codebook * (0.5 + torch.rand(vocab, 1, generator=generator))
    tokenizer = SmallTokenizer(model.codebook, raw)
    made = replace(model, tokenizer=tokenizer, drafters=dict.fromkeys(drafters, net))
    return executed(made, "cpu") if native else made  # the weights are final


def prompts(model: ImageModel, count: int, seed: int) -> TextFeatures:
    """`count` different random captions of different lengths, left-padded."""
    target = model.target
    if not isinstance(target, Transformer):
        raise TypeError("the gate's small models are LlamaGen targets")
    generator = torch.Generator().manual_seed(seed)
    shape = (count, target.prefix, target.cfg.text_width)
    pad = torch.randint(0, target.prefix, (count, 1), generator=generator)  # [B, 1]
    return TextFeatures(torch.randn(shape, generator=generator), torch.arange(target.prefix) >= pad)


def same_prompt(text: TextFeatures, count: int) -> TextFeatures:
    """One caption, `count` times."""
    return TextFeatures(text.features[:1].expand(count, -1, -1), text.mask[:1].expand(count, -1))


def fresh_noise(count: int, length: int, generator: torch.Generator) -> Noise:
    return Noise.of_keys(torch.randint(2**32, (count, 2), generator=generator), length)


def drafter_names(spec: DecoderSpec) -> tuple[str, ...]:
    """Names under which the composition looks for drafter weights."""
    named = (
        []
        if spec.drafter is None
        else [v for v in spec.drafter.kwargs.values() if isinstance(v, str)]
    )
    return tuple(dict.fromkeys(["eagle", *named]))


def small_spec(spec: DecoderSpec, model: ImageModel, real: Real) -> DecoderSpec:
    """The composition with k scaled to the small codebook, and its tree cut to what fits: an image
    of L codes has no use for more than L - 1 levels (the last one's next code lies past its
    end)."""
    return replace(
        spec,
        loop=_exercised(spec.loop),
        acceptance=_scaled_rule(spec.acceptance, model.target.vocab_size, real.codebook),
        tree=_fitting_tree(spec.tree, model),
        proposer=_fitting_window(spec.proposer, model),
        drafter=small_drafter(spec.drafter, LAYERS),
    )


def small_sampling(sampling: Sampling, vocab: int, real: Real) -> Sampling:
    """top-k keeps its share of the codebook (at least two codes)."""
    if not sampling.top_k:
        return sampling
    return replace(sampling, top_k=max(2, round(sampling.top_k * vocab / real.codebook)))


def build_small(spec: DecoderSpec, sampling: Sampling, model: ImageModel, real: Real) -> Decoder:
    vocab = model.target.vocab_size
    made = build_decoder(
        model, small_spec(spec, model, real), small_sampling(sampling, vocab, real)
    )
    drafter = getattr(made, "drafter", None)
    if drafter is not None and checkpoints(spec.drafter):
        shake(drafter, model)
    return made


def small_rule(spec: DecoderSpec, model: ImageModel, real: Real) -> Any:
    """The composition's acceptance rule alone; None where it has none."""
    part = small_spec(spec, model, real).acceptance
    return None if part is None else build_part(part, model)


def _with(part: PartSpec, **changes: Any) -> PartSpec:
    return PartSpec(part.target, {**part.kwargs, **changes})


def _exercised(part: PartSpec) -> PartSpec:
    """The loop with the settings under which small random models run all of it, where it says so
    (`decoders.api.Decoder`)."""
    return _with(part, **getattr(resolve(part.target), "exercised", {}))


def _scaled_rule(part: PartSpec | None, vocab: int, codebook: int) -> PartSpec | None:
    if part is None or not isinstance(k := options_of(part).get("k"), int):
        return part
    return _with(part, k=min(max(1, round(k * vocab / codebook)), vocab - 1))


def _fitting_tree(part: PartSpec | None, model: ImageModel) -> PartSpec | None:
    """No deeper than the image is long; a node leaves at least two codes undrafted, and a tree of
    the likeliest nodes keeps at most half of its candidates, so that pruning is at work."""
    if part is None:
        return None
    widest, deepest = max(2, model.target.vocab_size - 2), model.target.length - 1
    options = options_of(part)
    if isinstance(options.get("depth"), int):
        part = _with(part, depth=min(options["depth"], deepest))
    if {"top_k", "nodes", "depth"} <= options.keys():
        depth, width = part.kwargs["depth"], min(options["top_k"], widest)
        most = width + (depth - 1) * width**2
        return _with(part, top_k=width, nodes=min(options["nodes"], max(depth, most // 2)))
    if "choices" in options:
        paths = [p for p in build_part(part, model).paths if len(p) <= deepest and max(p) < widest]
        return _with(part, choices=[list(p) for p in paths])
    return part


def _fitting_window(part: PartSpec | None, model: ImageModel) -> PartSpec | None:
    """A window no longer than the image, and at least two codes that are no candidates."""
    if part is None:
        return None
    options, fitting = options_of(part), {}
    most = {"window": model.target.length, "candidates": max(2, model.target.vocab_size - 2)}
    for name, limit in most.items():
        if isinstance(options.get(name), int):
            fitting[name] = min(options[name], limit)
    return _with(part, **fitting)
