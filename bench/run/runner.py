"""Runs a study: both protocols, resumable, one row an image (or each time it is timed).

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run,
as often and in the sizes of batches that the study says. Quality: in batches, the same seed for
every decoder, and the baseline again under other seeds (the reseeds). What is recorded already is
skipped. A decoder that raises becomes failed rows. A killed run loses the call in flight.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from bench.config import schedule
from bench.config.plugins import call_prompts
from bench.config.schedule import Batch, Cell
from bench.config.schema import StudyConfig
from bench.console import progress
from bench.data.errors import Failure
from bench.measure.clock import now
from bench.measure.device import prepare, provenance
from bench.measure.moments import moments_of, watch_of
from bench.records.folder import SHARDS, RunFolder, check_space, open_folder
from bench.records.sources import Weights, sources_by_cell
from bench.run.harm import Trying
from bench.run.lineup import Lineup
from bench.run.neighbours import Neighbours
from bench.run.outcome import blamed, require_main_thread
from bench.run.rows import Context, measured
from bench.run.session import (
    ATTENTION,
    check_prompts,
    frozen_heap,
    go_by,
    load_model,
    with_text_hashes,
)
from decoders.api import ImageModel

log = logging.getLogger(__name__)
Row = tuple[dict[str, Any], Image.Image | None]  # with its picture


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its folder, the merged rows, and what they were made with."""

    path: Path
    rows: pd.DataFrame
    model: ImageModel
    cells: list[Cell]


def run_study(config: StudyConfig, attention: Sequence[dict[str, Any]] = ()) -> RunResult:
    """Runs (or resumes) a study and merges its rows. attention: choices of another run to go by
    (study.json), so that codes in half precision are the same.

    Raises, before work starts where possible: ConfigError, PromptError, FolderError, DecoderError
    (a model or decoder that cannot be built, a prompt that the model cannot read), DiskFullError.
    """
    with opened(config, attention=attention) as run:
        folder, (latency, quality) = run.folder, run.batches()
        keys = run.context.expected((*latency, *quality))
        folder.expect(len(keys))
        run.resume(keys, (*latency, *quality))
        with frozen_heap():
            run.all(schedule.parts(latency, quality, config.latency.parts), config.name)
        folder.tables = {key: folder.tables[key] for key in keys}
        return RunResult(folder.path, folder.merge().to_pandas(), run.model, run.every)


@contextmanager
def opened(
    config: StudyConfig,
    shard: str = "",
    threads: int | None = None,
    attention: Sequence[dict[str, Any]] = (),
) -> Iterator[Run]:
    """A run before its first image: its folder open, the model loaded, every decoder built.
    shard: the name of a worker's; threads: of this process, in place of the study's; attention: as
    of `run_study`."""
    place = Path(config.run_dir).absolute()  # whatever becomes of the working directory
    backend = dataclasses.replace(config.backend, threads=threads or config.backend.threads)
    device = prepare(backend)
    made = provenance(device)
    require_main_thread(config.time_limit)
    prompts = call_prompts(config.prompts, config.prompts_needed)
    identity = config.measured(), config.hash, made.machine()
    with open_folder(place, *identity, shard) as folder:
        model = load_model(config, device, prompts, config.latency.sizes)
        check_prompts(model, prompts)
        if attention:
            folder.note(ATTENTION, lambda chosen: chosen or [*attention])
        go_by(folder, model)
        model = with_text_hashes(model)
        every = schedule.cells(config, model.sampling)
        # Before any of it is imported: what is read is what runs.
        sources, weights = sources_by_cell(config, every), Weights(model, every)
        note = f"{SHARDS}/{shard}.trying" if shard else ".trying"
        trying = Trying(folder.path / note, by_image=bool(shard))
        lineup = Lineup(config, model, every, prompts, trying)
        labels = {cell.key: lineup.labels(cell) for cell in every}
        context = Context(config, made, prompts, labels, sources, weights.by_cell())
        yield Run(config, folder, every, lineup, context)


class Run:
    """The state of a run in progress."""

    def __init__(
        self,
        config: StudyConfig,
        folder: RunFolder,
        every: list[Cell],
        lineup: Lineup,
        context: Context,
    ) -> None:
        self.config, self.folder, self.every = config, folder, every
        self.lineup, self.context, self.model = lineup, context, lineup.model
        made = context.provenance
        self.watch = watch_of(folder.path, self.model, made.gpu or made.cpu)
        self.neighbours = Neighbours(config)
        if not lineup.meter.exact:
            log.warning("peak memory is that of the whole process so far: it cannot be reset here")

    def batches(self) -> tuple[list[Batch], list[Batch]]:
        """All that is to be decoded: timed, and for quality."""
        return schedule.latency_batches(self.config, self.every), self.quality()

    def quality(self, shard: tuple[int, int] = (0, 1)) -> list[Batch]:
        """What is to be decoded for quality, of all images or of a shard (i, n)."""
        found = schedule.quality_batches(self.config, self.every, shard)
        return [batch for batch in found if not self.lineup.replays(batch.cell)]

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
        drawn = self.config.keep_images and self.model.draws
        return drawn and batch.protocol != schedule.BATCHED and not self.lineup.replays(batch.cell)

    def all(self, parts: Sequence[Sequence[Batch]], name: str) -> None:
        """Runs the batches that are not recorded yet, in order. name: what the terminal shows."""
        total = sum(len(b.indices) for part in parts for b in part)
        todo = [[b for b in part if not self.recorded(b)] for part in parts]
        left = sum(len(b.indices) for part in todo for b in part)
        self.lineup.expect([batch for part in todo for batch in part])
        timed = [part for part in todo if part and part[0].timed]
        every = [part for part in parts if part and part[0].timed]
        # A session stopped behind the last timed image has left the moment after it to this one.
        records = self.folder.path / "records.parquet"
        behind = bool(timed) or (bool(every) and not records.exists())
        if not (left or behind or any(map(self.disturbed, every))):
            return
        # Measuring takes memory: where the peak cannot be reset, it comes after all images.
        looks = moments_of(len(timed)) if self.lineup.meter.exact else set()
        rounds = itertools.count()
        with progress(total, name, total - left) as bar:
            self.lineup.announce(bar)
            for part in filter(None, todo):
                if part[0].timed:
                    if next(rounds) in looks:
                        self._look(bar)
                    self.lineup.warm_all(part, bar)
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

    def _look(self, bar: Any) -> None:
        """Measures the machine, where anything asks for its rates."""
        if self.watch is not None:
            bar.set_postfix_str("measuring the machine")
            log.info("the machine: %s", self.watch.look())

    def recorded(self, batch: Batch) -> bool:
        return all(self.folder.has(*key) for key in batch.keys)

    def said(self, batch: Batch, column: str) -> Any:
        """What the row of a timed image says; None where it is not recorded."""
        table = self.folder.tables.get(batch.keys[0])
        return None if table is None else table.column(column)[0].as_py()

    def disturbed(self, part: Sequence[Batch]) -> int:
        """How many timed images of a part were disturbed."""
        return sum(bool(self.said(batch, "disturbed")) for batch in part)

    def _time_again(self, parts: Sequence[Sequence[Batch]], bar: Any) -> None:
        """Times the blocks with disturbed images again. A block's rows are replaced, all of them,
        where fewer are disturbed than before."""
        for part in parts:
            before = self.disturbed(part)
            if not before:
                continue
            if not self.neighbours.quiet():
                log.warning("the machine is still busy: disturbed images stay; run it again later")
                return
            again = [batch for batch in part if self.said(batch, "status") == "ok"]
            self.lineup.expect(again)
            self.lineup.warm_all(again, bar)
            made = self._block(again, before, bar)
            for key, row in made:
                self.folder.add(*key, row)
            became = "replaced" if made else "no quieter"
            log.info("block %d timed again: %s", part[0].block, became)

    def _block(
        self, part: Sequence[Batch], before: int, bar: Any
    ) -> list[tuple[tuple[str, str], dict[str, Any]]]:
        """The rows of a block, decoded once more, with the pictures that they have; [] where as
        many are disturbed. A row that fails now stays as it was."""
        made, found = [], 0
        for batch in part:
            bar.set_postfix_str(f"{batch.cell.entry.name} (disturbed, timed again)", False)
            started = now()
            rows = self._attempt(batch)
            self.lineup.done(batch)
            if isinstance(rows, Failure):
                continue
            picture = {name: self.said(batch, name) for name in ("image", "image_hash")}
            for key, (row, _) in zip(batch.keys, rows, strict=True):
                made.append((key, {**row, **picture, "started_at": started}))
            found += rows[0][0]["disturbed"]
            if found >= before:
                return []
        return made

    def run(self, batch: Batch) -> None:
        """Decodes one batch and records its rows, those of a failure too. What fails in a worker is
        tried once more, image by image, so that one bad image costs no others."""
        started = now()
        rows = self._attempt(batch)
        alone = len(batch.indices) == 1 or self.lineup.trying.deaths(batch)
        if self.folder.shared and isinstance(rows, Failure) and not (rows.late or alone):
            log.warning("%s failed, tried again: %s", batch.cell.entry.name, rows.error)
            for index in batch.indices:
                self.run(dataclasses.replace(batch, indices=(index,)))
        elif isinstance(rows, Failure):
            self.lineup.late[batch.cell.key] += rows.late
            error = blamed(rows.error, batch.cell.entry.spec)
            log.warning("%s failed (%s): %s", batch.cell.entry.name, batch.protocol, error)
            blank = [self.context.failed(batch, i, error, started) for i in batch.indices]
            self._record(batch, [(row, None) for row in blank], started)
        else:
            self._record(batch, rows, started)
            if batch.timed:
                self.neighbours.after(rows[0][0])

    def _attempt(self, batch: Batch) -> list[Row] | Failure:
        """The rows of a batch, or what went wrong. Raises HarmError."""
        return self.lineup.attempt(batch.cell, lambda: self.measure(batch))

    def _record(self, batch: Batch, rows: Sequence[Row], started: str) -> None:
        for index, (row, image) in zip(batch.indices, rows, strict=True):
            key, stem = batch.cell.key, batch.stem(index)
            if self.folder.has(key, stem):
                continue  # recorded before the run was killed
            if row["status"] == "ok":
                row["started_at"] = started
                if image is not None:
                    row["image"] = self.folder.image_name(key, stem)
            self.folder.add(key, stem, row, image)

    def measure(self, batch: Batch) -> list[Row]:
        """Rows and pictures of one batch. Raises whatever the decoder raises."""
        outcome = self.lineup.decode(batch)
        rule = getattr(self.lineup.built[batch.cell.key], "rule", None)
        out = []
        for b, row in enumerate(measured(outcome, batch.timed, rule)):
            identity = self.context.identity(batch, batch.indices[b])
            row["disturbed"] = batch.timed and self.neighbours.disturb(outcome.load)
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
