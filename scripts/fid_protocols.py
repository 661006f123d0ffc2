"""One folder of pictures scored under two protocols, and the gap between them: only the resize to
the network's input differs.

    python -m scripts.fid_protocols DIR reference=REAL [network=scenes] [protocols=clean,tf]
        [weights.inception=FILE] [weights.folder=DIR] [limit=N] [batch=N] [device=NAME] [out=FILE]

reference: real pictures (network=scenes has its own); network: inception, or scenes, the embedded
CLIP; protocols: two of clean, tf, bilinear; weights: of inception (default: looked for by their
public name in ~/.cache/lantern-bench/metrics); limit: the first N pictures; out: .csv or .md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    from metrics.protocols import Gap

OWN = ("network", "protocols")
SHARED = (  # with `bench evaluate`
    "reference", "weights.inception", "weights.folder", "limit", "batch", "device", "out"
)  # fmt: skip
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
    from metrics.protocols import NETWORKS, gap_of, network_of

    if name not in NETWORKS:
        raise ConfigError(unknown("network", name, NETWORKS))
    files = image_files(asked.images)[: asked.limit]
    reference: Any = _reference(asked, name, files)
    weights = asked.weights.get("inception")
    device = device_of(asked.device)
    network = network_of(name, Path(weights) if weights else None, asked.folder, device)
    with progress(len(files) + len(reference), "features") as bar:
        return gap_of(files, reference, network, protocols, batch=asked.batch, tick=bar.update)


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
        found.append(
            f"The pictures have the network's own {gap.network.size} pixels, so none was resized: "
            "only the reference can make a gap."
        )
    if gap.first.images <= gap.network.width:
        found.append(
            f"{gap.first.images} pictures for {gap.network.width} features: FID is mostly bias "
            "here. The gap compares at this N alone."
        )
    return found


def _write(out: Path, gap: Gap) -> None:
    from bench.records.rows import write_text

    if out.suffix == ".md":
        text = markdown(filled(COLUMNS, rows(gap))) + "\n\n" + "\n".join(notes(gap)) + "\n"
    else:
        made = {"network": gap.network.name, "network_sha256": gap.network.sha256}
        text = csv_text([row | made for row in rows(gap)])
    write_text(out, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
