"""One folder of pictures scored under two protocols, and the gap between them: only the resize to
the network's input differs.

    python -m scripts.fid_protocols DIR reference=REAL [network=scenes] [protocols=clean,tf]
        [weights.inception=FILE] [weights.folder=DIR] [limit=N] [batch=N] [device=NAME] [out=FILE]

reference: real pictures (network=scenes has its own); network: inception, or scenes, the embedded
CLIP; protocols: two of clean, tf, bilinear; weights: of inception (default: looked for by their
public name in ~/.cache/lantern-bench/metrics); limit: the first N pictures; out: .csv or .md.

Why: two codes that both say FID on Inception features may differ by points, since one resizes with
PIL's antialiased filter and the other with the bilinear filter of tensors (Parmar et al.
2104.11222). Here all else is equal: pictures, reference, network, N. Both sides are cut to their
largest centred square and resized once, from there to the network's input. The interval of the gap
is paired: the same pictures are left out under both protocols (`metrics.stats.jackknife`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.__main__ import answered
from bench.commands.evaluate import EvaluateConfig, device_of, parse, require_others
from bench.config.words import apart, with_folders
from bench.console import progress, say
from bench.data.errors import ConfigError, unknown
from bench.data.files import ready_file
from bench.report.table import Column, csv_text, filled, intervals, markdown, terminal

if TYPE_CHECKING:
    from torch import Tensor

    from metrics.features import Extractor
    from metrics.stats import Interval

    Pictures = Tensor | Sequence[Path]  # uint8 [n, 3, S, S], or files

OWN = ("network", "protocols")
SHARED = (  # with `bench evaluate`
    "reference", "weights.inception", "weights.folder", "limit", "batch", "device", "out"
)  # fmt: skip
NETWORKS = ("inception", "scenes")
SCENES = 1000  # real scenes, where no reference is named


def main(words: Sequence[str]) -> int:
    """Prints FID under both protocols with N, and the gap. 2 where it cannot, with what to do."""
    return answered(report, words)


def report(words: Sequence[str]) -> int:
    """Raises ConfigError, MetricError."""
    _, named = with_folders(words, (*OWN, *SHARED), "fid_protocols")
    asked = parse(apart(words, OWN)[1])
    out = asked.out
    if out is not None:
        if out.suffix not in (".csv", ".md"):
            raise ConfigError(f"out={out} must end in .csv or .md: that says the format")
        ready_file(out)
    protocols = _protocols(named.get("protocols", "clean,bilinear"))
    gap = measure(asked, named.get("network", "inception"), protocols)
    say(f"{asked.images}: network {gap.network.name} (SHA-256 {gap.network.sha256[:12]}...)")
    say(terminal(filled(COLUMNS, rows(gap))))
    say("\n".join(notes(gap)))
    if out is not None:
        _write(out, gap)
        say(f"written: {out}")
    return 0


def measure(asked: EvaluateConfig, name: str, protocols: tuple[str, str]) -> Gap:
    """The gap of a folder of pictures, by the network of this name."""
    from metrics.images import image_files

    if name not in NETWORKS:
        raise ConfigError(unknown("network", name, NETWORKS))
    files = image_files(asked.images)[: asked.limit]
    reference: Any = _reference(asked, name, files)
    network = network_of(name, asked)
    with progress(len(files) + len(reference), "features") as bar:
        return gap_of(files, reference, network, protocols, batch=asked.batch, tick=bar.update)


@dataclass(frozen=True)
class Network:
    """What gives the features; sha256: of its weights."""

    name: str
    sha256: str
    extractor: Extractor


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
    """Two protocols; gap: the second's FID less the first's. width: features of the network;
    resized: whether any picture had to be."""

    first: Scored
    second: Scored
    gap: Interval
    network: Network
    width: int
    resized: bool


def network_of(name: str, asked: EvaluateConfig) -> Network:
    """The FID Inception, or the embedded CLIP (`scenes`). Raises MetricError where there are no
    weights."""
    device = device_of(asked.device)
    if name == "scenes":
        from metrics.features import ScenesClipFeatures
        from metrics.scenes_clip import load

        clip = load(device=device)
        return Network("scenes-clip", clip.sha256, ScenesClipFeatures(clip))
    from metrics import MetricError
    from metrics.official.checkpoint import locate
    from metrics.official.networks import InceptionFeatures

    try:
        found = locate([name], asked.weights, asked.folder)[name]
    except MetricError as error:
        raise MetricError(
            f"{error}\nnetwork=scenes uses the embedded network, which needs no file"
        ) from error
    return Network(name, found.sha256, InceptionFeatures(found).to(device).eval())


def gap_of(
    images: Pictures,
    reference: Pictures,
    network: Network,
    protocols: tuple[str, str],
    *,
    batch: int = 64,
    tick: Callable[[int], object] = lambda done: None,
) -> Gap:
    """FID of the pictures against the reference under both protocols of
    `metrics.preparations.RESIZINGS`, and the gap with its paired interval.

    tick: called with the number of pictures read. Raises MetricError for too few pictures and for
    one that cannot be read.
    """
    from metrics.fid import Moments, fid_left_out
    from metrics.preparations import RESIZINGS
    from metrics.stats import jackknife

    mine, resized = _features(images, network.extractor, protocols, batch, tick)
    real, _ = _features(reference, network.extractor, protocols, batch, tick)
    one, two = (fid_left_out(g, Moments.of(r)) for g, r in zip(mine, real, strict=True))
    counts = (len(images), len(reference))
    scored = []
    for name, values in zip(protocols, (one, two), strict=True):
        how, fid = RESIZINGS[name], jackknife(values, least=0.0)
        scored.append(Scored(name, how.filter, how.antialiased, fid, *counts))
    return Gap(scored[0], scored[1], jackknife(two - one), network, mine[0].shape[1], resized)


def _features(
    source: Pictures,
    extractor: Extractor,
    protocols: Sequence[str],
    batch: int,
    tick: Callable[[int], object],
) -> tuple[list[Tensor], bool]:
    """[n, E] for each protocol, and whether any picture was resized; each is read once."""
    import torch

    from metrics.preparations import RESIZINGS, in_threads

    parts: list[list[Tensor]] = [[] for _ in protocols]
    resized = False
    for start in range(0, len(source), batch):
        pictures = in_threads(_square, source[start : start + batch])
        resized |= any(picture.shape[-1] != extractor.size for picture in pictures)
        for name, kept in zip(protocols, parts, strict=True):
            apply = RESIZINGS[name].apply
            pixels = torch.cat([apply(picture[None], extractor.size) for picture in pictures])
            with torch.no_grad():
                kept.append(extractor.of_pixels(pixels).float().cpu())
        tick(len(pictures))
    return [torch.cat(kept) for kept in parts], resized


def _square(item: Path | Tensor) -> Tensor:
    """The largest centred square, uint8 [3, S, S]."""
    from metrics.images import open_rgb
    from metrics.preparations import from_pil

    image = from_pil(open_rgb(item)) if isinstance(item, Path) else item
    side = min(image.shape[1:])
    top, left = ((length - side) // 2 for length in image.shape[1:])
    return image[:, top : top + side, left : left + side]


def _protocols(text: str) -> tuple[str, str]:
    from metrics.preparations import RESIZINGS

    names = [name.strip() for name in text.strip("[]").split(",")]
    for name in names:
        if name not in RESIZINGS:
            raise ConfigError(unknown("protocol", name, RESIZINGS))
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(f"protocols takes two different names, found {text!r}")
    return names[0], names[1]


def _reference(asked: EvaluateConfig, network: str, files: Sequence[Path]) -> Any:
    """Files of the folder named, or real scenes."""
    from metrics.images import image_files

    if asked.reference is not None:
        found = image_files(asked.reference)
        require_others(asked.images, asked.reference, files, found)
        return found
    if network != "scenes":
        raise ConfigError(
            "reference=DIR is missing: a folder of real pictures (only network=scenes has its own)"
        )
    import torch

    from decoders.tiny.scenes import scene_batch
    from metrics.kept import SPLIT

    pixels = scene_batch(SPLIT, range(SCENES), 0).images
    return (torch.from_numpy(pixels) * 255).round().to(torch.uint8)


COLUMNS = (
    Column("protocol", "protocol", words=True),
    Column("filter", "resize filter", words=True),
    Column("antialias", "antialias", words=True),
    Column("fid", "FID", intervals(3)),
    Column("images", "images"),
    Column("reference", "reference"),
)


def rows(gap: Gap) -> list[dict[str, Any]]:
    """Both protocols, and the gap."""
    first, second = vars(gap.first), vars(gap.second)
    name = f"{gap.second.protocol} less {gap.first.protocol}"
    less = {"protocol": name, "filter": "", "antialias": "", "fid": gap.gap}
    return [first, second, {**first, **less}]


def notes(gap: Gap) -> list[str]:
    found = [
        "Pictures, reference, network and N are the same; the gap's interval is paired by picture."
    ]
    if not gap.resized:
        side = gap.network.extractor.size
        found.append(
            f"The pictures have the network's own {side} pixels, so none was resized: only the "
            "reference can make a gap."
        )
    if gap.first.images <= gap.width:
        found.append(
            f"{gap.first.images} pictures for {gap.width} features: FID is mostly bias "
            "here. The gap compares at this N alone."
        )
    return found


def _write(out: Path, gap: Gap) -> None:
    from bench.data.files import write_text

    if out.suffix == ".md":
        text = markdown(filled(COLUMNS, rows(gap))) + "\n\n" + "\n".join(notes(gap)) + "\n"
    else:
        made = {"network": gap.network.name, "network_sha256": gap.network.sha256}
        text = csv_text([row | made for row in rows(gap)])
    write_text(out, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
