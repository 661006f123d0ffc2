"""The decoder that the gate judges, rebuilt on small random models.

A drafter with a checkpoint fits no small model. Whether its code drafts as declared does not depend
on its weights, so its class is built with those that it begins its training with.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gate.reference import teacher_probs
from decoders.api import Decoder, Generation, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, PartSpec, build_decoder, build_part, resolve, verifier_of
from decoders.models.random_weights import (
    SMALL_LAYERS,
    random_noise,
    random_prompts,
    same_prompt,
    small_model,
)
from decoders.noise import Noise
from decoders.spec import PARTS

POSITIONS = 2**10  # more than any small image has
NODES = 8  # of a static tree for two or three codes: then all ways to an image can be followed
Sizes = tuple[int, int, int]  # V, grid, seed


@dataclass(frozen=True)
class RealModel:
    """What small models take from the run's. codebook: its codes, of which k and top-k keep their
    share; length: codes of an image; dtype: of images of many codes; kernel: whether the CPU kernel
    multiplies for these."""

    codebook: int = 1024
    length: int = 256
    dtype: torch.dtype = torch.bfloat16
    kernel: bool = False

    @staticmethod
    def of(model: ImageModel) -> RealModel:
        kernel = model.mode == "compile" and model.device.type == "cpu"
        return RealModel(model.target.vocab_size, model.target.length, model.dtype, kernel)


@dataclass(frozen=True)
class GateSizes:
    """How much the gate looks at."""

    batches: tuple[int, int] = (12, 13)  # V, grid of images that are decoded in other batches
    visited: Sizes = (12, 16, 17)  # of long images, whose nodes are visited
    positions: Sizes = (2, 12, 3)  # of images whose positions are enumerated
    late: Sizes = (2, 16, 3)  # of longer ones, of whose positions those are that the others lack
    guided: Sizes = (3, 8, 3)  # of images with guidance and filters, some of whose positions are
    greedy: int = 32  # most rows of images at temperature 0
    node_codes: int = 2048  # most codes of nodes as large as the real model's
    codes: int = 1024  # most codes of sampled images with many codes
    branches: int = 2**15  # nodes of their drafts
    drawn: int = 102_400  # sampled images of few codes


@dataclass(frozen=True)
class GateCase:
    """The composition to judge, and the setting of sampling. levels: most that drafts have on small
    models, where the images allow it. narrow: of a level's nodes in a static tree one has children,
    the first one."""

    spec: DecoderSpec
    sampling: Sampling
    real: RealModel = RealModel()
    sizes: GateSizes = GateSizes()
    levels: int = POSITIONS
    narrow: bool = False

    def model(
        self, sizes: Sizes, dtype: torch.dtype = torch.float32, row_end: bool = False
    ) -> ImageModel:
        """A small model, with a drafter under every name that the composition may ask for."""
        kwargs = {} if self.spec.drafter is None else self.spec.drafter.kwargs
        named = [value for value in kwargs.values() if isinstance(value, str)]
        return small_model(*sizes, ("eagle", *named), dtype, row_end)

    @property
    def has_rule(self) -> bool:
        """Whether a rule judges drafts one by one: a verifier judges them whole."""
        part = self.spec.acceptance
        return part is not None and not hasattr(resolve(part.target), "verify")

    def filters(self, vocab: int) -> Sampling:
        """The sampling for so many codes: top-k keeps its share of them, at least three where that
        leaves one out: two would show no error of a correction."""
        if not self.sampling.top_k:
            return self.sampling
        share = round(self.sampling.top_k * vocab / self.real.codebook)
        return replace(self.sampling, top_k=max(2, min(3, vocab - 1), share))

    def decoder(self, model: ImageModel) -> Decoder:
        sampling = self.filters(model.target.vocab_size)
        return build_decoder(model, self.small_spec(model), sampling)

    def rule(self, model: ImageModel) -> Any:
        """The composition's acceptance rule alone; None if it has none."""
        verifier = verifier_of(model, self.small_spec(model))
        return None if verifier is None else verifier.rule

    def small_spec(self, model: ImageModel) -> DecoderSpec:
        """The composition with its draft cut to what fits a small model, and k of its rule scaled
        to the codes. A part's `exercised` settings are those under which small models run all of it
        (`decoders.api.Decoder`)."""
        parts, vocab = dict[str, Any](), model.target.vocab_size
        for name in PARTS:
            part: PartSpec | None = getattr(self.spec, name)
            if part is None:
                continue
            part, changes = _small_drafter(part) if name == "drafter" else part, dict[str, Any]()
            if name not in ("loop", "acceptance"):
                changes = _fitted(part, model, self.levels, self.narrow)
            elif name == "acceptance" and isinstance(k := options_of(part).get("k"), int):
                changes["k"] = min(max(1, round(k * vocab / self.real.codebook)), vocab - 1)
            exercised = getattr(resolve(part.target), "exercised", {})
            parts[name] = PartSpec(part.target, {**part.kwargs, **changes, **exercised})
        return replace(self.spec, **parts)

    def trial(self, sizes: Sizes, images: int, row_end: bool = False) -> Trial:
        """The composition on a small model, with so many different captions."""
        return self.trial_on(self.model(sizes, row_end=row_end), images, sizes[-1])

    def trial_on(self, model: ImageModel, images: int, seed: int) -> Trial:
        generator = torch.Generator().manual_seed(seed)
        noise = random_noise(images, model.target.length, generator)
        text, sampling = random_prompts(model, images, seed), self.filters(model.target.vocab_size)
        return Trial(model, self.decoder(model), sampling, text, noise)


class Trial(NamedTuple):
    """A composition on a small model, its sampling there, and what it decodes."""

    model: ImageModel
    decoder: Decoder
    sampling: Sampling
    text: TextFeatures
    noise: Noise

    def of_one_caption(self, rows: int) -> Trial:
        """The same with so many rows of its first caption."""
        return self._replace(text=same_prompt(self.text, rows))

    def generate(self, **options: Any) -> Generation:
        return self.decoder.generate(self.text, self.noise, **options)

    def sample(self, generator: torch.Generator, first: float | None = None) -> Generation:
        """Images by new noise, with all nodes that were visited. first: the number that draws the
        first code of each."""
        length = self.model.target.length
        noise = random_noise(self.text.batch, length, generator)
        if first is not None:
            noise.uniform[:, 0] = first
        return self.decoder.generate(self.text, noise, pairs=2 * length)

    def ar_probs(self, codes: Tensor) -> Tensor:
        """AR's law of every code of images of these captions, [B, L, V] float64."""
        return teacher_probs(self.model, self.text, codes, self.sampling)


def options_of(part: PartSpec) -> Mapping[str, Any]:
    """Keywords of the part's class with their values, defaults included."""
    parameters = inspect.signature(resolve(part.target)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return defaults | part.kwargs


def _fitted(part: PartSpec, model: ImageModel, levels: int, narrow: bool) -> dict[str, Any]:
    """Options by name, cut to what fits. An image of L codes has no use for more than L - 1 levels,
    a path no longer than the image. A node leaves at least two codes undrafted. A tree of the
    likeliest nodes keeps at most half of its candidates, so that it has to prune, and a static one
    for few codes its likeliest nodes. A drafter that runs the target's first layers leaves the
    last."""
    options, deepest = options_of(part), min(levels, model.target.length - 1)
    widest = max(2, model.target.vocab_size - 2)
    most = {
        "depth": deepest,
        "levels": deepest,
        "candidates": widest,
        "layers": max(1, SMALL_LAYERS - 1),
    }
    cut = {n: min(options[n], m) for n, m in most.items() if isinstance(options.get(n), int)}
    if {"top_k", "nodes", "depth"} <= options.keys():
        width = min(options["top_k"], widest)
        candidates = width + (cut["depth"] - 1) * width**2
        cut |= {"top_k": width, "nodes": min(options["nodes"], max(cut["depth"], candidates // 2))}
    if "choices" in options:
        paths = build_part(part, model).paths
        fitting = [
            [*p]
            for p in paths
            if len(p) <= deepest and max(p) < widest and not (narrow and any(p[:-1]))
        ]
        likeliest = sorted(fitting, key=lambda p: (sum(p), len(p)))
        cut["choices"] = likeliest[: max(NODES, 2**model.target.vocab_size)]
    if isinstance(window := options.get("window"), int):
        proposer = build_part(PartSpec(part.target, {**part.kwargs, **cut}), model)
        cut["window"] = min(window, deepest + 1 + proposer.nodes - proposer.depth)
    return cut


def checkpoints(part: PartSpec | None) -> dict[str, str]:
    """The options that name weights from outside the model: text where the class has a default of
    None, or the path of something that exists."""
    if part is None:
        return {}
    defaults = options_of(PartSpec(part.target))
    named = {name: value for name, value in part.kwargs.items() if isinstance(value, str)}
    return {n: v for n, v in named.items() if defaults.get(n, "") is None or Path(v).exists()}


def _small_drafter(part: PartSpec) -> PartSpec:
    """The drafter without its checkpoint. Options of its class that the checkpoint's config.json
    names keep their values."""
    outside = checkpoints(part)
    inside = options_of(part).keys() - outside.keys()
    kwargs = {name: value for name, value in part.kwargs.items() if name not in outside}
    for folder in outside.values():
        with suppress(OSError, ValueError):  # the drafter itself explains what is wrong with it
            config = json.loads((Path(folder) / "config.json").read_text())
            sizes = config.items() if isinstance(config, dict) else ()
            plain = (bool, int, float, str)
            kwargs = {n: v for n, v in sizes if n in inside and isinstance(v, plain)} | kwargs
    return PartSpec(part.target, kwargs)
