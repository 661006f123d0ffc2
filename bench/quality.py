"""Quality of a decoder's images: what `metric=` selects, a `Scorer`.

Why a scorer and not fixed columns: the embedded scenes need the tiny CLIP, official models
Inception and ViT-B/32; the summary wants the figures and the name of their features.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from bench.prompts import Prompt

log = logging.getLogger(__name__)
NAN = math.nan


@dataclass(frozen=True)
class Scores:
    """The quality columns of summary.csv; NaN where a figure could not be had."""

    fid: float = NAN
    fid_lo: float = NAN
    fid_hi: float = NAN
    fid_features: str = ""
    kid: float = NAN
    precision: float = NAN
    recall: float = NAN
    clip: float = NAN
    clip_lo: float = NAN
    clip_hi: float = NAN


@dataclass(frozen=True)
class PreferenceRow:
    """How often CLIP prefers the right caption of two that differ in one attribute."""

    images: str  # the decoder's name, or "real scenes"
    n: int
    preference: float
    lo: float
    hi: float
    by_attribute: dict[str, float]


class Scorer(Protocol):
    """Figures of n images and the prompts they were drawn from."""

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> Scores:
        """images [n, 3, H, W] uint8. Raises MetricError where n is too small or an image is bad."""
        ...

    def preference(
        self, name: str, images: Tensor, prompts: Sequence[Prompt]
    ) -> PreferenceRow | None:
        """None where the prompts have no counterfactual."""
        ...

    def real(self, prompts: Sequence[Prompt]) -> Tensor | None:
        """The real images of the prompts [n, 3, H, W] uint8, where there are any."""
        ...


class ScenesScorer:
    """The tiny CLIP, and real scenes of the split `reference` to compare with."""

    def __init__(self, device: str, reference: int, cache_dir: str) -> None:
        """reference: how many real scenes; cache_dir: where their features are kept."""
        from metrics.features import NAME, ScenesClipFeatures, reference_features
        from metrics.scenes_clip import load

        self.name = NAME
        self.clip = load(device=device)
        self.extractor = ScenesClipFeatures(clip=self.clip).eval()
        self.reference = reference_features(self.extractor, reference, Path(cache_dir))

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> Scores:
        from metrics.clip import clip_score
        from metrics.features import extract
        from metrics.fid import quality

        found = quality(extract(self.extractor, images), self.reference, features=self.name)
        clip = clip_score(self.clip, images, [p.text for p in prompts]).mean
        return Scores(
            fid=found.fid.value,
            fid_lo=found.fid.lo,
            fid_hi=found.fid.hi,
            fid_features=self.name,
            kid=found.kid.value,
            precision=found.precision.value,
            recall=found.recall.value,
            clip=clip.value,
            clip_lo=clip.lo,
            clip_hi=clip.hi,
        )

    def preference(
        self, name: str, images: Tensor, prompts: Sequence[Prompt]
    ) -> PreferenceRow | None:
        from decoders.tiny.scenes import counterfactual
        from metrics.clip import attribute_preference

        places = [_place(prompt) for prompt in prompts]
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return None
        pairs = [counterfactual(split, index, seed) for split, seed, index in known]
        found = attribute_preference(self.clip, images, pairs)
        shares = {key: share for key, (share, _) in found.by_attribute.items()}
        return PreferenceRow(
            name, len(images), found.share.value, found.share.lo, found.share.hi, shares
        )

    def real(self, prompts: Sequence[Prompt]) -> Tensor | None:
        from decoders.tiny.scenes import scene_batch

        places = [_place(prompt) for prompt in prompts]
        known = [place for place in places if place is not None]
        if not known or len(known) < len(places):
            return None
        split, seed, _ = known[0]
        pixels = scene_batch(split, [index for *_, index in known], seed).images
        return (torch.from_numpy(pixels) * 255).round().to(torch.uint8)


def _place(prompt: Prompt) -> tuple[str, int, int] | None:
    """(split, seed, index) of a scene's prompt by its id, None for other prompts."""
    found = re.fullmatch(r"([a-z]+)-(\d+)-(\d{5,})", prompt.id)
    return (found[1], int(found[2]), int(found[3])) if found else None
