"""Runs a study: each job is decoded, its images become records, and these are appended.

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run.
Quality: in batches, the same seed for every decoder, and the baseline again under other seeds (the
reseeds). What is recorded already is skipped. A decoder that raises becomes failed records. A
killed run loses the call in flight. A part of the quality images is decoded by `bench.run.shards`.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.analyse.paired import baselines_of, latency_rows, paired_speedup
from bench.config.schema import DecoderVariant, StudyConfig, variants
from bench.console import progress, stop_if_interrupted
from bench.data.errors import DeviceLostError, Failure, attempt
from bench.gate.target import examine
from bench.measure.busy import wait_for_quiet, words
from bench.measure.device import Provenance, prepare, provenance
from bench.measure.meter import Meter
from bench.measure.roofline import MachineRates, faster, measure_rates, work_of
from bench.prompts import Prompt, load_prompts
from bench.run.decoders import Decoders, freeze_heap, load_model
from bench.run.generate import decode_job
from bench.run.row import constants, failed, row
from bench.run.schedule import Job, all_jobs, parts
from bench.store.columns import LATENCY, QUALITY
from bench.store.findings import read_findings, write_findings
from bench.store.folder import Record, RunFolder, open_folder
from decoders.api import DecoderError, ImageModel
from decoders.noise import Noise
from metrics.speedup import FEWEST

log = logging.getLogger(__name__)
WARM_UP_STEPS = 16  # of a decoder before each block but its first


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
    with open_run(config) as runner:
        jobs = all_jobs(config, runner.variants)
        runner.run(parts(jobs, config.latency.block_count), config.name)
        rows = runner.folder.merge([key for job in jobs for key in job.keys])
        return RunResult(runner.folder.path, rows, runner.model, runner.variants)


@contextmanager
def open_run(config: StudyConfig, shard: str = "") -> Iterator[Runner]:
    """Prepares a run for its first image: opens its folder, loads the model, builds every decoder.
    shard: the name of one."""
    device = prepare(config.backend)
    origin = provenance(device)
    prompts = load_prompts(config.prompts, config.prompts_needed)
    identity = dict(config=config.measured(), config_hash=config.hash, machine=origin.machine())
    with open_folder(Path(config.run_dir), identity, shard) as folder:
        model = load_model(config, device, config.latency.sizes)
        hashes = {**model.weights_sha256, **model.text.sha256()}  # some encoders are loaded apart
        model = replace(model, weights_sha256=hashes)
        for prompt in prompts:  # one that the model cannot read stops the run before it starts
            try:
                model.text.check([prompt.text])
            except DecoderError as error:
                raise DecoderError(f"the model cannot read prompt {prompt.id}: {error}") from error
        runner = Runner(config, folder, model, origin, prompts)
        cfg = max(variant.sampling.cfg for variant in runner.variants)
        examine(model, lambda: [prompt.text for prompt in prompts[:2]], cfg)
        yield runner


class Runner:
    """The state of a run in progress. current: the name of the decoder that is called; jobs_left:
    how many jobs are to come, by their shape; warm: shapes that were warmed up; gave_up: whether
    the last wait for a quiet machine was in vain."""

    def __init__(
        self,
        config: StudyConfig,
        folder: RunFolder,
        model: ImageModel,
        origin: Provenance,
        prompts: Sequence[Prompt],
    ) -> None:
        self.config, self.folder, self.model, self.prompts = config, folder, model, prompts
        self.variants = variants(config, model.sampling)
        self.decoders = Decoders(model, self.variants)
        made = self.decoders
        self.constants = {
            v.name: constants(config, v, made.labels[v.name], made.digests[v.name], origin)
            for v in self.variants
        }
        self.meter = Meter(model.device, config.latency.busy, recorded=model.mode == "graph")
        self.jobs_left: Counter[tuple[str, int]] = Counter()
        self.warm: set[tuple[str, int]] = set()
        self.current, self.gave_up = "", False

    def run(self, parts: Sequence[Sequence[Job]], name: str) -> None:
        """Runs the jobs that are not recorded yet, in order. name: what the terminal shows."""
        self.resume([job for part in parts for job in part])
        done = self.folder.records
        todo = [[job for job in part if not all(key in done for key in job.keys)] for part in parts]
        total, count = (sum(len(job.indices) for p in some for job in p) for some in (parts, todo))
        if not count:
            return
        self.jobs_left.update(job.shape for part in todo for job in part)
        freeze_heap()
        try:
            with progress(total, name, total - count) as bar:
                for part in filter(None, todo):
                    self.run_part(part, bar)
        except DeviceLostError as error:
            self._lose_device([job for part in todo for job in part], error)
        finally:
            gc.unfreeze()

    def resume(self, jobs: Sequence[Job]) -> None:
        """Reads the records of these jobs that count."""
        config = self.config
        prompts = {key: self.prompts[key.prompt_index].text for job in jobs for key in job.keys}
        total = sum(len(job.indices) for job in all_jobs(config, self.variants))
        self.folder.resume(
            prompts,
            self.decoders.digests,
            {"rows": total, "weights": self.model.weights_sha256},
            force=config.resume == "force",
            retry=config.retry_failed,
        )

    def run_part(self, part: Sequence[Job], bar: Any) -> None:
        """Runs a block of timed jobs or a share of the quality jobs. Before a block the machine is
        measured, whose rates the floor of a step needs, and the decoders are warmed up."""
        if part[0].timed:
            bar.set_postfix_str("measuring the machine")
            if rates := measure_machine(self.folder.path, self.model):
                log.info("the machine: %s", rates)
            self.warm_up(part, bar)
        freeze_heap()  # what the warm-up has left stays
        for job in part:
            stop_if_interrupted()
            bar.set_postfix_str(f"{job.variant.name} ({job.protocol})", False)
            self.run_job(job)
            bar.update(len(job.indices))
        if part[0].protocol == LATENCY:
            bar.write("\n".join(self.speedups(part[0].block)), file=sys.stderr)

    def run_job(self, job: Job) -> None:
        """Decodes one job and appends its records, those of a failure too."""
        records = self.decode(job)
        full = isinstance(records, Failure) and "out of memory" in records.error
        if full and not job.timed and self.decoders.release():
            log.warning(
                "%d images at once are too many for %s while the decoders keep caches for their "
                "next timed block: these are dropped, and made again then. quality.batch=%d needs "
                "less", job.size, job.variant.name, -(-job.size // 2),
            )  # fmt: skip
            records = self.decode(job)
        if isinstance(records, Failure):
            self._fail(job, records.error)
        else:
            if job.timed and self.wait_to_time_again(records[0]):
                again = self.decode(job)
                records = records if isinstance(again, Failure) else again
            self.append(job, records)
        self.jobs_left[job.shape] -= 1
        if not self.jobs_left[job.shape]:
            self.decoders.release(+self.jobs_left)

    def decode(self, job: Job) -> list[Record] | Failure:
        """Decodes a job; returns what its records hold of the call, or what the decoder raised.
        Raises SharedStateError where it has changed what all share, and DeviceLostError."""
        self.current = job.variant.name
        decoder = self.decoders.built[self.current]
        if isinstance(decoder, Failure):
            return Failure(f"DecoderError: it cannot be run: {decoder.error}")
        prompts = [self.prompts[index].text for index in job.indices]
        call = partial(decode_job, self.config, self.model, decoder, job, prompts, self.meter)
        records = attempt(call)
        self.decoders.require_unchanged(job.variant)
        return records

    def append(self, job: Job, measured: Sequence[Record]) -> None:
        """Appends the rows of a job. measured: the columns of its call."""
        shared = self.constants[job.variant.name]
        pairs = zip(job.indices, measured, strict=True)
        self.folder.append([row(shared, job, self.prompts[i], i, columns) for i, columns in pairs])

    def wait_to_time_again(self, record: Record) -> bool:
        """Waits for a quiet machine where others disturbed the image just timed; returns whether to
        time it again. After a wait in vain no image waits, until one is not disturbed."""
        latency = self.config.latency
        if not record["disturbed"]:
            self.gave_up = False
        if not record["disturbed"] or self.gave_up:
            return False
        log.warning(
            "%s: the machine is busy (%s; more than %.0f %% count as disturbed); waiting for "
            "quiet, %g s at most (latency.wait_for_quiet)",
            self.current, words(record["cpu_others"] + record["cpu_steal"]), 100 * latency.busy,
            latency.wait_for_quiet,
        )  # fmt: skip
        on_gpu = self.meter.on_gpu
        self.gave_up = not wait_for_quiet(latency.wait_for_quiet, latency.busy, one_core=on_gpu)
        return not self.gave_up

    def _fail(self, job: Job, error: str) -> None:
        """Appends the records of a job that failed."""
        log.warning("%s failed (%s): %s", job.variant.name, job.protocol, error)
        self.append(job, [failed(error)] * len(job.indices))

    def _lose_device(self, todo: Sequence[Job], error: DeviceLostError) -> None:
        """Records what is left of the decoder that has lost the GPU as failed, so that a resume
        goes on without it. Raises DeviceLostError."""
        name = self.current
        for job in todo:
            missing = any(key not in self.folder.records for key in job.keys)
            if missing and job.variant.name == name:
                self._fail(job, str(error))
        raise DeviceLostError(
            f"{name} has stopped the GPU ({error}), and nothing more can run in this "
            "process. Its images to come are recorded as failed; the same command goes on "
            "with the other decoders, and with retry_failed=true tries this one again"
        ) from error

    def warm_up(self, todo: Sequence[Job], bar: Any) -> None:
        """Lets each decoder decode whole images before its first block, until times are stable, and
        some steps before each later block; in batches one call. One that fails here fails again.

        Why whole images: caches, thread pools, allocator and compiled graphs settle only over a
        complete decoding, and the released timing code had all of that inside its first image.
        """
        latency = self.config.latency
        first: dict[tuple[str, int], Job] = {}
        for job in todo:
            first.setdefault(job.shape, job)
        for shape, job in first.items():
            bar.set_postfix_str(f"warming up {job.variant.name}")
            if shape in self.warm:
                self.take_steps(job)
                continue
            # One of each kind of work: a batch, and a place refilled.
            shortened = replace(job, indices=job.indices[: job.size + 1])
            records: list[Record] | Failure = []
            alone = job.protocol == LATENCY
            seconds, limit = list[float](), latency.warmup_max if alone else 1
            while len(seconds) < limit and not stable(seconds, latency.warmup_tolerance):
                records = self.decode(shortened)
                if isinstance(records, Failure):
                    break
                seconds.append(records[0]["seconds_batch"])
            log.info("warm-up of %s: %s s", self.current, seconds)
            if isinstance(records, Failure):
                continue
            self.warm.add(shape)
            if alone and ("=compiled" in records[0]["path"] or self.model.mode == "graph"):
                # Another image than the one that a step was recorded on.
                self.decoders.check_compiled_codes(job.variant, self.prompts[-1].text, job.seed + 1)

    def take_steps(self, job: Job) -> None:
        """Lets a decoder take a few steps on a batch of the job's first images."""
        decoder = self.decoders.built[job.variant.name]
        if isinstance(decoder, Failure):
            return
        prompts = [self.prompts[index].text for index in job.indices[: job.size]]
        prompts += prompts[-1:] * (job.size - len(prompts))
        noise = Noise.for_prompts(job.seed, prompts, self.model.target.length)
        attempt(lambda: decoder.warm_up(self.model.text.encode(prompts), noise, WARM_UP_STEPS))

    def speedups(self, block: int) -> list[str]:
        """Lists the speed-ups so far, a line per decoder, after a block of timed images."""
        every = self.folder.records.values()  # quality images weigh the blocks, as in the table
        good = [r for r in every if r["status"] == "ok" and r["protocol"] in (LATENCY, QUALITY)]
        rows = pd.DataFrame(good)
        if rows.empty:
            return []
        lines = [f"speed-ups after block {block + 1} of {self.config.latency.block_count}:"]
        for name, baseline in baselines_of(self.config.measured()["decoders"], rows).items():
            mine = rows[rows.decoder == name]
            ratio = paired_speedup(rows[rows.decoder == baseline], mine)
            seconds = latency_rows(mine).seconds_total.mean()
            speed = "" if ratio is None else f"{ratio.value:.2f}"
            if ratio is not None and ratio.blocks >= FEWEST:
                speed += " [{1:.2f}, {2:.2f}]".format(*astuple(ratio.interval()))
            lines.append(f"  {name:<24} {seconds:8.3f} s/image  {speed}")
        return lines


def measure_machine(folder: Path, model: ImageModel) -> MachineRates | None:
    """Measures the machine now; returns the best rates of the run so far, which findings.json keeps
    with the work of the target's forward; None for a model whose floor is not known."""
    work, found = work_of(model.target), read_findings(folder)
    best = found.machine
    if work.weight_bytes:
        size, _ = work.forward(model.sampling.guidance_rows)
        best = faster(best, measure_rates(model, round(size)))
    write_findings(folder, replace(found, machine=best, work=work))
    return best


def stable(seconds: Sequence[float], tolerance: float) -> bool:
    """Whether the last two times differ by less than `tolerance` of the longer."""
    last = seconds[-2:]
    return len(last) > 1 and max(last) - min(last) < tolerance * max(last)
