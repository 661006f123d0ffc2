"""Which network, layer and image preparation each metric of the papers' protocol stands for.

The Inception is torch-fidelity's `inception-v3-compat` (the TensorFlow graph of 2015-12-05, which
clean-fid uses as well). Its 299 x 299 input is clean-fid's or torch-fidelity's own, and figures of
the two must not be compared. VGG16's fc2 is taken before its ReLU, at 224 px by PIL's antialiased
bilinear filter, ImageNet's mean and deviation: what the papers' released script does with
torchvision's network (Kynkaanniemi 1904.06991).

Networks are loaded when a metric first needs them and then kept: a study scores many decoders.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.models.checkpoint import read_state
from decoders.models.weights import load_into
from metrics import MetricError
from metrics.features import Extractor, ScenesClipFeatures
from metrics.official.checkpoint import Weights
from metrics.official.open_clip_model import KINDS, OpenClip
from metrics.preparations import (
    BILINEAR,
    Preparation,
    as_is,
    centre_crop,
    clean_resize,
    padded,
    pil_resize,
    whole,
)
from metrics.scenes_clip import WEIGHTS_DIR, WEIGHTS_FILE, ScenesClip, load

FORMULA = "100 cos"
VGG_SIDE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class InceptionFeatures(Extractor):
    """uint8 images [n, 3, H, W], square -> features [n, 2048] float32: pool3."""

    layer = "2048"

    def __init__(self, weights: Weights, resize: str = "clean", network: Any = None) -> None:
        """weights: torch-fidelity's file. resize: clean (clean-fid's) or tf (torch-fidelity's).
        network: that of another `InceptionFeatures`, shared.

        Raises as `read_state`, and MetricError where the file is another network's.
        """
        super().__init__()
        self.name, self.clean = f"inception, {resize}-resize", resize == "clean"
        self.network = _inception(weights) if network is None else network

    def forward(self, images: Tensor) -> Tensor:
        device = next(self.network.parameters()).device
        if not self.clean:
            features: Tensor = self.network(images.to(device))[0]
            return features
        hidden = (clean_resize(images).to(device) - 128) / 128
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
    """uint8 images [n, 3, H, W], square -> features [n, 4096] float32."""

    name, layer = "vgg16 fc2", "fc2"
    mean: Tensor
    std: Tensor

    def __init__(self, weights: Weights) -> None:
        """weights: torchvision's file. Raises as `read_state`, and DecoderError where the file is
        another network's."""
        from torchvision.models import vgg16

        super().__init__()
        with torch.device("meta"):  # 138 million weights need not be drawn to be overwritten
            network = vgg16(init_weights=False)
        network = network.to_empty(device="cpu")
        load_into(network, read_state(weights.path), str(weights.path))
        network.classifier = network.classifier[:4]  # Linear, ReLU, Dropout, Linear
        self.network = network.requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        pixels = pil_resize(images, VGG_SIDE, BILINEAR).float().to(self.mean.device) / 255
        features: Tensor = self.network((pixels - self.mean) / self.std)
        return features


@dataclass(frozen=True)
class Use:
    """A network as a metric uses it: an `Extractor`, or ``metrics.clip.ImageText`` for a score.
    name: as tables have it."""

    network: Any
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
        self._loaded: dict[str, Any] = {}

    def features(self, metric: str) -> Use:
        """For `fid`, `fid_tf`, `kid`, `precision_recall`, `precision_recall_whole`, `scenes`."""
        if metric == "scenes":
            return self._scenes(ScenesClipFeatures(self.scenes), ScenesClipFeatures.name)
        if metric.startswith("precision_recall"):
            weights = self.weights["vgg"]
            found = self._once("vgg", lambda: Vgg16Features(weights).to(self.device).eval())
            if metric == "precision_recall_whole":
                return Use(found, whole(VGG_SIDE), weights, f"{found.name}, whole")
            return Use(found, self._cropped(), weights, f"{found.name}, centre crop")
        resize, other = ("tf", "clean") if metric == "fid_tf" else ("clean", "tf")
        weights, shared = self.weights["inception"], self._loaded.get(other)
        network = None if shared is None else shared.network
        found = self._once(
            resize, lambda: InceptionFeatures(weights, resize, network).to(self.device).eval()
        )
        return Use(found, self._cropped(), weights, found.name)

    def score(self, metric: str) -> Use:
        """For `clip`, `clip_g`, `hps`, `scenes`."""
        if metric == "scenes":
            return self._scenes(self.scenes, f"CLIP (scenes, {FORMULA})")
        kind, weights, own = KINDS[metric], self.weights[metric], self.arch.get(metric)
        clip = self._once(metric, lambda: OpenClip(kind, weights, arch=own, device=self.device))
        prepare = padded() if kind.float_pixels else self._cropped()
        note = f"caption behind {kind.prefix!r}" if kind.prefix else "caption alone"
        label = f"{metric} on {Path(own).stem}" if own else kind.label
        return Use(clip, prepare, weights, f"{label} ({FORMULA})", note)

    @property
    def scenes(self) -> ScenesClip:
        """The embedded CLIP."""
        found: ScenesClip = self._once("scenes", lambda: load(device=self.device))
        return found

    def _scenes(self, network: Any, name: str) -> Use:
        prepare = as_is() if self.size is None else centre_crop(self.scenes.config.image_size)
        return Use(network, prepare, Weights(WEIGHTS_DIR / WEIGHTS_FILE, self.scenes.sha256), name)

    def _cropped(self) -> Preparation:
        return as_is() if self.size is None else centre_crop(self.size)

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._loaded:
            self._loaded[key] = make()
        return self._loaded[key]
