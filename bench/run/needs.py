"""What a run needs before it starts: disk, memory of the card, and hours.

Why: a table of the papers' size is 119,000 pictures and most of a day. A disk that fills up in the
night, or a batch that does not fit the card, is known beforehand.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.config.schema import StudyConfig, variants
from bench.console import say
from bench.errors import Failure, FolderError, attempt, plural
from bench.measure.device import prepare, provenance
from bench.measure.meter import Meter
from bench.prompts import load_prompts
from bench.run.contender import Contender, Study, examined_study, load_model
from bench.run.decode import generate
from bench.run.schedule import Job, all_jobs
from bench.store.columns import BATCHED
from bench.store.facts import STUDY, require_same
from bench.store.run_folder import Key, RunFolder, read_folder, require_usable
from decoders.api import Decoder, ImageModel, Sampling
from decoders.cache import round_up
from decoders.kinds import Size, validate

GB = 1e9
CODE_PIXELS = {"decoders.models.emu3.load": 8}  # of a code's side, by a model's loader
USUAL_CODE_PIXELS = 16
EMBEDDED_GRID = 16  # codes of a side of the embedded models, whose YAML has no `grid`
# A picture's file: 117 KB at 256 x 256, measured; a larger one has fewer bytes per pixel.
PNG_BYTES, PNG_SIDE, PNG_GROWTH = 117e3, 256, 1.55
ROW_BYTES, ROW_BYTES_PER_CODE = 6_000, 20
ROW_COPIES = 2  # a row is in its file and in records.parquet
SPARE_BYTES = 1e9  # for the report and for others
LOGITS = 6  # float32 values of a code's logits and distributions that a step holds at once


@dataclass(frozen=True)
class DiskNeed:
    """pictures, rows: how many; size: bytes that are still to be written; free: bytes of the
    disk."""

    pictures: int
    rows: int
    size: int
    free: int

    def __str__(self) -> str:
        return (
            f"disk: {self.size / GB:.1f} GB more for {plural(self.pictures, 'picture')} and "
            f"{plural(self.rows, 'row')}; {self.free / GB:.1f} GB are free"
        )


def jobs_of(config: StudyConfig) -> list[Job]:
    """The jobs of a study, counted without its model: at the usual temperature where none is
    set."""
    not_built = Failure("not built")
    every = [Contender(variant, not_built) for variant in variants(config, Sampling())]
    return all_jobs(config, every)


def disk_need(config: StudyConfig) -> DiskNeed:
    """What a run writes beyond what its folder holds."""
    jobs = jobs_of(config)
    rows = sum(len(job.indices) for job in jobs)
    drawn = sum(len(job.indices) for job in jobs if job.protocol != BATCHED)
    pictures = drawn if config.keep_images else 0
    side = validate("model.grid", config.model.kwargs.get("grid"), Size | None) or EMBEDDED_GRID
    pixels = side * CODE_PIXELS.get(config.model.target, USUAL_CODE_PIXELS)
    picture_bytes = PNG_BYTES * (pixels / PNG_SIDE) ** PNG_GROWTH
    row_bytes = ROW_COPIES * (ROW_BYTES + ROW_BYTES_PER_CODE * side**2)
    whole = pictures * picture_bytes + rows * row_bytes + SPARE_BYTES
    folder = Path(config.run_dir)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    walked = os.walk(folder)
    held = sum((Path(path) / name).lstat().st_size for path, _, names in walked for name in names)
    return DiskNeed(pictures, rows, max(0, int(whole) - held), shutil.disk_usage(there).free)


def require_disk(config: StudyConfig) -> DiskNeed:
    """What a run writes. Raises FolderError where the disk is too small for it."""
    need = disk_need(config)
    if need.size > need.free:
        raise FolderError(
            f"{config.run_dir}: {need}. Free some, name a folder of another disk (run_dir=DIR), "
            "decode fewer images (quality.images=N), or keep no pictures (keep_images=false: then "
            "there are no quality figures)"
        )
    return need


def memory_need(config: StudyConfig, model: ImageModel) -> int:
    """Bytes of the card that weights, caches and logits of the largest batch take, once the model
    is loaded."""
    target, size = model.target, max([*config.latency.sizes, config.quality.batch])
    copies = model.sampling.guidance_rows
    slots = round_up(target.prefix + target.length + tree_slots(config))
    cache = target.new_cache(copies, slots).data
    weights = sum(p.nbytes for p in parameters(model))
    nodes = tree_slots(config) + 1
    logits = size * nodes * target.vocab_size * 4 * LOGITS
    return int(weights + size * cache.nbytes + logits)


def memory_line(config: StudyConfig, model: ImageModel) -> str:
    """`memory_need` in words, with what the card has free beside the weights."""
    need = memory_need(config, model)
    if model.device.type != "cuda":
        return f"memory: about {need / GB:.1f} GB"
    free, whole = torch.cuda.mem_get_info(model.device)
    room = free + torch.cuda.memory_reserved(model.device)
    text = f"memory of the card: about {need / GB:.1f} GB; {room / GB:.1f} of {whole / GB:.1f} GB"
    few = " are free: lower quality.batch" if need > room else " are free"
    return text + few


def tree_slots(config: StudyConfig) -> int:
    """The nodes of the largest draft that a study's settings name."""
    parts = [part.kwargs for entry in config.decoders for part in entry.spec.parts]
    sizes = [kwargs.get(name) for kwargs in parts for name in ("nodes", "window")]
    return max([size for size in sizes if isinstance(size, int)], default=0)


def parameters(model: ImageModel) -> Iterable[torch.Tensor]:
    """The weights of all parts that are loaded."""
    parts: list[Any] = [
        model.target,
        getattr(model.tokenizer, "vq", None),
        *model.drafters.values(),
    ]
    for part in parts:
        if isinstance(part, torch.nn.Module):
            yield from part.parameters()


@torch.inference_mode()
def first_hours(study: Study, decoder: Decoder, done: Container[Key]) -> str:
    """How long the images that are not `done` take, by an image and a batch that the study's first
    decoder decodes now, without a compiler. Raises what the decoder raises."""
    config, model, prompts = study.config, study.model, study.prompts
    meter = Meter(model.device)

    def seconds(size: int) -> float:
        """Of an image, `size` at once."""
        texts = [prompt.text for prompt in prompts[:size]]
        generate(model, decoder, texts, config.first_seed, meter)
        return sum(meter.seconds.values()) / size

    sizes = Counter[int]()
    for job in all_jobs(config, study.contenders):
        sizes[job.size] += sum(key not in done for key in job.keys)
    if not (sizes := +sizes):  # a counter's + drops zeros
        return "hours: none, every image has its row"
    generate(model, decoder, [prompts[0].text], config.first_seed, meter)  # the first one is slower
    name, times = config.decoders[0].name, {size: seconds(size) for size in sizes}
    total = sum(count * times[size] for size, count in sizes.items())
    each = ", ".join(f"{times[size]:.2g} s in batches of {size}" for size in sorted(sizes))
    return (
        f"hours: about {total / 3600:.1f} for {plural(sizes.total(), 'image')}, if each takes as "
        f"long as one of {name} without a compiler ({each}); fewer where steps are compiled"
    )


def dry_run(config: StudyConfig) -> int:
    """Says what a run needs; the images that it decodes for that are not kept. Returns an exit
    status: 1 where the disk is too small, or the model or a decoder cannot be made or run. What the
    run refuses before its first image is refused: prompts, its folder, settings, the target, at
    first what no model is needed for. Raises PromptError, FolderError, ConfigError, DecoderError,
    TargetError."""
    need = disk_need(config)
    folder = Path(config.run_dir)
    require_usable(folder)
    run = read_folder(folder) if (folder / STUDY).exists() else RunFolder(folder)
    if run.rows:
        require_same(folder, {"config_hash": config.hash, "config": config.measured()})
    prompts = load_prompts(config.prompts, config.prompts_needed, config.replicate)
    say(f"{need}")
    model = attempt(lambda: load_model(config, prepare(config.backend)))
    if isinstance(model, Failure):
        say(f"memory, hours: known once the model can be loaded here. {model.error}")
        say("`python -m bench fetch`, with the same settings, downloads weights that are missing")
        return 1
    study = examined_study(config, model, run, provenance(model.device), prompts)
    say(memory_line(config, model))
    decoders = [contender.decoder for contender in study.contenders]
    first = decoders[0]
    hours: str | Failure = (
        first
        if isinstance(first, Failure)
        else attempt(partial(first_hours, study, first, run.rows))
    )
    say(f"hours: not known. {hours.error}" if isinstance(hours, Failure) else hours)
    failed = any(isinstance(one, Failure) for one in (*decoders, hours))
    return int(need.size > need.free or failed)
