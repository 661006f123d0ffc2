"""Quality scorers, what `metric=` selects: FID, KID, precision, recall, CLIP score and HPSv2.1 of a
decoder's images. The embedded scenes need the tiny CLIP, official models Inception, VGG16 and
ViT-B/32; the summary wants the figures and the names of their features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from bench.data.errors import ConfigError
from bench.prompts import Prompt
from bench.store.facts import Scores
from decoders.kinds import Count
from metrics.clip import REFERENCE_SPLIT as SPLIT
from metrics.clip import ScenesClipFeatures, scenes_hash
from metrics.images import files_hash, image_files
from metrics.papers import Evaluation, Figure, Reference


class Scorer(Protocol):
    """Figures of n images, their files, and the prompts they were drawn from."""

    def score(self, images: Sequence[Path], prompts: Sequence[Prompt]) -> Scores:
        """Raises MetricError where there are too few images or one is bad."""
        ...


def scores_of(
    evaluation: Evaluation, images: Sequence[Path], prompts: Sequence[Prompt], reference: Reference
) -> tuple[Scores, Figure, Figure]:
    """All columns but `protocol`, and the figures of FID and of the CLIP score."""
    figures = evaluation.figures(tuple(images), [prompt.text for prompt in prompts], reference)
    by_key = {"hps" if figure.metric == "hps" else figure.key: figure for figure in figures}
    by_key["clip"] = by_key.pop("score")
    columns: dict[str, Any] = {}
    for name, figure in by_key.items():
        value = figure.value
        columns |= {name: value.value, f"{name}_lo": value.lo, f"{name}_hi": value.hi}
    scores = Scores(
        **columns,
        clip_each=by_key["clip"].each,
        fid_features=by_key["fid"].features,
        prc_features=by_key["precision"].features,
        clip_features=by_key["clip"].features,
        hps_features=by_key["hps"].features if "hps" in by_key else "",
    )
    return scores, by_key["fid"], by_key["clip"]


class ScenesScorer:
    """The tiny CLIP, and real scenes of the split `reference` to compare with. Networks are loaded
    with the first images: a scorer is built before the run, whose memory is measured."""

    def __init__(self, device: str, reference: int, cache_dir: str) -> None:
        """reference: how many; cache_dir: where their features are kept."""
        cache = Path(cache_dir)
        self.evaluation = Evaluation(["scenes"], device=device, size=None, cache_dir=cache)
        self.count = reference

    @cached_property
    def reference(self) -> Tensor:
        return self.evaluation.scenes_reference(self.count)

    def score(self, images: Sequence[Path], prompts: Sequence[Prompt]) -> Scores:
        self.evaluation.scenes.tokens([p.text for p in prompts])  # before what takes the time
        scores, fid, clip = scores_of(self.evaluation, images, prompts, self.reference)
        protocol = {
            **dict.fromkeys(("crop", "resize", "antialias"), "none"),
            "network": f"{fid.features} ({ScenesClipFeatures.layer})",
            "network_sha256": fid.weights.sha256,
            "reference": f"{self.count} scenes of the split {SPLIT}",
            "reference_sha256": scenes_hash(self.count),
            "clip_network": fid.features,
            "clip_sha256": clip.weights.sha256,
            "clip_caption": "alone",
        }
        return replace(scores, prc_features="", clip_features="", protocol=protocol)


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
        `folder`; size: side of the centre crop; hps: also HPSv2.1. Raises ConfigError without a
        reference, MetricError for an empty one and for missing weights."""
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

    @cached_property
    def reference_sha256(self) -> str:
        """The digest of the reference pictures' bytes, whatever their files are called."""
        return files_hash(self.reference)

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
