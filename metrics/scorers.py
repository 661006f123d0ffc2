"""Quality scorers, what `metric=` selects: FID, KID, precision, recall, CLIP score and HPSv2.1 of a
decoder's images. The embedded scenes need the tiny CLIP, official models Inception, VGG16 and
ViT-B/32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from torch import Tensor

from decoders.kinds import Count, Name, Within
from metrics import MetricError
from metrics.clip import REFERENCE_SPLIT, ScenesClipFeatures, scenes_hash
from metrics.images import files_hash, image_files
from metrics.papers import Evaluation, Measurement, Reference
from metrics.scores import Scores


def scores_of(
    evaluation: Evaluation, images: Sequence[Path], captions: Sequence[str], reference: Reference
) -> tuple[Scores, Measurement, Measurement]:
    """All figures without their protocol, and the measurements of FID and of the CLIP score."""
    found = evaluation.figures(tuple(images), captions, reference)
    names = {"hps": "hps", "clip": "clip", "scenes": "clip"}  # of a metric's score
    by_name = {names[x.metric] if x.key == "score" else x.key: x for x in found}
    figures = {name: one.score for name, one in by_name.items()}
    return Scores(figures), by_name["fid"], by_name["clip"]


class ScenesScorer:
    """The tiny CLIP, and real scenes of the split `reference` to compare with. Networks are loaded
    with the first images: a scorer is built before the run, whose memory is measured."""

    def __init__(
        self, device: str, reference: Annotated[int, Within(5, 10**6)], cache_dir: Name
    ) -> None:
        """reference: how many, no fewer than precision and recall need; cache_dir: where their
        features are kept."""
        cache = Path(cache_dir)
        self.evaluation = Evaluation(["scenes"], device=device, size=None, cache_dir=cache)
        self.count = reference

    @cached_property
    def reference(self) -> Tensor:
        return self.evaluation.scenes_reference(self.count)

    def score(self, images: Sequence[Path], captions: Sequence[str]) -> Scores:
        self.evaluation.scenes.tokens(captions)  # before what takes the time
        scores, fid, clip = scores_of(self.evaluation, images, captions, self.reference)
        # One network makes all of them, so tables name it once, with FID.
        network = fid.score.features
        figures = {n: replace(one, features=network) for n, one in scores.figures.items()}
        protocol = {
            **dict.fromkeys(("crop", "resize", "antialias"), "none"),
            "network": f"{network} ({ScenesClipFeatures.layer})",
            "network_sha256": fid.weights.sha256,
            "reference": f"{self.count} scenes of the split {REFERENCE_SPLIT}",
            "reference_sha256": scenes_hash(self.count),
            "clip_network": network,
            "clip_sha256": clip.weights.sha256,
            "clip_caption": "alone",
        }
        return Scores(figures, protocol)


class CocoScorer:
    """The papers' protocol (METHODS section 5) against a folder of real images."""

    def __init__(
        self,
        device: str,
        reference: str | None,
        cache_dir: Name,
        weights: Mapping[str, str | None],
        size: Count = 256,
        batch: Count = 64,
        hps: bool = False,
    ) -> None:
        """reference: folder; cache_dir: where its features are kept; weights: files by name, and
        `folder`; size: side of the centre crop; hps: also HPSv2.1. Raises MetricError without a
        reference, for an empty one and for missing weights."""
        if reference is None:
            raise MetricError("metric=coco needs a folder of real images: metric.reference=DIR")
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

    def score(self, images: Sequence[Path], captions: Sequence[str]) -> Scores:
        scores, fid, clip = scores_of(self.evaluation, images, captions, self.reference)
        protocol = {
            "crop": fid.preparation,
            "resize": "PIL bicubic on float channels",
            "antialias": "yes",
            "network": fid.score.features,
            "network_sha256": fid.weights.sha256,
            "reference": f"{fid.reference} images",
            "reference_sha256": self.reference_sha256,
            "clip_network": clip.score.features,
            "clip_sha256": clip.weights.sha256,
            "clip_caption": clip.note,
        }
        return replace(scores, protocol=protocol)
