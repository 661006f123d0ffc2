"""`python -m bench evaluate`: the papers' figures of any folder of images with captions.

Why apart from studies: published images, or another tool's, must be measurable with the same
networks, crops and intervals as our own (METHODS section 5). A row of the CSV says what it was made
with: network, SHA-256 of its weights, crop, package versions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import MinLen
from pydantic import BeforeValidator

from bench.config.arguments import RUNS, folders, listed, settings
from bench.console import say
from bench.errors import ConfigError, escape_hidden
from bench.files import prepare_file, prepare_folder, write_text
from bench.prompts.sources import CAPTIONS_FILE, captions_of
from bench.report.table import Column, number, table_of, terminal
from bench.store.facts import STUDY
from decoders.errors import DecoderError
from decoders.kinds import Within

if TYPE_CHECKING:
    from metrics.papers import Measurement, Reference

PAPERS = ("fid", "kid", "precision_recall", "clip")
SCENES = 2048  # real scenes that `scenes` compares with where no reference is named, as studies do
UNKNOWN_ORIGIN = (
    "these images are of no run: the prompts, seeds and sampling that made them are unknown, "
    "so compare figures only with those of the same reference, captions and number of images"
)
Names = Annotated[
    tuple[str, ...],
    MinLen(1),
    BeforeValidator(lambda text: [*filter(None, listed(text))]),
]


@dataclass(frozen=True)
class WeightFiles:
    """Files of weights by network; folder: where the others are looked for by public names."""

    inception: str | None = None
    vgg: str | None = None
    clip: str | None = None
    hps: str | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class EvaluateConfig:
    """The settings of `cmd_evaluate`; what a metric does not need may be None. metrics (): those
    that fit."""

    images: Path
    captions: Path | None = None
    reference: Path | None = None
    metrics: Names = ()
    out: Path | None = None
    limit: Annotated[int, Within(2, 10**9)] | None = None
    part: bool = False
    size: Annotated[int, Within(1, 4096)] = 256
    batch: Annotated[int, Within(1, 2**20)] = 64
    device: str = "auto"
    cache_dir: Path = RUNS / ".cache"
    weights: WeightFiles = WeightFiles()


def cmd_evaluate(arguments: Sequence[str]) -> int:
    """Quality of any folder of images with captions, in the papers' protocol: evaluate [DIR].
    A folder of pictures of a run says enough by itself: its captions.json is read. Without
    metrics=, those that fit: scenes where the embedded CLIP knows all words of the captions (it
    needs no reference), else those of fid, kid, precision_recall and clip that have what they
    need.

    settings:
      images=DIR          the images (.png .jpg .jpeg .webp .bmp), numbers in numeric order
      captions=FILE       .txt (one per line), .csv .tsv .json .jsonl
      reference=DIR       real images, for FID, KID, precision and recall
      metrics=[...]       fid, kid, precision_recall, is, clip, hps; scenes (the embedded
                          CLIP, which needs no weights)
      out=FILE.csv        the figures with all that they were made with
      limit=N             only the first N images
      part=true           captions by name may be of more images than there are
      size=N              side of the centre crop (default: 256)
      batch=N             images at once (default: 64)
      device=NAME         auto, cpu or cuda (default: auto)
      cache_dir=DIR       features of the reference, kept
      weights.NAME=FILE   weights of inception, vgg, clip, hps
      weights.folder=DIR  where weights are looked for by their public names
                          (default: ~/.cache/lantern-bench/metrics)

    example:
      python -m bench evaluate DIR reference=REAL metrics=[fid,clip]
    """
    import torch

    from bench.measure.device import present, use_given_threads
    from metrics.images import image_files
    from metrics.papers import METRICS

    config = parse(arguments)
    use_given_threads()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if config.device != "auto":
        device = str(present(config.device, "device"))
    if config.out is not None:
        prepare_file(config.out)
    files, default = image_files(config.images), config.images / CAPTIONS_FILE
    if config.captions is None and default.is_file():
        config = replace(config, captions=default)
    captions = captions_of(files, config.captions, config.part) if config.captions else []
    if not config.metrics:  # those that fit
        fit = [m for m in PAPERS if captions or not METRICS[m].captions]
        fit = [m for m in fit if config.reference or not METRICS[m].reference]
        config = replace(config, metrics=("scenes",) if _all_scenes(captions) else tuple(fit))
    if not config.metrics:
        raise ConfigError(
            f"nothing can be measured of {config.images} alone: give captions=FILE (there is no "
            f"{CAPTIONS_FILE} in it), reference=DIR with real images, or both"
        )
    figures = evaluate(config, files, captions, device)
    of = f"metrics {', '.join(config.metrics)}"
    say(f"{config.images}: {figures[0].images} images on {device}, {of}")
    say(terminal(table_of(FIGURE_COLUMNS, figures)))
    notes = dict.fromkeys(f"{f.name}: {f.note}" for f in figures if f.note)
    if not any((folder / STUDY).is_file() for folder in config.images.resolve().parents):
        notes[UNKNOWN_ORIGIN] = None
    say("\n".join([*notes, *_shared_captions(config, captions)]))
    if config.out is not None:
        write_csv(config.out, config, figures, device)
        say(f"written: {config.out}")
    return 0


def parse(arguments: Sequence[str]) -> EvaluateConfig:
    """Reads the settings; a folder without a key is `images`. Raises ConfigError where there is
    none or more than one, DecoderError on a value of another kind."""
    named, rest = folders(arguments)
    rest += [f"images={folder}" for folder in named]
    count = sum(argument.startswith("images=") for argument in rest)
    if count != 1:
        raise ConfigError(
            f"expected one folder of images, found {count}; write `python -m bench evaluate DIR`, "
            "which `python -m bench evaluate --help` explains"
        )
    return settings(EvaluateConfig, rest)


def _all_scenes(captions: Sequence[str]) -> bool:
    """Tells whether there are captions and the embedded CLIP can read them all."""
    from metrics.clip import load

    try:
        return bool(captions) and load().tokens(captions) is not None
    except DecoderError:
        return False


def evaluate(
    config: EvaluateConfig, files: tuple[Path, ...], captions: Sequence[str], device: str
) -> list[Measurement]:
    """Measures the figures of images and captions. Raises MetricError for missing weights, bad
    images or too few of them."""
    from metrics.images import image_files
    from metrics.papers import Evaluation, check_metrics

    real_scenes = config.reference is None and config.metrics == ("scenes",)
    has_reference = config.reference is not None or real_scenes
    check_metrics(config.metrics, reference=has_reference, captions=bool(captions))
    if config.reference and config.reference.resolve() == config.images.resolve():
        raise ConfigError(
            f"reference={config.reference} is the folder of the images themselves; name one of "
            "real images"
        )
    if has_reference:
        prepare_folder(config.cache_dir)
    evaluation = Evaluation(
        config.metrics,
        weights={k: v for k, v in vars(config.weights).items() if k != "folder"},
        folder=config.weights.folder,
        device=device,
        size=config.size,
        batch=config.batch,
        cache_dir=config.cache_dir,
    )
    reference: Reference = image_files(config.reference) if config.reference else ()
    if real_scenes:
        reference = evaluation.scenes_reference(SCENES)
    first = slice(None, config.limit)
    return evaluation.figures(files[first], captions[first], reference)


def _shared_captions(config: EvaluateConfig, captions: Sequence[str]) -> list[str]:
    """Returns a note where the reference was drawn from the captions of the images."""
    from metrics.images import image_files

    path = config.reference / CAPTIONS_FILE if config.reference else None
    if path is None or not path.is_file():
        return []
    shared = {*captions} & {*captions_of(image_files(path.parent), path)}
    if not shared:
        return []
    return [
        f"{len(shared)} captions are also captions of {path.parent}. The intervals of FID, KID, "
        "precision and recall take the two folders for independent, which pictures of the same "
        "captions are not; `bench diff` pairs decoders by image"
    ]


FIGURE_COLUMNS = (
    Column("figure", lambda f: f.name),
    Column("value", lambda f: number(f.score.value)),
    Column("95 % interval", lambda f: f"{number(f.score.lo)} .. {number(f.score.hi)}"),
    Column("images", lambda f: f"{f.images}"),
    Column("reference", lambda f: f"{f.reference or ''}"),
)


def write_csv(
    path: Path, config: EvaluateConfig, figures: Sequence[Measurement], device: str
) -> None:
    """Writes one row per figure; every row says what it was made with. A byte of
    a folder's name that is no UTF-8 is an escape there."""
    import pandas as pd
    import torch

    from bench.measure.device import provenance
    from bench.measure.meter import now
    from decoders.models.loading.weights import sha256_of

    origin = provenance(torch.device(device))
    versions = origin.versions | {name: version(name) for name in ("pillow", "torchvision")}
    common = {
        "image_folder": str(config.images),
        "captions": str(config.captions or ""),
        "captions_sha256": sha256_of(config.captions) if config.captions else "",
        "reference_folder": str(config.reference or ""),
        "device": device,
        "gpu": origin.gpu,
        "git_commit": origin.git_commit,
        "git_dirty": origin.git_dirty,
        "versions": json.dumps(versions, sort_keys=True),
        "made_at": now(),
    }
    rows = [
        {
            "metric": f.metric,
            "figure": f.key,
            "name": f.name,
            "value": f.score.value,
            "lo": f.score.lo,
            "hi": f.score.hi,
            "images": f.images,
            "reference": f.reference,
            "preparation": f.preparation,
            "weights": f.weights.path.name,
            "weights_sha256": f.weights.sha256,
            "note": f.note,
            **common,
        }
        for f in figures
    ]
    plain = [{k: escape_hidden(v) if isinstance(v, str) else v for k, v in r.items()} for r in rows]
    write_text(path, pd.DataFrame(plain).to_csv(index=False))
