"""Runs a study: both protocols, resumable, one row an image of a protocol.

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run,
in the sizes of batches that the study says. Quality: in batches, the same seed for every decoder,
and the baseline again under other seeds (the reseeds). What is recorded already is skipped. A
decoder that raises becomes failed rows. A killed run loses the call in flight. A part of the
quality images is decoded by `bench.run.shards`.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config import schedule
from bench.config.schedule import Batch, Cell, call_of
from bench.config.schema import StudyConfig, digest
from bench.console import progress
from bench.data.errors import DeviceLostError, Failure
from bench.measure.busy import Neighbours
from bench.measure.clock import now
from bench.measure.device import Provenance, prepare, provenance
from bench.measure.machine import watch_of
from bench.prompts import Prompt, call_prompts
from bench.records.folder import Key, RunFolder, check_space, open_folder
from bench.records.rows import SCHEMA_VERSION, empty_measures, image_name
from bench.records.sources import sources_by_cell, weights_of
from bench.records.study import identity_of
from bench.run.lineup import Lineup
from bench.run.outcome import blamed, measured, picture_of, require_main_thread
from bench.run.session import check_prompts, frozen_heap, load_model
from decoders.api import ImageModel

log = logging.getLogger(__name__)
Row = dict[str, Any]  # and "picture", its picture, where it is to be kept


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
    with opened(config) as run:
        folder, (latency, quality) = run.folder, run.batches()
        run.resume([*latency, *quality])
        run.all(schedule.parts(latency, quality, config.latency.block_count), config.name)
        folder.tables = {k: folder.tables[k] for b in (*latency, *quality) for k in b.keys}
        return RunResult(folder.path, folder.merge().to_pandas(), run.model, run.every)


@contextmanager
def opened(config: StudyConfig, shard: str = "") -> Iterator[Run]:
    """A run before its first image: its folder open, the model loaded, every decoder built.
    shard: the name of one."""
    device = prepare(config.backend)
    made = provenance(device)
    require_main_thread(config.time_limit)
    prompts = call_prompts(config.prompts, config.prompts_needed)
    identity = config.measured(), config.hash, made.machine()
    with open_folder(Path(config.run_dir), *identity, shard) as folder:
        model = load_model(config, device, prompts, config.latency.sizes)
        check_prompts(model, prompts)
        yield Run(config, folder, model, made, prompts)


class Run:
    """The state of a run in progress."""

    def __init__(
        self,
        config: StudyConfig,
        folder: RunFolder,
        model: ImageModel,
        made: Provenance,
        prompts: Sequence[Prompt],
    ) -> None:
        # Of an encoder that is loaded apart from the model.
        hashes = {**model.weights_sha256, **model.text.sha256()}
        model = dataclasses.replace(model, weights_sha256=hashes)
        self.config, self.folder, self.model, self.prompts = config, folder, model, prompts
        self.every = schedule.cells(config, model.sampling)
        # Before any of it is imported: what is read is what runs.
        self.sources, weights = sources_by_cell(config, self.every), weights_of(model, self.every)
        self.lineup = Lineup(config, model, self.every, prompts)
        self.labels = {cell.key: self.lineup.labels(cell) for cell in self.every}
        self.weights = weights()
        self.made, self.hash = made, config.hash
        self.left: list[Batch] = []  # not recorded yet when `all` began
        self.watch = watch_of(folder.path, model, made.gpu or made.cpu)
        self.neighbours = Neighbours(config.latency, config.backend.device)
        if not self.lineup.meter.exact:
            log.warning("peak memory is that of the whole process so far: it cannot be reset here")

    def batches(self) -> tuple[list[Batch], list[Batch]]:
        """All that is to be decoded: timed, and for quality."""
        return schedule.latency_batches(self.config, self.every), self.quality()

    def quality(self, shard: tuple[int, int] = (0, 1)) -> list[Batch]:
        """What is to be decoded for quality, of all images or of a shard (i, n)."""
        return schedule.quality_batches(self.config, self.every, shard)

    def resume(self, mine: Sequence[Batch]) -> None:
        """Takes the rows of these batches that count, and looks whether what is left fits on the
        disk. study.json says how many rows the whole run will have, for whoever asks how far it is.
        """
        total = sum(len(batch.indices) for part in self.batches() for batch in part)
        self.folder.expect(total)
        each = ((key, b, i) for b in mine for key, i in zip(b.keys, b.indices, strict=True))
        keys = {key: identity_of(self.identity(b, i)) for key, b, i in each}
        self.folder.resume(keys, self.config.retry_failed)
        left = [b for b in mine for key in b.keys if key not in self.folder.tables]
        pictures = sum(map(self.draws, left))
        check_space(self.folder.path, len(left), pictures)

    def identity(self, batch: Batch, index: int) -> dict[str, Any]:
        """The columns of a row that are known before anything runs."""
        config, cell, prompt = self.config, batch.cell, self.prompts[index]
        texts = {"versions": self.made.versions, "sources": self.sources[cell.key]}
        texts["weights_hash"] = self.weights[cell.key]
        return {
            "schema_version": SCHEMA_VERSION,
            "study": config.name,
            "protocol": batch.protocol,
            "model": config.model.name,
            "decoder": cell.entry.name,
            **self.labels[cell.key],
            "backend": config.backend.name,
            "device": config.backend.device,
            "dtype": config.backend.dtype,
            **vars(cell.sampling),
            "prompt_index": index,
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "prompt_hash": digest(prompt.text),
            "category": prompt.category,
            "seed": batch.seed,
            "batch": batch.size,
            "block": batch.block,
            "config_hash": self.hash,
            **vars(self.made),
            **{name: json.dumps(value, sort_keys=True) for name, value in texts.items()},
        }

    def draws(self, batch: Batch) -> bool:
        """Whether a batch has pictures to keep."""
        drawn = self.config.keep_images and self.model.draws
        return drawn and batch.protocol != schedule.BATCHED

    def all(self, parts: Sequence[Sequence[Batch]], name: str) -> None:
        """Runs the batches that are not recorded yet, in order. name: what the terminal shows."""
        total = sum(len(b.indices) for part in parts for b in part)
        have = self.folder.tables
        todo = [[b for b in part if not all(key in have for key in b.keys)] for part in parts]
        left = sum(len(b.indices) for part in todo for b in part)
        self.left = [batch for part in todo for batch in part]
        self.lineup.expect(self.left)
        timed = [part for part in todo if part and part[0].timed]
        every = [part for part in parts if part and part[0].timed]
        # A session stopped behind the last timed image has left the moment after it to this one.
        records = self.folder.path / "records.parquet"
        behind = bool(timed) or (bool(every) and not records.exists())
        if not (left or behind or any(map(self.disturbed, every))):
            return
        with frozen_heap(), progress(total, name, total - left) as bar:
            self.lineup.announce(bar)
            for part in filter(None, todo):
                if part[0].timed:
                    # Measuring takes memory: where the peak cannot be reset, it comes last.
                    if self.lineup.meter.exact:
                        self._look(bar)
                    self._warm(part, bar)
                gc.collect()
                gc.freeze()  # what the warm-up has left to stay
                for batch in part:
                    bar.set_postfix_str(f"{batch.cell.entry.name} ({batch.protocol})", False)
                    self.run(batch)
                    self.lineup.done(batch)
                    bar.update(len(batch.indices))
            self._time_again(every, bar)
            if behind:
                self._look(bar)

    def _warm(self, part: Sequence[Batch], bar: Any) -> None:
        """Warms up every decoder of a part, at every size of its batches."""
        first: dict[tuple[str, int], Batch] = {}
        for batch in part:
            first.setdefault(call_of(batch), batch)
        for batch in first.values():
            bar.set_postfix_str(f"warming up {batch.cell.entry.name}")
            with self._losing(batch.cell):
                self.lineup.warm(batch)

    @contextmanager
    def _losing(self, cell: Cell) -> Iterator[None]:
        """Where a cell's decoder loses the GPU inside, what is left of the cell is recorded as
        failed, so that a resume goes on without it. Raises DeviceLostError."""
        started = now()
        try:
            yield
        except DeviceLostError as error:
            for batch in self.left:
                if batch.cell.key == cell.key:
                    self._fail(batch, str(error), started)
            raise DeviceLostError(
                f"{cell.entry.name} has stopped the GPU ({error}), and nothing more can run in "
                "this process. Its images to come are recorded as failed; the same command goes "
                "on with the other decoders, and with retry_failed=true tries this one again"
            ) from error

    def _look(self, bar: Any) -> None:
        """Measures the machine, where anything asks for its rates."""
        if self.watch is not None:
            bar.set_postfix_str("measuring the machine")
            log.info("the machine: %s", self.watch.look())

    def disturbed(self, part: Sequence[Batch]) -> int:
        """How many timed images of a part were disturbed."""
        return sum(bool(self.folder.said(batch.keys[0], "disturbed")) for batch in part)

    def _time_again(self, parts: Sequence[Sequence[Batch]], bar: Any) -> None:
        """Times the blocks with disturbed images again. A block's rows are replaced, all of them,
        where fewer are disturbed than before. A row that fails now stays as it was."""
        for part in parts:
            before = self.disturbed(part)
            if not before:
                continue
            if not self.neighbours.quiet():
                log.warning("the machine is still busy: disturbed images stay; run it again later")
                return
            again = [b for b in part if self.folder.said(b.keys[0], "status") == "ok"]
            self.lineup.expect(again)
            self._warm(again, bar)
            made, found = dict[Key, Row](), 0
            for batch in again:
                bar.set_postfix_str(f"{batch.cell.entry.name} (disturbed, timed again)", False)
                started = now()
                rows = self._attempt(batch)
                self.lineup.done(batch)
                if isinstance(rows, Failure):
                    continue
                names = "image", "image_hash"  # of the picture that it has
                kept = {name: self.folder.said(batch.keys[0], name) for name in names}
                for key, row in zip(batch.keys, rows, strict=True):
                    made[key] = row | kept | {"started_at": started}
                found += rows[0]["disturbed"]
                if found >= before:
                    made.clear()
                    break
            for key, row in made.items():
                self.folder.add(*key, row)
            became = "replaced" if made else "no quieter"
            log.info("block %d timed again: %s", part[0].block, became)

    def run(self, batch: Batch) -> None:
        """Decodes one batch and records its rows, those of a failure too."""
        started = now()
        with self._losing(batch.cell):
            rows = self._attempt(batch)
        if isinstance(rows, Failure):
            self.lineup.late[batch.cell.key] += rows.late
            self._fail(batch, rows.error, started)
            return
        self._record(batch, rows, started)
        if batch.timed:
            self.neighbours.after(rows[0])

    def _fail(self, batch: Batch, error: str, started: str) -> None:
        """Records the rows of a batch that failed."""
        error = blamed(error, batch.cell.entry.spec)
        log.warning("%s failed (%s): %s", batch.cell.entry.name, batch.protocol, error)
        state = {**empty_measures(), "status": "failed", "error": error}
        self._record(batch, [self.identity(batch, i) | state for i in batch.indices], started)

    def _attempt(self, batch: Batch) -> list[Row] | Failure:
        """The rows of a batch, or what went wrong. Raises SharedStateError, DeviceLostError."""
        return self.lineup.attempt(batch.cell, lambda: self.measure(batch))

    def _record(self, batch: Batch, rows: Sequence[Row], started: str) -> None:
        for key, row in zip(batch.keys, rows, strict=True):
            if key not in self.folder.tables:  # recorded before the run was killed
                image = row.pop("picture", None)
                name = {} if image is None else {"image": image_name(*key)}
                self.folder.add(*key, row | name | {"started_at": started}, image)

    def measure(self, batch: Batch) -> list[Row]:
        """Rows and pictures of one batch. Raises whatever the decoder raises."""
        outcome = self.lineup.decode(batch)
        rule = getattr(self.lineup.built[batch.cell.key], "rule", None)
        disturbed = batch.timed and self.neighbours.disturb(outcome.load)
        state = {"disturbed": disturbed, "status": "ok", "error": ""}
        rows = measured(outcome, batch.timed, rule)[: len(batch.indices)]  # the others are copies
        for b, (index, row) in enumerate(zip(batch.indices, rows, strict=True)):
            row |= self.identity(batch, index) | state
            if outcome.images is not None and self._wants_picture(batch, index):
                row["picture"] = picture_of(outcome.images[b])
        return rows

    def _wants_picture(self, batch: Batch, index: int) -> bool:
        """Whether the picture of an image is to be kept: not of one that is timed again."""
        key = batch.cell.key, batch.stem(index)
        return self.draws(batch) and not self.folder.said(key, "image")
