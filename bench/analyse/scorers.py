"""Quality scorers, what `metric=` selects: FID, KID, precision, recall, CLIP score and HPSv2.1 of a
decoder's images.

Why a scorer and not fixed columns: the embedded scenes need the tiny CLIP, official models
Inception, VGG16 and ViT-B/32; the summary wants the figures and the names of their features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.data.errors import ConfigError
from bench.prompts import Prompt
from bench.store.findings import Scores
from decoders.kinds import Count

if TYPE_CHECKING:
    from torch import Tensor

    from metrics.official.papers import Evaluation, Figure, Reference
    from metrics.scenes_clip import ScenesClip

NAN = math.nan


class Scorer(Protocol):
    """Figures of n images, their files, and the prompts they were drawn from."""

    def score(self, images: Sequence[Path], prompts: Sequence[Prompt]) -> Scores:
        """Raises MetricError where there are too few images or one is bad."""
        ...


def scores_of(
    evaluation: Evaluation,
    images: Sequence[Path],
    prompts: Sequence[Prompt],
    reference: Reference,
) -> tuple[Scores, Figure, Figure]:
    """All columns but `protocol`, and the figures of FID and of the CLIP score."""
    figures = evaluation.figures(tuple(images), [prompt.text for prompt in prompts], reference)
    by_key = {"hps" if figure.metric == "hps" else figure.key: figure for figure in figures}
    fid, clip, hps = by_key["fid"], by_key["score"], by_key.get("hps")
    intervals = {"fid": fid, "clip": clip} | {key: by_key[key] for key in ("fid_debiased", "kid")}
    ends: dict[str, Any] = {}
    for name, figure in intervals.items():
        value = figure.value
        ends |= {name: value.value, f"{name}_lo": value.lo, f"{name}_hi": value.hi}
    scores = Scores(
        **ends,
        fid_features=fid.features,
        precision=by_key["precision"].value.value,
        recall=by_key["recall"].value.value,
        prc_features=by_key["precision"].features,
        clip_each=clip.each,
        clip_features=clip.features,
        hps=hps.value.value if hps else NAN,
        hps_features=hps.features if hps else "",
    )
    return scores, fid, clip


class ScenesScorer:
    """The tiny CLIP, and real scenes of the split `reference` to compare with. Networks are loaded
    with the first images: a scorer is built before the run, whose memory is measured."""

    def __init__(self, device: str, reference: int, cache_dir: str) -> None:
        """reference: how many real scenes; cache_dir: where their features are kept."""
        from metrics.official.papers import Evaluation

        cache = Path(cache_dir)
        self.evaluation = Evaluation(["scenes"], device=device, size=None, cache_dir=cache)
        self.count = reference

    @property
    def clip(self) -> ScenesClip:
        return self.evaluation.scenes

    @cached_property
    def reference(self) -> Tensor:
        return self.evaluation.scenes_reference(self.count)

    def score(self, images: Sequence[Path], prompts: Sequence[Prompt]) -> Scores:
        self.clip.tokens([p.text for p in prompts])  # before the features, which take the time
        scores, _, _ = scores_of(self.evaluation, images, prompts, self.reference)
        return replace(scores, prc_features="", clip_features="", protocol=self.protocol)

    @cached_property
    def protocol(self) -> dict[str, str]:
        """What a record says of how these figures were made."""
        from metrics.scenes_clip import SPLIT, ScenesClipFeatures, scenes_hash

        name, layer = ScenesClipFeatures.name, ScenesClipFeatures.layer
        return {
            **dict.fromkeys(("crop", "resize", "antialias"), "none"),
            "network": f"{name} ({layer})",
            "network_sha256": self.clip.sha256,
            "reference": f"{self.count} scenes of the split {SPLIT}",
            "reference_sha256": scenes_hash(self.count),
            "clip_network": name,
            "clip_sha256": self.clip.sha256,
            "clip_caption": "alone",
        }


class CocoScorer:
    """The papers' protocol (METHODS section 5) against a folder of real images."""

    def __init__(
        self,
        device: str,
        reference: str | None,
        cache_dir: str,
        weights: Mapping[str, str | None],
        size: Count = 256,
        batch: Count = 64,
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
        self.evaluation = Evaluation(
            ["fid", "kid", "precision_recall", "clip", *["hps"] * hps],
            weights=files,
            folder=None if folder is None else Path(folder),
            device=device,
            size=size,
            batch=batch,
            cache_dir=Path(cache_dir),
        )

    def score(self, images: Sequence[Path], prompts: Sequence[Prompt]) -> Scores:
        scores, fid, clip = scores_of(self.evaluation, images, prompts, self.reference)
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
        return replace(scores, protocol=protocol)

    @cached_property
    def reference_sha256(self) -> str:
        """The digest of the reference pictures' bytes, whatever their files are called."""
        from metrics.images import files_hash

        return files_hash(self.reference)
