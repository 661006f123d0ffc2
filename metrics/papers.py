"""The papers' protocol on any set of images: FID, KID, precision/recall, CLIP score, HPSv2.1.

METHODS section 5: both sides centre-cropped and Lanczos-resized to 256 px, Inception features with
clean-fid's resizing, CLIP ViT-B/32 behind "A photo depicts ". Precision and recall (VGG16, k = 3)
and HPSv2.1 see the whole image, as the released scripts do. `scenes` is the same path with the
embedded CLIP, which needs no download.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.errors import unknown
from metrics import MetricError
from metrics.clip import (
    WEIGHTS_DIR,
    WEIGHTS_FILE,
    ScenesClip,
    ScenesClipFeatures,
    clip_score,
    load,
    scenes_features,
)
from metrics.fid import (
    SPLITS,
    Moments,
    fid_interval,
    inception_score,
    kid,
    precision_recall,
)
from metrics.images import (
    Extractor,
    ImageSet,
    Preparation,
    cached_features,
    features_of,
    files_hash,
)
from metrics.networks import NETWORKS, Weights, locate
from metrics.scores import SHARE, Score
from metrics.stats import Interval, student_mean

Reference = tuple[Path, ...] | Tensor  # image files, or their features [m, E]
CROP_PIXELS = 256
SCENES_WEIGHTS = WEIGHTS_DIR / WEIGHTS_FILE
SHARE_KEYS = ("precision", "recall")


@dataclass(frozen=True)
class MetricKind:
    """parts: fid, kid, is, shares (precision, recall) or score; weights: key of its weight file,
    None for the embedded ones; captions, reference: whether it needs them."""

    parts: tuple[str, ...]
    weights: str | None
    captions: bool = False
    reference: bool = True


METRICS = {
    "fid": MetricKind(("fid",), "inception"),
    "kid": MetricKind(("kid",), "inception"),
    "is": MetricKind(("is",), "inception", reference=False),
    "precision_recall": MetricKind(("shares",), "vgg"),
    "clip": MetricKind(("score",), "clip", captions=True, reference=False),
    "hps": MetricKind(("score",), "hps", captions=True, reference=False),
    "scenes": MetricKind(("fid", "kid", "shares", "score"), None, captions=True),
}


@dataclass(frozen=True)
class Measurement:
    """One number of a table. metric: of `METRICS`; key: fid, fid_debiased, kid, precision, recall
    or score; name: with its protocol, as tables have it, the score's `features` in brackets;
    reference: how many reference images, 0 where none is used; note: what a reader must know."""

    metric: str
    key: str
    name: str
    score: Score
    images: int
    reference: int
    preparation: str
    weights: Weights
    note: str = ""


def check_metrics(metrics: Sequence[str], *, reference: bool, captions: bool) -> None:
    """MetricError for an unknown or repeated metric, none at all, and for one whose reference
    folder or captions were not given."""
    if not metrics:
        raise MetricError(f"no metric was asked for; known: {', '.join(METRICS)}")
    for name in metrics:
        if name not in METRICS:
            raise MetricError(unknown("metric", name, METRICS))
        if METRICS[name].reference and not reference:
            raise MetricError(f"{name} needs a folder of reference images: reference=DIR")
        if METRICS[name].captions and not captions:
            raise MetricError(f"{name} needs the images' captions: captions=FILE")
    if len(set(metrics)) < len(metrics):
        raise MetricError(f"a metric is named twice: {', '.join(metrics)}")


class Evaluation:
    """The metrics of one protocol; networks and references are loaded once and kept."""

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        weights: Mapping[str, str | None] | None = None,
        folder: Path | None = None,
        device: str = "cpu",
        size: int | None = CROP_PIXELS,
        batch: int = 64,
        cache_dir: Path = Path("results/runs/.cache"),
    ) -> None:
        """weights: file by key of `PUBLIC_FILES`, else looked for in `folder`; size: side of the
        centre crop, None where images have the networks' size. Raises MetricError for unknown
        metrics and, once for all, for missing weight files."""
        check_metrics(metrics, reference=True, captions=True)
        keys = dict.fromkeys(METRICS[m].weights for m in metrics)
        self.weights = locate([key for key in keys if key], weights or {}, folder)
        self.metrics, self.device, self.size, self.batch = tuple(metrics), device, size, batch
        self._networks: dict[str | None, Any] = {}
        self.cache_dir = cache_dir
        self._references: dict[tuple[Any, ...], Tensor] = {}

    def figures(
        self, images: tuple[Path, ...], captions: Sequence[str], reference: Reference
    ) -> list[Measurement]:
        """Every figure of n images (files in order), in the metrics' order. captions: one an image,
        for the metrics that need them; reference: likewise. Raises MetricError (see
        `check_metrics`, ``images``, ``fid``, ``clip``)."""
        check_metrics(self.metrics, reference=len(reference) > 0, captions=len(captions) > 0)
        for metric in self.metrics:  # before any image is read
            if METRICS[metric].captions:
                self._network(metric).tokens(captions)
        rows: dict[str, Tensor] = {}  # features by network: FID and KID share them
        every = (self._measured(m, images, captions, reference, rows) for m in self.metrics)
        return [figure for figures in every for figure in figures]

    @property
    def scenes(self) -> ScenesClip:
        clip: ScenesClip = self._network("scenes")
        return clip

    def scenes_reference(self, count: int) -> Tensor:
        """Features of the first `count` real scenes, as the embedded CLIP sees them."""
        return scenes_features(ScenesClipFeatures(self.scenes).eval(), count, self.cache_dir)

    def _network(self, metric: str) -> Any:
        """The network of a metric: an ``ImageText`` for a score, else an ``Extractor``."""
        key, device = METRICS[metric].weights, self.device
        if key not in self._networks:
            network = NETWORKS[key](self.weights[key], device) if key else load(device=device)
            self._networks[key] = network
        return self._networks[key]

    def _measured(
        self,
        metric: str,
        images: tuple[Path, ...],
        captions: Sequence[str],
        reference: Reference,
        rows: dict[str, Tensor],
    ) -> Iterator[Measurement]:
        """The figures of a metric. rows: features [n, E] by network, each computed once."""
        network, key = self._network(metric), METRICS[metric].weights
        weights = self.weights[key] if key else Weights(SCENES_WEIGHTS, self.scenes.sha256)
        prepare = network.preparation(self.size)
        extractor = ScenesClipFeatures(network) if metric == "scenes" else network
        name, real = extractor.name, torch.empty(0)
        parts = METRICS[metric].parts
        if parts != ("score",) and name not in rows:
            rows[name] = features_of(extractor, ImageSet(images, prepare), self.batch, name)
        if METRICS[metric].reference:
            real = self._reference(extractor, weights, prepare, reference)

        def figure(
            key: str, label: str, value: Interval, note: str = "", unit: str = ""
        ) -> Measurement:
            score = Score(value.value, value.lo, value.hi, features=name, unit=unit)
            made_of = len(images), len(real), prepare.name, weights, note
            return Measurement(metric, key, f"{label} ({name})", score, *made_of)

        for part in parts:
            if part == "fid":
                value, debiased = fid_interval(rows[name], Moments.of(real))
                yield figure("fid", "FID", value, f"of {len(images)} images: compare at equal n")
                note = f"the bias of the {len(real)} reference images is still in it"
                yield figure("fid_debiased", "FID without its bias", debiased, note)
            elif part == "kid":
                yield figure("kid", "KID", kid(rows[name], real))
            elif part == "shares":
                for key, value in zip(SHARE_KEYS, precision_recall(rows[name], real), strict=True):
                    yield figure(key, key, value, unit=SHARE)
            elif part == "is":
                value = inception_score(network.classes(rows[name]))
                note = f"the mean of {SPLITS} parts: compare at equal n"
                yield figure("is", "Inception Score", value, note)
            elif part == "score":
                pictures = ImageSet(images, prepare)
                scores = clip_score(network, pictures, captions, self.batch, network.name)
                note = ", ".join(filter(None, [network.caption, network.note(captions)]))
                mean, each = student_mean(scores), tuple(scores.tolist())
                score = Score(mean.value, mean.lo, mean.hi, each, network.name)
                made_of = len(images), 0, prepare.name, weights, note
                yield Measurement(metric, "score", network.name, score, *made_of)

    def _reference(
        self, network: Extractor, weights: Weights, prepare: Preparation, reference: Reference
    ) -> Tensor:
        """Features [m, E] of the reference, which is read once."""
        if isinstance(reference, Tensor):
            return reference
        if (network.name, reference) not in self._references:
            images, label = ImageSet(reference, prepare), f"reference, {network.name}"
            self._references[network.name, reference] = cached_features(
                self.cache_dir,
                network,
                f"{weights.sha256} {prepare.name} {files_hash(reference)}",
                lambda: features_of(network, images, self.batch, label),
            )
        return self._references[network.name, reference]
