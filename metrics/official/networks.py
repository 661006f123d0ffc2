"""Which network, layer and image preparation each metric of the papers' protocol stands for.

Networks are loaded when a metric first needs them and then kept: a study scores many decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrics.official.checkpoint import Weights
from metrics.preparations import Preparation, centre_crop, padded, whole

FORMULA = "100 cos"


@dataclass(frozen=True)
class Features:
    """What FID, KID, precision and recall are made with. name: as tables have it."""

    extractor: Any
    layer: str
    prepare: Preparation
    weights: Weights
    name: str


@dataclass(frozen=True)
class Score:
    """What a score of image and caption is made with. clip: see ``metrics.clip.ImageText``."""

    clip: Any
    prepare: Preparation
    weights: Weights
    name: str
    note: str = ""


class Networks:
    """Loads and keeps the networks of these weight files."""

    def __init__(
        self, weights: Mapping[str, Weights], arch: Mapping[str, str], device: str, size: int
    ) -> None:
        """weights: by key of ``checkpoint.FILES``; arch: open_clip architecture by key; size: side
        of the centre crop in pixels."""
        self.weights, self.arch, self.device, self.size = weights, arch, device, size
        self._kept: dict[str, Any] = {}

    def features(self, metric: str) -> Features:
        """For `fid`, `fid_tf`, `kid`, `precision_recall`, `precision_recall_whole`, `scenes`."""
        if metric == "scenes":
            return self._scenes_features()
        if metric in ("precision_recall", "precision_recall_whole"):
            return self._vgg(squeezed=metric == "precision_recall_whole")
        return self._inception("tf" if metric == "fid_tf" else "clean")

    def score(self, metric: str) -> Score:
        """For `clip`, `clip_g`, `hps`, `scenes`."""
        if metric == "scenes":
            clip, weights = self._scenes()
            name = f"CLIP (scenes, {FORMULA})"
            return Score(clip, centre_crop(clip.image_size), weights, name)
        from metrics.official.open_clip_model import KINDS, OpenClip

        kind, weights = KINDS[metric], self.weights[metric]
        if metric not in self._kept:
            self._kept[metric] = OpenClip(
                kind, weights, arch=self.arch.get(metric), device=self.device
            )
        prepare = padded() if kind.float_pixels else centre_crop(self.size)
        note = f"caption behind {kind.prefix!r}" if kind.prefix else "caption alone"
        own = self.arch.get(metric)
        label = f"{metric} on {Path(own).stem}" if own else kind.label
        name = f"{label} ({FORMULA})"
        return Score(self._kept[metric], prepare, weights, name, note)

    def _inception(self, resize: str) -> Features:
        from metrics.official.inception import LAYER, InceptionFeatures

        weights = self.weights["inception"]
        if resize not in self._kept:
            other = self._kept.get("tf" if resize == "clean" else "clean")
            network = None if other is None else other.network
            made = InceptionFeatures(weights, resize, network)
            self._kept[resize] = made.to(self.device).eval()
        found = self._kept[resize]
        return Features(found, LAYER, centre_crop(self.size), weights, found.name)

    def _vgg(self, squeezed: bool) -> Features:
        from metrics.official.vgg import LAYER, SIZE, Vgg16Features

        weights = self.weights["vgg"]
        if "vgg" not in self._kept:
            self._kept["vgg"] = Vgg16Features(weights).to(self.device).eval()
        found = self._kept["vgg"]
        prepare = whole(SIZE) if squeezed else centre_crop(self.size)
        name = f"{found.name}, {'whole' if squeezed else 'centre crop'}"
        return Features(found, LAYER, prepare, weights, name)

    def _scenes_features(self) -> Features:
        from metrics.features import LAYER, ScenesClipFeatures

        clip, weights = self._scenes()
        found = ScenesClipFeatures(clip=clip).eval()
        return Features(found, LAYER, centre_crop(clip.image_size), weights, found.name)

    def _scenes(self) -> tuple[Any, Weights]:
        from metrics.scenes_clip import WEIGHTS_DIR, WEIGHTS_FILE, load

        if "scenes" not in self._kept:
            self._kept["scenes"] = load(device=self.device)
        clip = self._kept["scenes"]
        return clip, Weights(WEIGHTS_DIR / WEIGHTS_FILE, clip.sha256)
