"""One folder of pictures under two protocols: how far FID moves with the way to the network alone.

Why: two codes that both say FID on Inception features may differ by points, since one resizes with
PIL's antialiased filter and the other with the bilinear filter of tensors (Parmar et al.
2104.11222). Here all else is equal: pictures, reference, network, N. Both sides are cut to their
largest centred square and resized once, from there to the network's input.

The interval of the gap is paired: the same pictures are left out under both protocols (`stats.
jackknife`), so what both share drops out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from metrics import MetricError
from metrics.fid import Moments, of_rows
from metrics.images import MIN_IMAGES, open_rgb
from metrics.preparations import RESIZINGS, from_pil
from metrics.stats import Interval, jackknife

NETWORKS = ("inception", "scenes")
THREADS = 4
Source = Tensor | Sequence[Path]  # uint8 [n, 3, S, S], or files


@dataclass(frozen=True)
class Network:
    """features: float32 [n, 3, size, size] in [0, 255] -> [n, E]; width: E."""

    name: str
    sha256: str
    size: int
    width: int
    features: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scored:
    """FID of a folder under one protocol."""

    protocol: str
    filter: str
    antialias: str
    fid: Interval
    images: int
    reference: int


@dataclass(frozen=True)
class Gap:
    """Two protocols; gap: the second's FID less the first's. resized: whether any picture had to
    be."""

    first: Scored
    second: Scored
    gap: Interval
    network: Network
    resized: bool


def network_of(name: str, weights: Path | None, folder: Path | None, device: str) -> Network:
    """The FID Inception, or the embedded CLIP (`scenes`). weights: Inception's file, else looked
    for in `folder`. Raises MetricError where there are none."""
    if name == "scenes":
        from metrics.scenes_clip import load

        clip = load(device=device)
        scale = clip.config.embed_dim**0.5  # as metrics.features

        def of_clip(pixels: Tensor) -> Tensor:
            return scale * clip.image_features((pixels / 255).clamp(0, 1))

        return Network("scenes-clip", clip.sha256, clip.image_size, clip.config.embed_dim, of_clip)
    from metrics.official.checkpoint import locate
    from metrics.official.networks import InceptionFeatures

    given = {"inception": str(weights)} if weights else {}
    try:
        found = locate(["inception"], given, folder)["inception"]
    except MetricError as error:
        raise MetricError(
            f"{error}\nnetwork=scenes uses the embedded network, which needs no file"
        ) from error
    inception = InceptionFeatures(found).to(device).eval()
    width = int(inception.layer)
    return Network("inception", found.sha256, inception.size, width, inception.of_pixels)


def gap_of(
    images: Source,
    reference: Source,
    network: Network,
    protocols: tuple[str, str],
    *,
    batch: int = 64,
    seed: int = 0,
    tick: Callable[[int], object] | None = None,
) -> Gap:
    """FID of the pictures against the reference under both protocols of
    `metrics.preparations.RESIZINGS`, and the gap with its paired interval.

    tick: called with the number of pictures read. Raises MetricError for fewer than two pictures
    and for one that cannot be read.
    """
    for what, found in (("pictures", images), ("reference pictures", reference)):
        if len(found) < MIN_IMAGES:
            raise MetricError(f"{len(found)} {what} are too few, at least {MIN_IMAGES} are needed")
    mine, resized = _features(images, network, protocols, batch, tick)
    real, _ = _features(reference, network, protocols, batch, tick)
    one, two = (of_rows(g, Moments.of(r)) for g, r in zip(mine, real, strict=True))
    count = len(images)
    gap = jackknife(count, lambda rows: two(rows) - one(rows), seed=seed)
    scored = []
    for name, distance in zip(protocols, (one, two), strict=True):
        value, how = jackknife(count, distance, seed=seed), RESIZINGS[name]
        fid = Interval(value.value, max(value.lo, 0.0), value.hi)
        scored.append(Scored(name, how.filter, how.antialiased, fid, count, len(reference)))
    return Gap(scored[0], scored[1], gap, network, resized)


def _features(
    source: Source,
    network: Network,
    protocols: Sequence[str],
    batch: int,
    tick: Callable[[int], object] | None,
) -> tuple[list[Tensor], bool]:
    """[n, E] for each protocol, and whether any picture was resized; each is read once."""
    parts: list[list[Tensor]] = [[] for _ in protocols]
    resized = False
    for start in range(0, len(source), batch):
        with ThreadPoolExecutor(THREADS) as pool:
            pictures = list(pool.map(_square, source[start : start + batch]))
        resized |= any(picture.shape[-1] != network.size for picture in pictures)
        for name, kept in zip(protocols, parts, strict=True):
            apply = RESIZINGS[name].apply
            pixels = torch.cat([apply(picture[None], network.size) for picture in pictures])
            with torch.no_grad():
                kept.append(network.features(pixels).float().cpu())
        if tick is not None:
            tick(len(pictures))
    return [torch.cat(kept) for kept in parts], resized


def _square(item: Path | Tensor) -> Tensor:
    """The largest centred square, uint8 [3, S, S]."""
    image = from_pil(open_rgb(item)) if isinstance(item, Path) else item
    side = min(image.shape[1:])
    top, left = ((length - side) // 2 for length in image.shape[1:])
    return image[:, top : top + side, left : left + side]
