"""Quality of a decoder's images: what `metric=` selects, a `Scorer`.

Why a scorer and not fixed columns: the embedded scenes need the tiny CLIP, official models
Inception, VGG16 and ViT-B/32; the summary wants the figures and the names of their features.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from bench.console import progress
from bench.data.errors import ConfigError
from bench.data.scores import PreferenceRow, Scores
from bench.prompts import Prompt

if TYPE_CHECKING:
    from metrics.kept import Statistics
    from metrics.official.papers import Evaluation, Figure
    from metrics.scenes_clip import ScenesClip

NAN = math.nan
Drawn = Tensor | Sequence[Path]  # images [n, 3, H, W] uint8, or their files: read batch by batch


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


class Evaluated:
    """A scorer by `metrics.official.papers.Evaluation`. Networks are loaded with the first images:
    a scorer is built before the run, whose memory is measured."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    def scores(
        self, images: Drawn, prompts: Sequence[Prompt], reference: Statistics | tuple[Path, ...]
    ) -> tuple[Scores, Figure, Figure]:
        """All columns but `protocol`, and the figures of FID and of the CLIP score."""
        captions = [p.text for p in prompts]
        figures = self.evaluation.figures(_source(images), captions, reference)
        found = {"hps" if f.metric == "hps" else f.key: f for f in figures}
        keys = ("fid", "fid_debiased", "kid", "precision", "recall", "score")
        fid, free, kid, precision, recall, clip = (found[key] for key in keys)
        hps = found.get("hps")
        scores = Scores(
            fid=fid.value.value,
            fid_lo=fid.value.lo,
            fid_hi=fid.value.hi,
            fid_debiased=free.value.value,
            fid_debiased_lo=free.value.lo,
            fid_debiased_hi=free.value.hi,
            fid_features=fid.features,
            kid=kid.value.value,
            kid_lo=kid.value.lo,
            kid_hi=kid.value.hi,
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
        )
        return scores, fid, clip


class ScenesScorer(Evaluated):
    """The tiny CLIP, and real scenes of the split `reference` to compare with."""

    def __init__(self, device: str, reference: int, cache_dir: str) -> None:
        """reference: how many real scenes; cache_dir: where their features are kept."""
        from metrics.official.papers import Evaluation

        super().__init__(Evaluation(["scenes"], device=device, size=None))
        self.count, self.cache_dir = reference, Path(cache_dir)

    @property
    def clip(self) -> ScenesClip:
        return self.evaluation.scenes

    @cached_property
    def reference(self) -> Statistics:
        from metrics.features import ScenesClipFeatures
        from metrics.kept import scenes_statistics

        extractor = ScenesClipFeatures(clip=self.clip).eval()
        return scenes_statistics(extractor, self.count, self.cache_dir)

    def score(self, images: Drawn, prompts: Sequence[Prompt]) -> Scores:
        self.clip.check([p.text for p in prompts])  # before the features, which take the time
        found, _, _ = self.scores(images, prompts, self.reference)
        return replace(found, prc_features="", clip_features="", protocol=self.protocol)

    @cached_property
    def protocol(self) -> dict[str, str]:
        """What a record says of how these figures were made."""
        from metrics.features import LAYER, NAME
        from metrics.kept import SPLIT, scenes_hash

        return {
            **dict.fromkeys(("crop", "resize", "antialias"), "none"),
            "network": f"{NAME} ({LAYER})",
            "network_sha256": self.clip.sha256,
            "reference": f"{self.count} scenes of the split {SPLIT}",
            "reference_sha256": scenes_hash(self.count),
            "clip_network": NAME,
            "clip_sha256": self.clip.sha256,
            "clip_caption": "alone",
        }

    def preference(
        self, name: str, images: Drawn, prompts: Sequence[Prompt]
    ) -> PreferenceRow | None:
        from decoders.tiny.scenes import counterfactual
        from metrics.clip import attribute_preference
        from metrics.images import ImageSet
        from metrics.preparations import as_is

        places = _places(prompts)
        if len(places) < len(prompts):
            return None
        pairs = [counterfactual(split, index, seed) for split, seed, index in places]
        found = attribute_preference(self.clip, ImageSet(_source(images), as_is()), pairs)
        shares = {key: share for key, (share, _) in found.by_attribute.items()}
        return PreferenceRow(
            name, len(images), found.share.value, found.share.lo, found.share.hi, shares
        )

    def real(self, prompts: Sequence[Prompt]) -> Tensor | None:
        from decoders.tiny.scenes import scene_batch

        places = _places(prompts)
        if not places or len(places) < len(prompts):
            return None
        split, seed, _ = places[0]
        pixels = scene_batch(split, [index for *_, index in places], seed).images
        return (torch.from_numpy(pixels) * 255).round().to(torch.uint8)


class CocoScorer(Evaluated):
    """The papers' protocol (METHODS section 5) against a folder of real images."""

    def __init__(
        self,
        device: str,
        reference: str | None,
        cache_dir: str,
        weights: Mapping[str, str | None],
        size: int = 256,
        batch: int = 64,
        hps: bool = False,
    ) -> None:
        """reference: folder; cache_dir: where its features are kept; weights: files by name, and
        `folder`; size: side of the centre crop; hps: also HPSv2.1.

        Raises ConfigError without a reference, MetricError for an empty one and for missing
        weights.
        """
        from metrics.images import image_files
        from metrics.official.papers import Evaluation

        if reference is None:
            raise ConfigError("metric=coco needs a folder of real images: metric.reference=DIR")
        files = dict(weights)
        folder = files.pop("folder", None)
        self.reference = image_files(Path(reference).expanduser())
        evaluation = Evaluation(
            ["fid", "kid", "precision_recall", "clip", *["hps"] * hps],
            weights=files,
            folder=None if folder is None else Path(folder),
            device=device,
            size=size,
            batch=batch,
            cache_dir=Path(cache_dir),
            progress=progress,
        )
        super().__init__(evaluation)

    def score(self, images: Drawn, prompts: Sequence[Prompt]) -> Scores:
        found, fid, clip = self.scores(images, prompts, self.reference)
        protocol = {
            "crop": fid.preparation,
            "resize": "PIL bicubic on float channels",
            "antialias": "yes",
            "network": fid.features,
            "network_sha256": fid.weights.sha256,
            "reference": f"{fid.reference} images",
            "reference_sha256": self.reference_sha256,
            "clip_network": clip.features,
            "clip_sha256": clip.weights.sha256,
            "clip_caption": clip.note,
        }
        return replace(found, protocol=protocol)

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


def _source(images: Drawn) -> Tensor | tuple[Path, ...]:
    return images if isinstance(images, Tensor) else tuple(images)


def _places(prompts: Sequence[Prompt]) -> list[tuple[str, int, int]]:
    """(split, seed, index) of the scenes' prompts among these, by their ids."""
    found = (re.fullmatch(r"([a-z]+)-(\d+)-(\d{5,})", prompt.id) for prompt in prompts)
    return [(one[1], int(one[2]), int(one[3])) for one in found if one]
