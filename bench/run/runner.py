"""Runs a study: each job is generated, its images become records, and these are appended.

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run.
Quality: in batches, the same seed for every decoder, and the baseline again under other seeds (the
reseeds). What is recorded already is skipped. A decoder that raises becomes failed records. A
killed run loses the call in flight. A part of the quality images is decoded by `bench.run.shards`.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import DecoderVariant, StudyConfig, variants
from bench.console import progress
from bench.data.errors import DeviceLostError, Failure
from bench.measure.busy import Neighbours
from bench.measure.clock import Clock, now
from bench.measure.device import Provenance, prepare, provenance
from bench.measure.machine import watch_of
from bench.measure.memory import meter_of
from bench.prompts import Prompt, load_prompts
from bench.records.columns import (
    BATCHED,
    LATENCY,
    MERGED,
    QUALITY,
    SCHEMA_VERSION,
    empty_measures,
)
from bench.records.folder import Record, RunFolder, check_space, open_folder
from bench.run.decoders import Decoders
from bench.run.generate import Outcome, blamed, build, generate, picture_of, to_records
from bench.run.limit import require_main_thread
from bench.run.resume import resume
from bench.run.schedule import Job, latency_jobs, parts, quality_jobs
from bench.run.session import check_prompts, codes_only, frozen_heap, load_model
from bench.run.warmup import DIFFER, differ, warm_up
from decoders.api import ImageModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its folder, the merged rows, and what they were made with."""

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
        latency, quality = runner.jobs()
        every = [*latency, *quality]
        runner.resume(every)
        runner.run(parts(latency, quality, config.latency.block_count), config.name)
        rows = runner.folder.merge([key for job in every for key in job.keys])
        return RunResult(runner.folder.path, rows, runner.model, runner.variants)


@contextmanager
def opened(config: StudyConfig, shard: str = "") -> Iterator[Runner]:
    """A run before its first image: its folder open, the model loaded, every decoder built.
    shard: the name of one."""
    device = prepare(config.backend)
    origin = provenance(device)
    require_main_thread(config.time_limit)
    prompts = load_prompts(config.prompts, config.prompts_needed)
    identity = {
        "config": config.measured(),
        "config_hash": config.hash,
        "machine": origin.machine(),
    }
    with open_folder(Path(config.run_dir), identity, shard) as folder:
        model = load_model(config, device, prompts, config.latency.sizes)
        check_prompts(model, prompts)
        yield Runner(config, folder, model, origin, prompts)


class Runner:
    """The state of a run in progress. warm: shapes of calls that were warmed up; left: jobs that
    were not recorded yet when `run` began."""

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
        model = dataclasses.replace(model, weights_sha256=hashes)
        self.config, self.folder, self.model, self.prompts = config, folder, model, prompts
        self.origin, self.hash = origin, config.hash
        self.variants = variants(config, model.sampling)
        self.decoders = Decoders(model, self.variants)
        self.clock, self.meter = Clock(model.device), meter_of(model)
        self.watch = watch_of(folder.path, model, origin.gpu or origin.cpu)
        self.neighbours = Neighbours(config.latency, config.backend.device)
        self.warm: set[tuple[str, int]] = set()
        self.left: list[Job] = []
        if not self.meter.exact:
            log.warning("peak memory is that of the whole process so far: it cannot be reset here")

    def jobs(self) -> tuple[list[Job], list[Job]]:
        """All that is to be decoded: timed, and for quality."""
        return latency_jobs(self.config, self.variants), quality_jobs(self.config, self.variants)

    def resume(self, mine: Sequence[Job]) -> None:
        """Takes the records of these jobs that count, and looks whether what is left fits on the
        disk."""
        total = sum(len(job.indices) for jobs in self.jobs() for job in jobs)
        self.folder.note("rows", lambda _: total)
        self.folder.note("code", lambda _: self.decoders.code)
        self.folder.note("weights", lambda _: self.model.weights_sha256)
        texts = {i: prompt.text for i, prompt in enumerate(self.prompts)}
        keys = {key: texts[key.prompt_index] for job in mine for key in job.keys}
        resume(self.folder, self.config, keys, self.decoders.code)
        left = [job for job in mine for key in job.keys if key not in self.folder.records]
        check_space(self.folder.path, len(left), sum(map(self.draws, left)))

    def run(self, parts: Sequence[Sequence[Job]], name: str) -> None:
        """Runs the jobs that are not recorded yet, in order. name: what the terminal shows."""
        have = self.folder.records
        todo = [[job for job in part if not all(key in have for key in job.keys)] for part in parts]
        total, left = (sum(len(job.indices) for p in some for job in p) for some in (parts, todo))
        self.left = [job for part in todo for job in part]
        self.decoders.expect(self.left)
        timed = [part for part in parts if part and part[0].timed]
        # A session stopped behind the last timed image has left the moment after it to this one.
        behind = bool(timed) and (left or not (self.folder.path / MERGED).exists())
        if not (left or behind or any(map(self.disturbed, timed))):
            return
        with frozen_heap(), progress(total, name, total - left) as bar:
            self.decoders.announce(self.model.execution, bar)
            for part in filter(None, todo):
                if part[0].timed:
                    # Measuring takes memory: where the peak cannot be reset, it comes last.
                    if self.meter.exact:
                        self._look(bar)
                    self.warm_up(part, bar)
                gc.collect()
                gc.freeze()  # what the warm-up has left to stay
                for job in part:
                    bar.set_postfix_str(f"{job.variant.name} ({job.protocol})", False)
                    self.run_job(job)
                    self.decoders.done(job)
                    bar.update(len(job.indices))
            self._time_again(timed, bar)
            if behind:
                self._look(bar)

    @contextmanager
    def _losing(self, variant: DecoderVariant) -> Iterator[None]:
        """Where a decoder loses the GPU inside, what is left of it is recorded as failed, so that a
        resume goes on without it. Raises DeviceLostError."""
        started = now()
        try:
            yield
        except DeviceLostError as error:
            for job in self.left:
                if job.variant is variant:
                    self._fail(job, str(error), started)
            raise DeviceLostError(
                f"{variant.name} has stopped the GPU ({error}), and nothing more can run in this "
                "process. Its images to come are recorded as failed; the same command goes on "
                "with the other decoders, and with retry_failed=true tries this one again"
            ) from error

    def run_job(self, job: Job) -> None:
        """Decodes one job and appends its records, those of a failure too."""
        started = now()
        with self._losing(job.variant):
            records = self.attempt(job)
        if isinstance(records, Failure):
            self.decoders.late[job.variant.name] += records.late
            self._fail(job, records.error, started)
            return
        self.append(job, records, started)
        if job.timed:
            self.neighbours.after(records[0])

    def _fail(self, job: Job, error: str, started: str) -> None:
        """Appends the records of a job that failed."""
        error = blamed(error, job.variant.entry.spec)
        log.warning("%s failed (%s): %s", job.variant.name, job.protocol, error)
        state = {**empty_measures(), "status": "failed", "error": error}
        self.append(job, [self.identity(job, index) | state for index in job.indices], started)

    def attempt(self, job: Job) -> list[Record] | Failure:
        """The records of a job, or what went wrong. Raises SharedStateError, DeviceLostError."""
        return self.decoders.attempt(job.variant, lambda: self.records_of(job, self.generate(job)))

    def generate(self, job: Job) -> Outcome:
        """The images of a job. Raises whatever the decoder raises, and as `Decoders.of`."""
        limit, quality = self.config.time_limit, self.config.quality
        decoder = self.decoders.of(job, limit)
        # Verified pairs of an image. At temperature 0 there is no output law.
        recorded = job.protocol == QUALITY and not job.variant.sampling.greedy
        return generate(
            codes_only(self.model) if job.protocol == BATCHED else self.model,
            decoder,
            [self.prompts[i].text for i in job.padded],
            job.seed,
            clock=self.clock,
            meter=self.meter,
            pairs=quality.pairs / quality.images if recorded else 0,
            limit=limit,
            rows=job.size,
        )

    def records_of(self, job: Job, outcome: Outcome) -> list[Record]:
        """The records of a job's images; `picture`: the picture, where it is to be kept."""
        rule = getattr(self.decoders.built[job.variant.name], "rule", None)
        disturbed = job.timed and self.neighbours.disturb(outcome.load)
        state = {"disturbed": disturbed, "status": "ok", "error": ""}
        records = to_records(outcome, job.timed, rule)[: len(job.indices)]  # the others are copies
        for b, (index, record) in enumerate(zip(job.indices, records, strict=True)):
            record |= self.identity(job, index) | state
            if outcome.images is not None and self.draws(job):
                record["picture"] = picture_of(outcome.images[b])
        return records

    def identity(self, job: Job, index: int) -> Record:
        """The columns of a record that are known before anything runs."""
        config, variant, prompt = self.config, job.variant, self.prompts[index]
        return {
            "schema_version": SCHEMA_VERSION,
            "study": config.name,
            "protocol": job.protocol,
            "model": config.model.name,
            "decoder": variant.name,
            **self.decoders.labels[variant.name],
            "backend": config.backend.name,
            "device": config.backend.device,
            "dtype": config.backend.dtype,
            **vars(variant.sampling),
            "prompt_index": index,
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "category": prompt.category,
            "seed": job.seed,
            "batch": job.size,
            "block": job.block,
            "config_hash": self.hash,
            "code": self.decoders.code[variant.name],
            **vars(self.origin),
            "versions": json.dumps(self.origin.versions, sort_keys=True),
        }

    def draws(self, job: Job) -> bool:
        """Whether a job has pictures to keep."""
        return self.config.keep_images and self.model.draws and job.protocol != BATCHED

    def append(
        self, job: Job, records: Sequence[Record], started: str, again: bool = False
    ) -> None:
        """Writes the pictures, then the records: a record's picture always exists. again: also of
        images that are recorded already."""
        fresh = []
        for key, record in zip(job.keys, records, strict=True):
            picture = record.pop("picture", None)
            if again or key not in self.folder.records:
                named = {} if picture is None else self.folder.add_picture(key, picture)
                fresh.append(record | named | {"started_at": started})
        if fresh:
            self.folder.append(fresh)

    def disturbed(self, part: Sequence[Job]) -> int:
        """How many timed images of a part were disturbed."""
        return sum(self.folder.records.get(job.keys[0], {}).get("disturbed", False) for job in part)

    def _time_again(self, timed: Sequence[Sequence[Job]], bar: Any) -> None:
        """Times the blocks with disturbed images again, and replaces all records of a block where
        fewer are disturbed than before. A job that fails now stays as it was."""
        for part in filter(self.disturbed, timed):
            before = self.disturbed(part)
            if not self.neighbours.quiet():
                log.warning("the machine is still busy: disturbed images stay; run it again later")
                return
            again = [j for j in part if self.folder.records[j.keys[0]]["status"] == "ok"]
            self.decoders.expect(again)
            self.warm_up(again, bar)
            timings, disturbed = list[tuple[Job, list[Record], str]](), 0
            for job in again:
                bar.set_postfix_str(f"{job.variant.name} (disturbed, timed again)", False)
                started = now()
                records = self.attempt(job)
                self.decoders.done(job)
                if not isinstance(records, Failure):
                    timings.append((job, records, started))
                    disturbed += records[0]["disturbed"]
            for job, records, started in timings if disturbed < before else ():
                self.append(job, records, started, again=True)
            became = "replaced" if disturbed < before else "no quieter"
            log.info("block %d timed again: %s", part[0].block, became)

    def warm_up(self, todo: Sequence[Job], bar: Any) -> None:
        """Warms up every decoder that has something to time: until its times are stable, and by one
        image before each block after that; once in batches. One that fails fails on its records
        again."""
        first: dict[tuple[str, int], Job] = {}
        for job in todo:
            first.setdefault(job.shape, job)
        for (name, _), job in first.items():
            bar.set_postfix_str(f"warming up {name}")
            if not self.decoders.given_up(name):
                with self._losing(job.variant):
                    self._warm_up(job)

    def _warm_up(self, job: Job) -> None:
        limits, ran = self.config.latency, set[str]()
        # One of each kind of work: a batch, and a place refilled.
        job = dataclasses.replace(job, indices=job.indices[: job.size + 1])

        def image() -> float:
            outcome = self.generate(job)
            ran.update(outcome.generation.trace.path.values())
            return outcome.seconds_total

        new = job.shape not in self.warm and job.protocol == LATENCY
        most = limits.warmup_max if new else 1
        work = partial(warm_up, image, most, limits.warmup_tolerance)
        times = self.decoders.attempt(job.variant, work)
        if isinstance(times, Failure):
            self.decoders.late[job.variant.name] += times.late
        else:
            if "compiled" in ran and new:
                self._compare(job)
            self.warm.add(job.shape)
        log.info("warm-up of %s: %s", job.variant.name, times)

    def _compare(self, job: Job) -> None:
        """Compares a compiled decoder's first image with that of the same pieces without a
        compiler: where they differ, its records fail."""
        how, name = self.model.execution.uncompiled(), job.variant.name
        plain = how and build(dataclasses.replace(self.model, execution=how), job.variant)
        compiled = self.decoders.built[name]
        if plain is None or isinstance(plain, Failure) or isinstance(compiled, Failure):
            return
        prompt, limit = self.prompts[job.indices[0]].text, self.config.time_limit
        work = partial(differ, self.model, (compiled, plain), prompt, job.seed, limit)
        if self.decoders.attempt(job.variant, work) is True:
            self.decoders.built[name] = Failure(DIFFER)

    def _look(self, bar: Any) -> None:
        """Measures the machine, where anything asks for its rates."""
        if self.watch is not None:
            bar.set_postfix_str("measuring the machine")
            log.info("the machine: %s", self.watch.look())
