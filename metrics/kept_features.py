"""Features of images that are kept in files, so that workers extract them and one process joins
them: FID, KID, precision and recall of all shards are those of the images taken together.

Why by content: a row is found by the SHA-256 of its picture and by what made the features (network,
weights, preparation). It does not matter which worker extracted it, in which order, or whether the
picture has changed since: then it is extracted again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch_fidelity.feature_extractor_base import FeatureExtractorBase

from metrics.cache import write_whole
from metrics.features import LAYER, extract
from metrics.images import MIN_IMAGES, ImageSet


class KeptFeatures:
    """A folder of features: <network>-<key>/<name>.safetensors, each of some pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def extract(
        self,
        extractor: FeatureExtractorBase,
        images: ImageSet,
        sha256: str,
        *,
        layer: str = LAYER,
        batch: int = 64,
    ) -> Tensor:
        """As ``features.extract`` of files, [n, E]; only those that no file holds go through the
        network, and are kept. sha256: of the network's weights."""
        files = [Path(file) for file in images.source]
        made = hashlib.sha256(f"{sha256} {layer} {images.prepare.name}".encode()).hexdigest()[:12]
        place = self.folder / f"{extractor.name}-{made}"
        names = [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files]
        known = read(place)
        new = [at for at, name in enumerate(names) if name not in known]
        if new:
            # A metric refuses a single image, so a known one goes along.
            more = [at for at in range(len(files)) if at != new[0]] if len(new) < MIN_IMAGES else []
            asked = sorted([*new, *more[: MIN_IMAGES - 1]])
            part = dataclasses.replace(images, source=tuple(files[at] for at in asked))
            rows = extract(extractor, part, layer=layer, batch=batch)
            write(place, [names[at] for at in asked], rows)
            known |= dict(zip((names[at] for at in asked), rows, strict=True))
        if images.tick is not None:
            images.tick(len(files) - len(new))
        return torch.stack([known[name] for name in names])


def read(place: Path) -> dict[str, Tensor]:
    """Of every picture that a folder knows: its features [E]."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for path in sorted(place.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = json.loads(file.metadata()["images"])
            found |= dict(zip(names, file.get_tensor("features"), strict=True))
    return found


def write(place: Path, names: Sequence[str], rows: Tensor) -> None:
    """Keeps features [n, E] of n pictures, in a file of their own."""
    from safetensors.torch import save_file

    listed = json.dumps([*names])
    path = place / f"{hashlib.sha256(listed.encode()).hexdigest()[:16]}.safetensors"
    write_whole(
        path, lambda part: save_file({"features": rows.contiguous()}, part, {"images": listed})
    )
