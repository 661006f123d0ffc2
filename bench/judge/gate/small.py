"""The case that the gate judges, and small random models on which it is enumerated.

The drafter of a small model is pulled towards its target, so that drafts are accepted and rejected
often: purely random weights hardly ever accept, and errors deep in a tree would stay unseen. A
drafter with a checkpoint fits no small model. Whether its code drafts as declared does not depend
on its weights, so its class is built with random ones.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from decoders.api import AcceptRule, Decoder, ImageModel, Sampling, TextFeatures, completed
from decoders.compose import DecoderSpec, PartSpec, build_decoder, build_part, resolve
from decoders.models.small import RandomTokenizer, random_model
from decoders.noise import Noise

WIDTH, LAYERS, HEADS = 16, 2, 2  # of the target; the drafter is as wide
DAMPING = 0.5  # scale of the layers' outputs, which the drafter cannot know
HEARING = 0.3  # weight of the previous feature in the drafter
SHAKE = 0.3  # random share of a rebuilt drafter's weights, in units of their own size
Sizes = tuple[int, int, int]  # V, grid, seed


@dataclass(frozen=True)
class RealModel:
    """What small models take over from the real one. codebook: its codes, of which k and top-k keep
    their share; dtype: that of images of many codes."""

    codebook: int = 1024
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class GateCase:
    """The composition to judge, the setting of sampling, and the real model."""

    spec: DecoderSpec
    sampling: Sampling
    real: RealModel = RealModel()

    def model(
        self, sizes: Sizes, knows: bool = True, dtype: torch.dtype = torch.float32
    ) -> ImageModel:
        """A small model, with a drafter under every name that the composition may ask for."""
        kwargs = {} if self.spec.drafter is None else self.spec.drafter.kwargs
        named = [value for value in kwargs.values() if isinstance(value, str)]
        names = tuple(dict.fromkeys(["eagle", *named]))
        return small_model(*sizes, names, knows, dtype)

    def filters(self, vocab: int) -> Sampling:
        """The sampling for so many codes: top-k keeps its share of them, at least two."""
        if not self.sampling.top_k:
            return self.sampling
        share = round(self.sampling.top_k * vocab / self.real.codebook)
        return replace(self.sampling, top_k=max(2, share))

    def decoder(self, model: ImageModel) -> Decoder:
        spec = small_spec(self.spec, model, self.real)
        decoder = build_decoder(model, spec, self.filters(model.target.vocab_size))
        if decoder.drafter is not None and checkpoints(self.spec.drafter):
            _shake(decoder.drafter, model)
        return decoder

    def rule(self, model: ImageModel) -> Any:
        """The composition's acceptance rule alone; None if it has none."""
        part = small_spec(self.spec, model, self.real).acceptance
        return None if part is None else completed(build_part(part, model), AcceptRule)

    def trial(self, sizes: Sizes, images: int) -> Trial:
        _, grid, seed = sizes
        model = self.model(sizes)
        noise = fresh_noise(images, grid * grid, torch.Generator().manual_seed(seed))
        return Trial(model, self.decoder(model), prompts(model, images, seed), noise)


class Trial(NamedTuple):
    """A composition on a small model, and what it decodes."""

    model: ImageModel
    decoder: Decoder
    text: TextFeatures
    noise: Noise


@dataclass(frozen=True)
class SmallTokenizer(RandomTokenizer):
    """With the raw codebook that `metric=raw` reads."""

    raw_codebook: Tensor


def small_model(
    vocab: int,
    grid: int,
    seed: int,
    drafters: tuple[str, ...] = ("eagle",),
    knows: bool = True,
    dtype: torch.dtype = torch.float32,
) -> ImageModel:
    """V = vocab codes, L = grid**2, on the CPU. knows: the drafter embeds codes as the target does,
    so that it predicts some of them."""
    model = random_model(vocab, grid, WIDTH, LAYERS, seed, dtype, heads=HEADS)
    target: Any = model.target
    net = model.drafters["eagle"]
    with torch.no_grad():
        for layer in [*target.layers, *net.layers]:
            layer.attention.wo.weight.mul_(DAMPING)
            layer.feed_forward.w2.weight.mul_(DAMPING)
        if knows:
            net.embed_tokens.weight.copy_(target.tok_embeddings.weight)
        eye = torch.eye(target.width)
        net.fc.weight.copy_(torch.cat([eye * target.width**0.5, eye * HEARING], 1))
    generator = torch.Generator().manual_seed(seed)
    raw = model.codebook * (0.5 + torch.rand(vocab, 1, generator=generator))
    tokenizer = SmallTokenizer(model.codebook, raw)
    return replace(model, tokenizer=tokenizer, drafters=dict.fromkeys(drafters, net))


def prompts(model: ImageModel, count: int, seed: int) -> TextFeatures:
    """`count` different random captions of different lengths, left-padded."""
    target: Any = model.target
    generator = torch.Generator().manual_seed(seed)
    shape = (count, target.prefix, target.cfg.text_width)
    pad = torch.randint(0, target.prefix, (count, 1), generator=generator)  # [B, 1]
    features = torch.randn(shape, generator=generator).to(model.dtype)
    return TextFeatures(features, torch.arange(target.prefix) >= pad)


def same_prompt(text: TextFeatures, count: int) -> TextFeatures:
    """One caption, `count` times."""
    return TextFeatures(text.features[:1].expand(count, -1, -1), text.mask[:1].expand(count, -1))


def fresh_noise(count: int, length: int, generator: torch.Generator) -> Noise:
    return Noise.of_keys(torch.randint(2**32, (count, 2), generator=generator), length)


def small_spec(spec: DecoderSpec, model: ImageModel, real: RealModel) -> DecoderSpec:
    """The composition with k scaled to the small codebook and its draft cut to what fits. An image
    of L codes has no use for more than L - 1 levels. A part's `exercised` settings are those under
    which small models run all of it (`decoders.api.Decoder`)."""

    def fitting(part: Any, *fits: Any) -> Any:
        if part is None:
            return None
        for fit in (*fits, lambda part, *_: getattr(resolve(part.target), "exercised", {})):
            part = PartSpec(part.target, {**part.kwargs, **fit(part, model, real)})
        return part

    return replace(
        spec,
        loop=fitting(spec.loop),
        acceptance=fitting(spec.acceptance, _scaled),
        tree=fitting(spec.tree, _shallow, _narrow),
        proposer=fitting(spec.proposer, _short, _shallow),
        drafter=fitting(_small_drafter(spec.drafter)),
    )


def options_of(part: PartSpec) -> Mapping[str, Any]:
    """Keywords of the part's class with their values, defaults included."""
    parameters = inspect.signature(resolve(part.target)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return defaults | part.kwargs


def _scaled(part: PartSpec, model: ImageModel, real: RealModel) -> dict[str, Any]:
    """k keeps its share of the codebook."""
    k, vocab = options_of(part).get("k"), model.target.vocab_size
    if not isinstance(k, int):
        return {}
    return {"k": min(max(1, round(k * vocab / real.codebook)), vocab - 1)}


def _limited(part: PartSpec, **most: int) -> dict[str, Any]:
    """Its integer options of these names, cut to what fits."""
    options = options_of(part)
    return {n: min(options[n], m) for n, m in most.items() if isinstance(options.get(n), int)}


def _shallow(part: PartSpec, model: ImageModel, _: RealModel) -> dict[str, Any]:
    """A draft no deeper than the image is long."""
    return _limited(part, depth=model.target.length - 1)


def _narrow(part: PartSpec, model: ImageModel, _: RealModel) -> dict[str, Any]:
    """A node leaves at least two codes undrafted. A tree of the likeliest nodes keeps at most half
    of its candidates, so that it has to prune."""
    widest, deepest = max(2, model.target.vocab_size - 2), model.target.length - 1
    options = options_of(part)
    if {"top_k", "nodes", "depth"} <= options.keys():
        depth, width = options["depth"], min(options["top_k"], widest)
        most = width + (depth - 1) * width**2
        return {"top_k": width, "nodes": min(options["nodes"], max(depth, most // 2))}
    if "choices" in options:
        paths = build_part(part, model).paths
        return {"choices": [[*p] for p in paths if len(p) <= deepest and max(p) < widest]}
    return {}


def _short(part: PartSpec, model: ImageModel, _: RealModel) -> dict[str, Any]:
    """A path no longer than the image, and at least two codes that are no candidates."""
    target, window = model.target, options_of(part).get("window")
    limited = _limited(part, candidates=max(2, target.vocab_size - 2))
    if not isinstance(window, int):
        return limited
    proposer = build_part(PartSpec(part.target, {**part.kwargs, **limited}), model)
    return {**limited, "window": min(window, target.length + proposer.nodes - proposer.depth)}


def checkpoints(part: PartSpec | None) -> dict[str, str]:
    """The options that name weights from outside the model: text where the class has a default of
    None, or the path of something that exists."""
    if part is None:
        return {}
    parameters = inspect.signature(resolve(part.target)).parameters
    optional = [name for name, option in parameters.items() if option.default is None]
    named = {name: value for name, value in part.kwargs.items() if isinstance(value, str)}
    return {n: value for n, value in named.items() if n in optional or Path(value).exists()}


def _small_drafter(part: PartSpec | None) -> PartSpec | None:
    """The drafter without its checkpoint. Options of its class that the checkpoint's config.json
    names keep their values. A drafter that runs the target's first layers leaves the last."""
    if part is None:
        return None
    outside = checkpoints(part)
    inside = options_of(part).keys() - outside.keys()
    kwargs = {name: value for name, value in part.kwargs.items() if name not in outside}
    for folder in outside.values():
        try:
            config = json.loads((Path(folder) / "config.json").read_text())
        except (OSError, ValueError):  # the drafter itself explains what is wrong with it
            continue
        sizes = config.items() if isinstance(config, dict) else ()
        plain = (bool, int, float, str)
        kwargs = {n: v for n, v in sizes if n in inside and isinstance(v, plain)} | kwargs
    return PartSpec(part.target, kwargs | _limited(part, layers=max(1, LAYERS - 1)))


def _shake(drafter: object, model: ImageModel) -> None:
    """Random weights for the modules of a drafter that was built without its checkpoint. The small
    model's own drafter is random already; weights shared with the target stay."""
    target: Any = model.target
    shared = {p.data_ptr() for p in target.parameters()} if isinstance(target, nn.Module) else set()
    shared |= {p.data_ptr() for net in model.drafters.values() for p in net.parameters()}
    generator = torch.Generator().manual_seed(0)
    for module in [drafter] if isinstance(drafter, nn.Module) else vars(drafter).values():
        for weight in module.parameters() if isinstance(module, nn.Module) else ():
            if weight.data_ptr() in shared or not weight.is_floating_point():
                continue
            size = float(weight.detach().float().pow(2).mean().sqrt())
            size = size or (weight.shape[-1] ** -0.5 if weight.ndim else 1.0)
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            with torch.no_grad():
                weight.add_(SHAKE * size * noise)
