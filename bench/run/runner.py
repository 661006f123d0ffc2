"""Runs a study: each job is generated, its images become records, and these are appended.

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run.
Quality: in batches, the same seed for every decoder, and the baseline again under other seeds (the
reseeds). What is recorded already is skipped. A decoder that raises becomes failed records. A
killed run loses the call in flight. A part of the quality images is decoded by `bench.run.shards`.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import DecoderVariant, StudyConfig, variants
from bench.console import progress
from bench.data.errors import DeviceLostError, Failure
from bench.judge.target import examine
from bench.measure.busy import Neighbours
from bench.measure.clock import Clock, now
from bench.measure.device import Provenance, prepare, provenance
from bench.measure.memory import MemoryMeter
from bench.measure.roofline import measure_machine
from bench.prompts import Prompt, load_prompts
from bench.records.columns import BATCHED, MERGED, QUALITY, SCHEMA_VERSION, empty_measures
from bench.records.folder import Record, RunFolder, open_folder
from bench.run.decoders import Decoders, name_plug_ins
from bench.run.generate import Outcome, generate, picture_of, to_records
from bench.run.schedule import Job, all_jobs, parts
from bench.run.session import check_prompts, frozen_heap, load_model
from decoders.api import ImageModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its folder, the merged rows, and what they were decoded with."""

    path: Path
    rows: pd.DataFrame
    model: ImageModel
    variants: list[DecoderVariant]


def run_study(config: StudyConfig) -> RunResult:
    """Runs (or resumes) a study and merges its records.

    Raises, before work starts where possible: ConfigError, PromptError, FolderError, DecoderError
    (a model or decoder that cannot be built, a prompt that the model cannot read), DiskFullError.
    """
    with opened(config) as runner:
        jobs = all_jobs(config, runner.variants)
        runner.run(parts(jobs, config.latency.block_count), config.name)
        rows = runner.folder.merge([key for job in jobs for key in job.keys])
        return RunResult(runner.folder.path, rows, runner.model, runner.variants)


@contextmanager
def opened(config: StudyConfig, shard: str = "") -> Iterator[Runner]:
    """A run before its first image: its folder open, the model loaded, every decoder built.
    shard: the name of one."""
    device = prepare(config.backend)
    origin = provenance(device)
    prompts = load_prompts(config.prompts, config.prompts_needed)
    identity = dict(config=config.measured(), config_hash=config.hash, machine=origin.machine())
    with open_folder(Path(config.run_dir), identity, shard) as folder:
        model = load_model(config, device, config.latency.sizes)
        check_prompts(model, prompts)
        runner = Runner(config, folder, model, origin, prompts)
        cfg = max(variant.sampling.cfg for variant in runner.variants)
        examine(model, lambda: [prompt.text for prompt in prompts[:2]], cfg)
        yield runner


class Runner:
    """The state of a run in progress."""

    def __init__(
        self,
        config: StudyConfig,
        folder: RunFolder,
        model: ImageModel,
        origin: Provenance,
        prompts: Sequence[Prompt],
    ) -> None:
        # Of an encoder that is loaded apart from the model.
        hashes = {**model.weights_sha256, **model.text.sha256()}
        model = replace(model, weights_sha256=hashes)
        self.config, self.folder, self.model, self.prompts = config, folder, model, prompts
        self.origin, self.hash = origin, config.hash
        self.variants = variants(config, model.sampling)
        self.decoders = Decoders(model, self.variants)
        self.clock = Clock(model.device)
        self.meter = MemoryMeter(model.device, recorded=model.mode == "graph")
        self.neighbours = Neighbours(config.latency, config.backend.device)
        if not self.meter.exact:
            log.warning("peak memory is that of the whole process so far: it cannot be reset here")

    def run(self, parts: Sequence[Sequence[Job]], name: str) -> None:
        """Runs the jobs that are not recorded yet, in order. name: what the terminal shows."""
        self.resume([job for part in parts for job in part])
        have = self.folder.records
        todo = [[job for job in part if not all(key in have for key in job.keys)] for part in parts]
        total, left = (sum(len(job.indices) for p in some for job in p) for some in (parts, todo))
        timed = any(job.timed for part in parts for job in part)
        # A session stopped behind the last timed image has left the moment after it to this one.
        measure = timed and not (self.folder.path / MERGED).exists()
        if not (left or measure):
            return
        with frozen_heap(), progress(total, name, total - left) as bar:
            self.decoders.expect([job for part in todo for job in part])
            try:
                for part in filter(None, todo):
                    self.run_part(part, bar)
            except DeviceLostError as error:
                self._lose_device([job for part in todo for job in part], error)
            if measure:
                self._measure_machine(bar)

    def resume(self, jobs: Sequence[Job]) -> None:
        """Takes the records of these jobs that count."""
        config = self.config
        prompts = {key: self.prompts[key.prompt_index].text for job in jobs for key in job.keys}
        self.folder.resume(
            prompts,
            self.decoders.digests,
            force=config.resume == "force",
            retry=config.retry_failed,
        )
        total = sum(len(job.indices) for job in all_jobs(config, self.variants))
        self.folder.note(rows=total, weights=self.model.weights_sha256)

    def run_part(self, part: Sequence[Job], bar: Any) -> None:
        """Runs a block of timed jobs, behind its warm-up, or a share of the quality jobs."""
        if part[0].timed:
            # Measuring takes memory: where the peak cannot be reset, it comes last.
            if self.meter.exact:
                self._measure_machine(bar)
            self.warm_up(part, bar)
        gc.collect()
        gc.freeze()  # what the warm-up has left to stay
        for job in part:
            bar.set_postfix_str(f"{job.variant.name} ({job.protocol})", False)
            self.run_job(job)
            self.decoders.done(job)
            bar.update(len(job.indices))

    def run_job(self, job: Job) -> None:
        """Decodes one job and appends its records, those of a failure too."""
        started = now()
        work = partial(self.records_of, job)
        records = self.decoders.attempt(job.variant, work)
        full = isinstance(records, Failure) and "out of memory" in records.error
        if full and not job.timed and self.decoders.free():
            log.warning(
                "%d images at once are too many for %s while the decoders keep caches for their "
                "next timed block: these are dropped, and made again then. quality.batch=%d needs "
                "less", job.size, job.variant.name, -(-job.size // 2),
            )  # fmt: skip
            records = self.decoders.attempt(job.variant, work)
        if isinstance(records, Failure):
            self._fail(job, records.error, started)
            return
        if job.timed and self.neighbours.time_again(records[0]):
            started, again = now(), self.decoders.attempt(job.variant, work)
            records = records if isinstance(again, Failure) else again
        self.append(job, records, started)

    def records_of(self, job: Job) -> list[Record]:
        """Decodes a job: a record per image, with its `picture`, where it is to be kept."""
        outcome = self.generate(job)
        rule = getattr(self.decoders.built[job.variant.name], "rule", None)
        disturbed = job.timed and self.neighbours.is_disturbed(outcome.load)
        state = {"disturbed": disturbed, "status": "ok", "error": ""}
        records = to_records(outcome, job.timed, rule)[: len(job.indices)]  # the others are copies
        for b, (index, record) in enumerate(zip(job.indices, records, strict=True)):
            record |= self.identity(job, index) | state
            if outcome.images is not None and self.draws(job):
                record["picture"] = picture_of(outcome.images[b])
        return records

    def generate(self, job: Job) -> Outcome:
        """The images of a job."""
        quality, decoder = self.config.quality, self.decoders.decoder_of(job)
        # Verified pairs of an image. At temperature 0 there is no output law.
        paired = job.protocol == QUALITY and not job.variant.sampling.greedy
        return generate(
            self.model,
            decoder,
            [self.prompts[i].text for i in job.padded],
            job.seed,
            clock=self.clock,
            meter=self.meter,
            pairs=quality.pairs / quality.images if paired else 0,
            rows=job.size,
            draw=job.protocol != BATCHED,
        )

    def identity(self, job: Job, index: int) -> Record:
        """The columns of a record that are known before anything runs."""
        config, prompt = self.config, self.prompts[index]
        return {
            "schema_version": SCHEMA_VERSION,
            "study": config.name,
            "config_hash": self.hash,
            "model": config.model.name,
            "backend": config.backend.name,
            "device": config.backend.device,
            "dtype": config.backend.dtype,
            **job.columns(index),
            **self.decoders.labels[job.variant.name],
            "code": self.decoders.digests[job.variant.name],
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "category": prompt.category,
            **vars(self.origin),
            "versions": json.dumps(self.origin.versions, sort_keys=True),
        }

    def draws(self, job: Job) -> bool:
        """Whether a job has pictures to keep."""
        return self.config.keep_images and self.model.draws and job.protocol != BATCHED

    def append(self, job: Job, records: list[Record], started: str) -> None:
        """Writes the pictures, then the records: a record's picture always exists."""
        fresh = []
        for key, record in zip(job.keys, records, strict=True):
            picture = record.pop("picture", None)
            if key not in self.folder.records:
                named = {} if picture is None else self.folder.add_picture(key, picture)
                fresh.append(record | named | {"started_at": started})
        if fresh:
            self.folder.append(fresh)

    def _fail(self, job: Job, error: str, started: str) -> None:
        """Appends the records of a job that failed."""
        error = name_plug_ins(error, job.variant.entry.spec)
        log.warning("%s failed (%s): %s", job.variant.name, job.protocol, error)
        state = {**empty_measures(), "status": "failed", "error": error}
        self.append(job, [self.identity(job, index) | state for index in job.indices], started)

    def _lose_device(self, todo: Sequence[Job], error: DeviceLostError) -> None:
        """Records what is left of the decoder that has lost the GPU as failed, so that a resume
        goes on without it. Raises DeviceLostError."""
        name = self.decoders.current
        for job in todo:
            left = any(key not in self.folder.records for key in job.keys)
            if left and job.variant.name == name:
                self._fail(job, str(error), now())
        raise DeviceLostError(
            f"{name} has stopped the GPU ({error}), and nothing more can run in this "
            "process. Its images to come are recorded as failed; the same command goes on "
            "with the other decoders, and with retry_failed=true tries this one again"
        ) from error

    def warm_up(self, todo: Sequence[Job], bar: Any) -> None:
        """Warms up every decoder that has something to time."""
        first: dict[tuple[str, int], Job] = {}
        for job in todo:
            first.setdefault(job.shape, job)
        for job in first.values():
            bar.set_postfix_str(f"warming up {job.variant.name}")
            # One of each kind of work: a batch, and a place refilled.
            few = replace(job, indices=job.indices[: job.size + 1])
            prompt, image = self.prompts[job.indices[0]].text, partial(self.generate, few)
            self.decoders.warm_up(few, image, prompt, self.config.latency)

    def _measure_machine(self, bar: Any) -> None:
        """Measures the machine, where the floor of a step needs its rates."""
        bar.set_postfix_str("measuring the machine")
        name = self.origin.gpu or self.origin.cpu
        if rates := measure_machine(self.folder.path, self.model, name):
            log.info("the machine: %s", rates)
