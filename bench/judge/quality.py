"""Quality of a decoder's images: what `metric=` selects, a `Scorer`.

Why a scorer and not fixed columns: the embedded scenes need the tiny CLIP, official models
Inception, VGG16 and ViT-B/32; the summary wants the figures and the names of their features.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from bench.console import progress
from bench.errors import ConfigError
from bench.prompts import Prompt

if TYPE_CHECKING:
    from metrics.features import ScenesClipFeatures
    from metrics.images import Images
    from metrics.kept_features import KeptFeatures
    from metrics.official.papers import Figure
    from metrics.scenes_clip import ScenesClip

log = logging.getLogger(__name__)
NAN = math.nan
Drawn = Tensor | Sequence[Path]  # images [n, 3, H, W] uint8, or their files: read batch by batch


@dataclass(frozen=True)
class Scores:
    """The quality columns of summary.csv; NaN where a figure could not be had.

    `..._features`: what the figures were made with; "" for the same as FID's. clip and hps: 100
    cos, the mean over images; clip_each: of every image, in their order; protocol: how they were
    measured, in lines that a record of the run repeats (`bench.share.protocol`).
    """

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
    clip_each: tuple[float, ...] = ()
    hps: float = NAN
    prc_features: str = ""
    clip_features: str = ""
    hps_features: str = ""
    protocol: dict[str, str] = field(default_factory=dict)


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

    def score(self, images: Drawn, prompts: Sequence[Prompt]) -> Scores:
        """Raises MetricError where there are too few images or one is bad."""
        ...

    def preference(
        self, name: str, images: Drawn, prompts: Sequence[Prompt]
    ) -> PreferenceRow | None:
        """None where the prompts have no counterfactual."""
        ...

    def real(self, prompts: Sequence[Prompt]) -> Tensor | None:
        """The real images of the prompts [n, 3, H, W] uint8, where there are any."""
        ...


FEATURES = "features"  # folder of a run that workers keep features in


def with_kept_features(scorer: Scorer, folder: Path, images: Sequence[Path] | None = None) -> None:
    """Lets a scorer use the features that workers have kept in the run's folder, if it can.
    images: keep theirs too."""
    place, keep = folder / FEATURES, getattr(scorer, "keep_features", None)
    if keep is None or (images is None and not place.is_dir()):
        return
    keep(place)
    if images is not None and len(images) > 1:  # one alone is left to whoever judges all
        scorer.extract(images)  # type: ignore[attr-defined]


class ScenesScorer:
    """The tiny CLIP, and real scenes of the split `reference` to compare with."""

    def __init__(self, device: str, reference: int, cache_dir: str) -> None:
        """reference: how many real scenes; cache_dir: where their features are kept."""
        from metrics.features import NAME

        self.name = NAME
        self.device, self.count, self.cache_dir = device, reference, Path(cache_dir)
        self.kept: KeptFeatures | None = None

    def keep_features(self, folder: Path) -> None:
        """From now on features are read from, and kept in, a folder."""
        from metrics.kept_features import KeptFeatures

        self.kept = KeptFeatures(folder)

    def extract(self, images: Drawn) -> Tensor:
        """Features of images [n, E]."""
        from metrics.features import extract
        from metrics.images import ImageSet

        drawn = _streamed(images)
        if self.kept is None or not isinstance(drawn, ImageSet):
            return extract(self.extractor, drawn)
        return self.kept.extract(self.extractor, drawn, self.clip.sha256)

    # Made with the first images: a scorer is built before the run, whose memory is measured.

    @cached_property
    def clip(self) -> ScenesClip:
        from metrics.scenes_clip import load

        return load(device=self.device)

    @cached_property
    def extractor(self) -> ScenesClipFeatures:
        from metrics.features import ScenesClipFeatures

        return ScenesClipFeatures(clip=self.clip).eval()

    @cached_property
    def reference(self) -> Tensor:
        from metrics.features import reference_features

        return reference_features(self.extractor, self.count, self.cache_dir)

    def score(self, images: Drawn, prompts: Sequence[Prompt]) -> Scores:
        from metrics.clip import clip_score
        from metrics.fid import quality

        captions = [p.text for p in prompts]
        self.clip.check(captions)  # before the features, which take the time
        drawn = _streamed(images)
        found = quality(self.extract(images), self.reference, features=self.name)
        clip = clip_score(self.clip, drawn, captions)
        return Scores(
            fid=found.fid.value,
            fid_lo=found.fid.lo,
            fid_hi=found.fid.hi,
            fid_features=self.name,
            kid=found.kid.value,
            precision=found.precision.value,
            recall=found.recall.value,
            clip=clip.mean.value,
            clip_lo=clip.mean.lo,
            clip_hi=clip.mean.hi,
            clip_each=tuple(clip.per_image.tolist()),
            protocol=self.protocol,
        )

    @cached_property
    def protocol(self) -> dict[str, str]:
        """What a record says of how these figures were made."""
        from metrics.features import LAYER, SPLIT, reference_hash

        return {
            "crop": "none",
            "resize": "none",
            "antialias": "none",
            "network": f"{self.name} ({LAYER})",
            "network_sha256": self.clip.sha256,
            "reference": f"{self.count} scenes of the split {SPLIT}",
            "reference_sha256": reference_hash(self.count),
            "clip_network": self.name,
            "clip_sha256": self.clip.sha256,
            "clip_caption": "alone",
        }

    def preference(
        self, name: str, images: Drawn, prompts: Sequence[Prompt]
    ) -> PreferenceRow | None:
        from decoders.tiny.scenes import counterfactual
        from metrics.clip import attribute_preference

        places = [_place(prompt) for prompt in prompts]
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return None
        pairs = [counterfactual(split, index, seed) for split, seed, index in known]
        found = attribute_preference(self.clip, _streamed(images), pairs)
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


class CocoScorer:
    """The papers' protocol (METHODS section 5) against a folder of real images."""

    def __init__(
        self,
        device: str,
        reference: str | None,
        cache_dir: str,
        weights: Mapping[str, str | None],
        size: int = 256,
        batch: int = 64,
        whole: bool = False,
        hps: bool = False,
    ) -> None:
        """reference: folder; cache_dir: where its features are kept; weights: files by name, and
        `folder`; size: side of the centre crop; whole: precision and recall on whole images, as the
        released script has them; hps: also HPSv2.1.

        Raises ConfigError without a reference, MetricError for an empty one and for missing
        weights; the networks are loaded with the first images.
        """
        from metrics.images import image_files
        from metrics.official.papers import Evaluation

        if reference is None:
            raise ConfigError("metric=coco needs a folder of real images: metric.reference=DIR")
        files = dict(weights)
        folder = files.pop("folder", None)
        self.reference = image_files(Path(reference).expanduser())
        self.shares = "precision_recall_whole" if whole else "precision_recall"
        self.evaluation = Evaluation(
            ["fid", "kid", self.shares, "clip", *["hps"] * hps],
            weights=files,
            folder=None if folder is None else Path(folder),
            device=device,
            size=size,
            batch=batch,
            cache_dir=Path(cache_dir),
            progress=progress,
        )

    def keep_features(self, folder: Path) -> None:
        """From now on features are read from, and kept in, a folder."""
        from metrics.kept_features import KeptFeatures

        self.evaluation.kept = KeptFeatures(folder)

    def extract(self, images: Sequence[Path]) -> None:
        """Extracts the features of files."""
        self.evaluation.extract(tuple(images))

    def score(self, images: Drawn, prompts: Sequence[Prompt]) -> Scores:
        source = images if isinstance(images, Tensor) else tuple(images)
        captions = [p.text for p in prompts]
        figures = self.evaluation.figures(source, captions, self.reference)
        found = {(f.metric, f.key): f for f in figures}
        fid, clip = found["fid", "fid"], found["clip", "score"]
        precision, recall = (found[self.shares, key] for key in ("precision", "recall"))
        hps = found.get(("hps", "score"))
        return Scores(
            fid=fid.value.value,
            fid_lo=fid.value.lo,
            fid_hi=fid.value.hi,
            fid_features=fid.features,
            kid=found["kid", "kid"].value.value,
            precision=precision.value.value,
            recall=recall.value.value,
            prc_features=precision.features,
            clip=clip.value.value,
            clip_lo=clip.value.lo,
            clip_hi=clip.value.hi,
            clip_each=clip.each,
            clip_features=clip.features,
            hps=hps.value.value if hps else NAN,
            hps_features=hps.features if hps else "",
            protocol=self._protocol(fid, clip),
        )

    def _protocol(self, fid: Figure, clip: Figure) -> dict[str, str]:
        """What a record says of how these figures were made."""
        from metrics.official.resize import RESIZINGS

        resizing = RESIZINGS["clean"]
        return {
            "crop": fid.preparation,
            "resize": resizing.filter,
            "antialias": resizing.antialiased,
            "network": fid.features,
            "network_sha256": fid.weights.sha256,
            "reference": f"{fid.reference} images",
            "reference_sha256": self.reference_sha256,
            "clip_network": clip.features,
            "clip_sha256": clip.weights.sha256,
            "clip_caption": clip.note,
        }

    @cached_property
    def reference_sha256(self) -> str:
        """Of the reference pictures' bytes, whatever their files are called."""
        from metrics.images import files_hash

        return files_hash(self.reference)

    def preference(
        self, name: str, images: Drawn, prompts: Sequence[Prompt]
    ) -> PreferenceRow | None:
        """None: captions of real images have no counterfactual."""
        return None

    def real(self, prompts: Sequence[Prompt]) -> Tensor | None:
        """None: a prompt has no image of its own here."""
        return None


def _streamed(images: Drawn) -> Images:
    """Files as a set that is read batch by batch; a tensor as it is."""
    from metrics.images import ImageSet
    from metrics.preparations import as_is

    return images if isinstance(images, Tensor) else ImageSet(tuple(images), as_is())


def _place(prompt: Prompt) -> tuple[str, int, int] | None:
    """(split, seed, index) of a scene's prompt by its id, None for other prompts."""
    found = re.fullmatch(r"([a-z]+)-(\d+)-(\d{5,})", prompt.id)
    return (found[1], int(found[2]), int(found[3])) if found else None
