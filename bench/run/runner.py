"""Runs a study: both protocols, resumable, one row an image (or each time it is timed).

Latency: batch 1, every decoder warmed up, then interleaved prompt by prompt, in blocks spread over
the run, all of it as often as the study says. Quality: in batches, the same seed for every decoder,
and the baseline again under other seeds (the reseeds).
Whatever is recorded already is skipped. A decoder that raises becomes failed rows; others go on.
A killed run loses the call in flight and nothing else.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image

from bench.config.describe import labels
from bench.config.plugins import call_prompts
from bench.config.schema import StudyConfig
from bench.console import progress
from bench.errors import TimeLimitError, printable
from bench.measure.clock import Clock, now
from bench.measure.device import Provenance, prepare, provenance
from bench.measure.memory import meter_of
from bench.measure.moments import moments_of, watch_of
from bench.prompts import Prompt
from bench.prompts.readable import check_prompts
from bench.records.folder import RunFolder, check_space, open_folder
from bench.records.identity import Weights, code_of
from bench.records.rows import Context, measured
from bench.run import schedule as study
from bench.run.attention import go_by
from bench.run.neighbours import Neighbours, time_again
from bench.run.outcome import Failure, Outcome, attempt, blamed, build_cell, decode, differing
from bench.run.schedule import Batch, Cell, call_of
from bench.run.session import collect_all, frozen_heap, load_model, with_text_hashes
from bench.run.time_limit import require_main_thread
from bench.run.warmup import warm_up
from decoders.api import Decoder, DecoderError, ImageModel

log = logging.getLogger(__name__)
LATE = 2  # images that ran into the time limit until a decoder is not tried any more


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its folder, the merged rows, and what they were made with."""

    path: Path
    rows: pd.DataFrame
    model: ImageModel
    cells: list[Cell]


def run_study(config: StudyConfig) -> RunResult:
    """Runs (or resumes) a study and merges its rows.

    Raises, before work starts where possible: ConfigError, PromptError, FolderError, DecoderError
    (a model or decoder that cannot be built, a prompt that the model cannot read), DiskFullError.
    """
    device = prepare(config.backend)
    made = provenance(device)
    require_main_thread(config.time_limit)
    prompts = call_prompts(config.prompts, max(config.latency.prompts, config.quality.images))
    path = Path(config.run_dir)
    with open_folder(path, config.measured(), config.hash, made.machine()) as folder:
        run = opened(config, folder, device, made, prompts)
        latency, quality = run.batches()
        keys = run.context.expected((*latency, *quality))
        folder.expect(len(keys))
        run.resume(keys, (*latency, *quality))
        with frozen_heap():
            run.all(study.parts(latency, quality, config.latency.parts))
        folder.tables = {key: folder.tables[key] for key in keys}
        return RunResult(path, folder.merge().to_pandas(), run.model, run.every)


def opened(
    config: StudyConfig,
    folder: RunFolder,
    device: torch.device,
    made: Provenance,
    prompts: Sequence[Prompt],
) -> Run:
    """A run before its first image: the model loaded, every decoder built."""
    model = load_model(config, device, prompts, (1,) if config.latency.prompts else ())
    check_prompts(model, prompts)
    go_by(folder, model)
    model = with_text_hashes(model)
    every = study.cells(config, model.sampling)
    codes = code_of(config, every)  # before any of it is imported: what is read is what runs
    return Run(config, folder, model, every, made, prompts, codes)


class Run:
    """The state of a run in progress."""

    def __init__(
        self,
        config: StudyConfig,
        folder: RunFolder,
        model: ImageModel,
        every: list[Cell],
        made: Provenance,
        prompts: Sequence[Prompt],
        codes: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.config, self.folder, self.model, self.prompts = config, folder, model, prompts
        self.every = every
        self.clock, self.meter = Clock(model.device), meter_of(model)
        self.watch = watch_of(folder.path, model, made.gpu or made.cpu)
        weights = Weights(model, every)
        self.decoders = {cell.key: self._build(cell) for cell in every}
        self.warm: set[str] = set()  # cells that were warmed up until stable
        own = self._labels(every), codes, weights.by_cell()
        self.neighbours = Neighbours(config)
        self.late: Counter[str] = Counter()  # of each cell: calls that ran into the time limit
        self.ahead: Counter[tuple[str, int]] = Counter()  # of each `call_of`: batches to come
        self.context = Context(config, made, prompts, *own)
        if not self.meter.exact:
            log.warning("peak memory is that of the whole process so far: it cannot be reset here")

    def _build(self, cell: Cell) -> Decoder | Failure:
        """The decoder of a cell. DecoderError (a setting that cannot be) stops the run before work
        starts; any other error is the decoder's own and becomes its failed rows."""
        name, built = cell.entry.name, build_cell(self.model, cell)
        if isinstance(built, Failure):
            log.warning("%s cannot be built: %s", name, built.error)
        elif study.is_replayed(built) and study.REPLAYED not in name:
            raise DecoderError(
                f"{name} replays recorded acceptance, which its name must say wherever it appears; "
                f"call it {name}_{study.REPLAYED} (`name:` of its entry)"
            )
        elif study.is_replayed(built) and not self.config.latency.prompts:
            raise DecoderError(
                f"{name} replays recorded acceptance, so its times are all that it is run for; set "
                "latency.prompts"
            )
        return built

    def replays(self, cell: Cell) -> bool:
        """Whether a cell's acceptance is replayed: it has times, and neither pictures nor quality
        figures."""
        return study.is_replayed(self.decoders[cell.key])

    def batches(self) -> tuple[list[Batch], list[Batch]]:
        """All that is to be decoded: timed, and for quality."""
        return study.latency_batches(self.config, self.every), self.quality()

    def quality(self, shard: tuple[int, int] = (0, 1)) -> list[Batch]:
        """What is to be decoded for quality, of all images or of a shard (i, n)."""
        found = study.quality_batches(self.config, self.every, shard)
        return [batch for batch in found if not self.replays(batch.cell)]

    def resume(
        self, keys: Mapping[tuple[str, str], Mapping[str, Any]], batches: Sequence[Batch]
    ) -> None:
        """Takes the rows of `keys` that count, and looks whether what is left fits on the disk."""
        self.folder.resume(keys, self.config.retry_failed)
        left = [b for b in batches for key in b.keys if not self.folder.has(*key)]
        pictures = sum(self.draws(b) for b in left if not b.repeat)  # an image has one
        check_space(self.folder.path, len(left), pictures)

    def draws(self, batch: Batch) -> bool:
        """Whether a batch has pictures to keep."""
        return self.config.keep_images and self.model.draws and not self.replays(batch.cell)

    def _labels(self, every: Sequence[Cell]) -> dict[str, dict[str, str]]:
        built = {key: None if isinstance(d, Failure) else d for key, d in self.decoders.items()}
        return {cell.key: self._label(cell, built[cell.key]) for cell in every}

    def _label(self, cell: Cell, built: Decoder | None) -> dict[str, str]:
        """In the built parts' own words, where those can be had."""
        own = attempt(lambda: labels(cell.entry.spec, built))
        found = labels(cell.entry.spec, None) if isinstance(own, Failure) else own
        return {name: printable(text) for name, text in found.items()}

    def all(self, parts: Sequence[Sequence[Batch]]) -> None:
        """Runs the batches that are not recorded yet, in order."""
        total = sum(len(b.indices) for part in parts for b in part)
        todo = [[b for b in part if not self.recorded(b)] for part in parts]
        left = sum(len(b.indices) for part in todo for b in part)
        self.expect([batch for part in todo for batch in part])
        timed = [part for part in todo if part and part[0].protocol == "latency"]
        every = [part for part in parts if part and part[0].protocol == "latency"]
        # A session stopped behind the last timed image has left the moment after it to this one.
        records = self.folder.path / "records.parquet"
        behind = bool(timed) or (bool(every) and not records.exists())
        if not (left or behind or any(map(self.disturbed, every))):
            return
        # Measuring takes memory: where the peak cannot be reset, it comes after all images.
        looks = moments_of(len(timed)) if self.meter.exact else set()
        rounds = itertools.count()
        with progress(total, self.config.name, total - left) as bar:
            for part in filter(None, todo):
                if part[0].protocol == "latency":
                    if next(rounds) in looks:
                        self._look(bar)
                    self.warm_all(part, bar)
                gc.collect()
                gc.freeze()  # what the warm-up has left to stay
                for batch in part:
                    bar.set_postfix_str(f"{batch.cell.entry.name} ({batch.protocol})", False)
                    self.run(batch)
                    self.done(batch)
                    bar.update(len(batch.indices))
            time_again(self, every, bar)
            if behind:
                self._look(bar)

    def _look(self, bar: Any) -> None:
        """Measures the machine, where anything asks for its rates."""
        if self.watch is not None:
            bar.set_postfix_str("measuring the machine")
            log.info("the machine: %s", self.watch.look())

    def expect(self, batches: Sequence[Batch]) -> None:
        """What is to come, each batch of it until it is `done`."""
        self.ahead = Counter(map(call_of, batches))

    def done(self, batch: Batch) -> None:
        """Counts a batch that was decoded or given up. Drops what the decoder's backend prepared
        for calls that do not come again: a recorded step keeps its caches."""
        key = batch.cell.key
        self.ahead[call_of(batch)] -= 1
        prepared: dict[Any, Any] = getattr(self.decoders[key], "prepared", {})
        left = {size for (cell, size), count in self.ahead.items() if cell == key and count > 0}
        if self.late[key] >= LATE:
            left.clear()
        dropped = [
            size for size in prepared if not left or (type(size) is int and size not in left)
        ]
        for size in dropped:
            del prepared[size]
        if dropped:
            collect_all()

    def recorded(self, batch: Batch) -> bool:
        return all(self.folder.has(*key) for key in batch.keys)

    def said(self, batch: Batch, column: str) -> Any:
        """What the row of a timed image says; None where it is not recorded."""
        table = self.folder.tables.get(batch.keys[0])
        return None if table is None else table.column(column)[0].as_py()

    def disturbed(self, part: Sequence[Batch]) -> int:
        """How many timed images of a part were disturbed."""
        return sum(bool(self.said(batch, "disturbed")) for batch in part)

    def warm_all(self, todo: Sequence[Batch], bar: Any) -> None:
        """Every decoder that has something to time: until its times are stable, and one image
        before each block after that. One that fails will fail on its rows again."""
        limits = self.config.latency
        first: dict[str, Batch] = {}
        for batch in todo:
            first.setdefault(batch.cell.key, batch)
        for batch in first.values():
            decoder = self.decoders[batch.cell.key]
            bar.set_postfix_str(f"warming up {batch.cell.entry.name}")
            if isinstance(decoder, Failure) or self.late[batch.cell.key] >= LATE:
                continue
            ran: set[str] = set()

            def image(
                batch: Batch = batch, decoder: Decoder = decoder, ran: set[str] = ran
            ) -> float:
                made = self._decode(batch, decoder)
                ran.update(made.generation.trace.path.values())
                return made.seconds_total

            most = 1 if batch.cell.key in self.warm else limits.warmup_max
            times = attempt(
                lambda image=image, most=most: warm_up(  # type: ignore[misc]
                    image, most, limits.warmup_tolerance
                )
            )
            if isinstance(times, Failure):
                self.late[batch.cell.key] += times.late
            else:
                if "compiled" in ran and batch.cell.key not in self.warm:
                    self._compare(batch, decoder)
                self.warm.add(batch.cell.key)
            log.info("warm-up of %s: %s", batch.cell.entry.name, times)

    def _compare(self, batch: Batch, decoder: Decoder) -> None:
        """Holds a compiled decoder's first image against that of the same pieces without a
        compiler: where they differ, its rows fail."""
        how, cell = self.model.execution.uncompiled(), batch.cell
        plain = how and build_cell(dataclasses.replace(self.model, execution=how), cell)
        if plain is None or isinstance(plain, Failure):
            return
        both, prompt = (decoder, plain), self.prompts[batch.indices[0]].text
        odd = attempt(
            lambda: differing(both, self.model, prompt, batch.seed, self.config.time_limit)
        )
        if odd is True:
            self.decoders[cell.key] = Failure(
                "its compiled pieces give other codes than the same pieces without a compiler, in "
                "two of three images; set backend.compile=off, and report it with this decoder"
            )

    def run(self, batch: Batch, again: bool = False) -> None:
        """Decodes one batch and records its rows, those of a failure too. again: what fails is
        tried once more, image by image, so that one bad image costs no others."""
        started = now()
        rows = attempt(lambda: self.measure(batch))
        if again and isinstance(rows, Failure) and not rows.late:
            log.warning("%s failed, tried again: %s", batch.cell.entry.name, rows.error)
            for index in batch.indices:
                self.run(dataclasses.replace(batch, indices=(index,)))
        elif isinstance(rows, Failure):
            self.late[batch.cell.key] += rows.late
            self.fail(batch, rows.error, started)
        else:
            self._record(batch, rows, started)
            if batch.protocol == "latency":
                self.neighbours.after(rows[0][0])

    def fail(self, batch: Batch, error: str, started: str) -> None:
        """Records a batch as failed."""
        error = blamed(error, batch.cell.entry.spec)
        log.warning("%s failed (%s): %s", batch.cell.entry.name, batch.protocol, error)
        blank = [self.context.failed(batch, i, error, started) for i in batch.indices]
        self._record(batch, [(row, None) for row in blank], started)

    def _record(
        self,
        batch: Batch,
        rows: Sequence[tuple[dict[str, Any], Image.Image | None]],
        started: str,
    ) -> None:
        for index, (row, image) in zip(batch.indices, rows, strict=True):
            key, stem = batch.cell.key, batch.stem(index)
            if self.folder.has(key, stem):
                continue  # recorded before the run was killed
            if row["status"] == "ok":
                row["started_at"] = started
                if image is not None:
                    row["image"] = self.folder.image_name(key, stem)
            self.folder.add(key, stem, row, image)

    def measure(self, batch: Batch) -> list[tuple[dict[str, Any], Image.Image | None]]:
        """Rows and pictures of one batch. Raises whatever the decoder raises."""
        decoder = self.decoders[batch.cell.key]
        if isinstance(decoder, Failure):
            raise DecoderError(f"it cannot be run: {decoder.error}")
        if self.late[batch.cell.key] >= LATE:
            raise TimeLimitError(
                f"not tried: {LATE} calls ran into time_limit={self.config.time_limit:g} s before; "
                "set a longer one and retry_failed=true to try again"
            )
        outcome = self._decode(batch, decoder)
        latency = batch.protocol == "latency"
        rule = getattr(decoder, "rule", None)
        out = []
        for b, row in enumerate(measured(outcome, latency, rule)):
            identity = self.context.identity(batch, batch.indices[b])
            row["disturbed"] = latency and self.neighbours.disturb(outcome.load)
            picture = None
            if outcome.images is not None and self._wants_picture(batch, batch.indices[b]):
                picture = Image.fromarray(outcome.images[b].permute(1, 2, 0).numpy())  # [H, W, 3]
            out.append(({**identity, **row, "status": "ok", "error": ""}, picture))
        return out

    def _wants_picture(self, batch: Batch, index: int) -> bool:
        """Whether the picture of an image is to be kept: in the first round that it came out in,
        since all rounds decode the same one."""
        if not self.draws(batch):
            return False
        rounds = (dataclasses.replace(batch, repeat=r) for r in range(self.config.latency.repeats))
        return not any(self.folder.keeps_image(batch.cell.key, r.stem(index)) for r in rounds)

    def _decode(self, batch: Batch, decoder: Decoder) -> Outcome:
        prompts = [self.prompts[i].text for i in batch.indices]
        return decode(
            self.model,
            decoder,
            prompts,
            batch.seed,
            clock=self.clock,
            meter=self.meter,
            pairs=self._pairs(batch),
            limit=self.config.time_limit,
        )

    def _pairs(self, batch: Batch) -> float:
        """Verified pairs to record of an image. At temperature 0 there is no output law."""
        quality = self.config.quality
        if batch.protocol != "quality" or batch.cell.sampling.greedy:
            return 0
        return quality.pairs / quality.images
