"""Which network, layer and image preparation each metric of the papers' protocol stands for.

The Inception is torch-fidelity's `inception-v3-compat` (the TensorFlow graph of 2015-12-05, which
clean-fid uses as well); only the way to its 299 x 299 input differs (`preparations.RESIZINGS`):
    inception, clean-resize: PIL bicubic, antialiased, on float channels (clean-fid's mode "clean")
    inception, tf-resize:    TensorFlow 1's bilinear, not antialiased (torch-fidelity's own)
    inception, bilinear-resize: that of tensors, not antialiased
Figures of two of them must not be compared. VGG16's fc2 is taken before its ReLU, at 224 px by
PIL's antialiased bilinear filter, ImageNet's mean and deviation: what the papers' released script
does with torchvision's network (Kynkaanniemi 1904.06991).

Networks are loaded when a metric first needs them and then kept: a study scores many decoders.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics import MetricError
from metrics.features import Extractor, ScenesClipFeatures
from metrics.official.checkpoint import Weights, load_module, read_state
from metrics.official.open_clip_model import KINDS, OpenClip
from metrics.preparations import (
    BILINEAR,
    RESIZINGS,
    Preparation,
    as_is,
    centre_crop,
    padded,
    pil_resize,
    whole,
)
from metrics.scenes_clip import WEIGHTS_DIR, WEIGHTS_FILE, ScenesClip, load

FORMULA = "100 cos"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class InceptionFeatures(Extractor):
    """uint8 images [n, 3, H, W], square -> (features [n, 2048] float32,): pool3."""

    layer, size = "2048", 299

    def __init__(self, weights: Weights, resize: str = "clean", network: Any = None) -> None:
        """weights: torch-fidelity's file. network: that of another `InceptionFeatures`, shared.

        Raises as ``checkpoint.read_state``, and MetricError where the file is another network's.
        """
        super().__init__(f"inception, {resize}-resize", [self.layer])
        if resize not in RESIZINGS:
            raise MetricError(f"resize must be one of {', '.join(RESIZINGS)}, found {resize!r}")
        self.resize = resize
        self.network = _inception(weights) if network is None else network

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        return (self.of_pixels(RESIZINGS[self.resize].apply(input, self.size)),)

    def of_pixels(self, pixels: Tensor) -> Tensor:
        """Features [n, 2048] of float pixels [n, 3, 299, 299] in [0, 255], resized before."""
        hidden = (pixels.to(next(self.network.parameters()).device) - 128) / 128
        for name, stage in self.network.named_children():  # in the order of the forward pass
            if name != "fc":
                hidden = stage(hidden)
        return hidden.flatten(1)  # [n, 2048, 1, 1] -> [n, 2048]


def _inception(weights: Weights) -> Any:
    """torch-fidelity's network. It unpickles whatever it is given, so it gets the tensors that were
    read safely, written anew in memory."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    memory = io.BytesIO()
    torch.save(read_state(weights.path), memory)
    memory.seek(0)
    try:
        return FeatureExtractorInceptionV3(
            "inception-v3-compat", ["2048"], feature_extractor_weights_path=memory
        )
    except RuntimeError as error:
        raise MetricError(f"{weights.path} is not the FID Inception: {str(error)[:400]}") from error


class Vgg16Features(Extractor):
    """uint8 images [n, 3, H, W], square -> (features [n, 4096] float32,)."""

    layer, size = "fc2", 224

    def __init__(self, weights: Weights) -> None:
        """weights: torchvision's file. Raises as ``checkpoint.load_module``."""
        from torchvision.models import vgg16

        super().__init__(f"vgg16 {self.layer}", [self.layer])
        with torch.device("meta"):  # 138 million weights need not be drawn to be overwritten
            network = vgg16(init_weights=False)
        network = network.to_empty(device="cpu")
        load_module(network, weights.path)
        network.classifier = network.classifier[:4]  # Linear, ReLU, Dropout, Linear
        self.network = network.requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(3, 1, 1), persistent=False)

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        pixels = pil_resize(input, self.size, BILINEAR).to(self.mean.device).float() / 255
        return (self.network((pixels - self.mean) / self.std),)


@dataclass(frozen=True)
class Features:
    """What FID, KID, precision and recall are made with. name: as tables have it."""

    extractor: Extractor
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
        self,
        weights: Mapping[str, Weights],
        arch: Mapping[str, str],
        device: str,
        size: int | None,
    ) -> None:
        """weights: by key of ``checkpoint.FILES``; arch: open_clip architecture by key; size: side
        of the centre crop in pixels, None: images are taken as they are."""
        self.weights, self.arch, self.device, self.size = weights, arch, device, size
        self._kept: dict[str, Any] = {}

    def features(self, metric: str) -> Features:
        """For `fid`, `fid_tf`, `kid`, `precision_recall`, `precision_recall_whole`, `scenes`."""
        if metric == "scenes":
            clip = self.scenes
            extractor = ScenesClipFeatures(clip=clip).eval()
            prepare = self._cropped(clip.image_size)
            return Features(extractor, prepare, self._scenes_weights, extractor.name)
        if metric in ("precision_recall", "precision_recall_whole"):
            return self._vgg(squeezed=metric == "precision_recall_whole")
        return self._inception("tf" if metric == "fid_tf" else "clean")

    def score(self, metric: str) -> Score:
        """For `clip`, `clip_g`, `hps`, `scenes`."""
        if metric == "scenes":
            prepare, name = self._cropped(self.scenes.image_size), f"CLIP (scenes, {FORMULA})"
            return Score(self.scenes, prepare, self._scenes_weights, name)
        kind, weights, own = KINDS[metric], self.weights[metric], self.arch.get(metric)
        if metric not in self._kept:
            self._kept[metric] = OpenClip(kind, weights, arch=own, device=self.device)
        prepare = padded() if kind.float_pixels else self._cropped(self.size)
        note = f"caption behind {kind.prefix!r}" if kind.prefix else "caption alone"
        label = f"{metric} on {Path(own).stem}" if own else kind.label
        return Score(self._kept[metric], prepare, weights, f"{label} ({FORMULA})", note)

    @property
    def scenes(self) -> ScenesClip:
        """The embedded CLIP."""
        if "scenes" not in self._kept:
            self._kept["scenes"] = load(device=self.device)
        found: ScenesClip = self._kept["scenes"]
        return found

    @property
    def _scenes_weights(self) -> Weights:
        return Weights(WEIGHTS_DIR / WEIGHTS_FILE, self.scenes.sha256)

    def _cropped(self, size: int | None) -> Preparation:
        return as_is() if self.size is None or size is None else centre_crop(size)

    def _inception(self, resize: str) -> Features:
        weights = self.weights["inception"]
        if resize not in self._kept:
            other = self._kept.get("tf" if resize == "clean" else "clean")
            network = None if other is None else other.network
            made = InceptionFeatures(weights, resize, network)
            self._kept[resize] = made.to(self.device).eval()
        found = self._kept[resize]
        return Features(found, self._cropped(self.size), weights, found.name)

    def _vgg(self, squeezed: bool) -> Features:
        weights = self.weights["vgg"]
        if "vgg" not in self._kept:
            self._kept["vgg"] = Vgg16Features(weights).to(self.device).eval()
        found = self._kept["vgg"]
        prepare = whole(Vgg16Features.size) if squeezed else self._cropped(self.size)
        name = f"{found.name}, {'whole' if squeezed else 'centre crop'}"
        return Features(found, prepare, weights, name)
