"""Runs a study: each job is decoded, its images become rows, and these are appended.

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run.
Quality: in batches, the same seed for every decoder, and the baseline again under other seeds (the
reseeds). What has a row already is skipped. A decoder that raises becomes failed rows. A killed run
loses the call in flight. A part of the quality images is decoded by `bench.run.shards`.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pandas as pd
import torch

from bench.analyse.paired import baselines_of, join_blocks, latency_rows, paired_speedup
from bench.config.schema import DecoderVariant, StudyConfig, variants
from bench.console import progress
from bench.data.errors import DeviceLostError, Failure, attempt
from bench.gate.target import examine
from bench.measure.device import Provenance, prepare, provenance
from bench.measure.meter import Meter, taken, wait_for_quiet
from bench.measure.roofline import MachineRates, measure_rates, work_of
from bench.prompts import Prompt, load_prompts
from bench.run.decoders import Decoders, freeze_heap, load_model
from bench.run.generate import decode_job
from bench.run.needs import hours_left, memory_line
from bench.run.row import constants_of, failed_rows
from bench.run.schedule import Job, all_jobs, parts
from bench.store.columns import LATENCY, QUALITY, Row
from bench.store.facts import read_findings, write_findings
from bench.store.run_folder import RunFolder, open_folder
from decoders.api import DecoderError, ImageModel
from decoders.interrupts import stop_if_interrupted
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
    """Runs (or resumes) a study and merges its rows. Raises, before work starts where possible:
    ConfigError, PromptError, FolderError, DecoderError (a model or decoder that cannot be built, a
    prompt that the model cannot read), DiskFullError."""
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
    # Rows of two machines must not share a folder: this decides their times.
    machine = {"cpu": origin.cpu, "gpu": origin.gpu, "torch": origin.versions["torch"]}
    identity = dict(config=config.measured(), config_hash=config.hash, machine=machine)
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
    """The state of a run in progress. constants: what all rows of a decoder share; current: the
    name of the decoder that is called; jobs_left: how many jobs are to come, by their shape; warm:
    shapes that were warmed up; gave_up: whether the last wait for a quiet machine was in vain;
    fits: batch sizes of quality images that fit the memory, where a study's does not; next_block:
    when the next block may start (`monotonic`)."""

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
        labels, digests = self.decoders.labels, self.decoders.digests
        self.constants = {
            v.name: constants_of(config, v, labels[v.name], digests[v.name], origin)
            for v in self.variants
        }
        self.meter = Meter(model.device, config.latency.busy, captured=model.mode == "graph")
        self.jobs_left: Counter[tuple[str, int]] = Counter()
        self.warm: set[tuple[str, int]] = set()
        self.current, self.gave_up = "", False
        self.fits: dict[str, int] = {}
        self.next_block = 0.0

    def run(self, groups: Sequence[Sequence[Job]], name: str) -> None:
        """Runs the jobs that have no rows yet, in order: blocks of timed jobs and shares of the
        quality jobs. Before a block the machine is measured, whose rates the floor of a step needs,
        and the decoders are warmed up. name: what the terminal shows."""
        config = self.config
        keys = [key for group in groups for job in group for key in job.keys]
        self.folder.resume(
            {key: self.prompts[key.prompt_index].text for key in keys},
            self.decoders.digests,
            {
                "rows": sum(len(job.indices) for job in all_jobs(config, self.variants)),
                "weights": self.model.weights_sha256,
            },
            force=config.resume == "force",
            retry=config.retry_failed,
        )
        rows = self.folder.rows
        todo = [
            [job for job in group if not all(key in rows for key in job.keys)] for group in groups
        ]
        total, count = (
            sum(len(job.indices) for group in some for job in group) for some in (groups, todo)
        )
        if not count:
            return
        self.jobs_left.update(job.shape for group in todo for job in group)
        freeze_heap()
        try:
            with progress(total, name, total - count) as bar:
                bar.write(memory_line(config, self.model), file=sys.stderr)
                for part in filter(None, todo):
                    if part[0].timed:
                        while (left := self.next_block - monotonic()) > 0:
                            bar.set_postfix_str("waiting for the next block (latency.spacing)")
                            stop_if_interrupted()
                            sleep(min(left, 1.0))
                        bar.set_postfix_str("measuring the machine")
                        if rates := measure_machine(self.folder.path, self.model):
                            log.info("the machine: %s", rates)
                        self.warm_up(part, bar)
                        self.next_block = monotonic() + config.latency.spacing
                    freeze_heap()  # what the warm-up has left stays
                    for job in part:
                        stop_if_interrupted()
                        bar.set_postfix_str(f"{job.variant.name} ({job.protocol})", False)
                        self.run_job(job)
                        bar.update(len(job.indices))
                    if part[0].protocol == LATENCY:
                        bar.write("\n".join(self.speedups(part[0].block)), file=sys.stderr)
                        bar.write(hours_left(config, self.folder.rows.values()), file=sys.stderr)
        except DeviceLostError as error:
            # What is left of its decoder fails, so that a resume goes on without it.
            failing, rows = self.current, self.folder.rows
            for job in [job for group in todo for job in group if job.variant.name == failing]:
                if any(key not in rows for key in job.keys):
                    self.append_failed(job, str(error))
            raise DeviceLostError(
                f"{failing} has stopped the GPU ({error}), and nothing more can run in this "
                "process. Its images to come are recorded as failed; the same command goes on with "
                "the other decoders, and with retry_failed=true tries this one again"
            ) from error
        finally:
            gc.unfreeze()

    def run_job(self, job: Job) -> None:
        """Decodes one job and appends its rows, those of a failure too. If other
        programs disturbed a timed image, waits for a quiet machine and times it once more. After a
        wait that timed out it waits no more until an image is not disturbed."""
        rows = self.decode(job) if job.timed else self.decode_what_fits(job)
        if isinstance(rows, Failure):
            self.append_failed(job, rows.error)
        else:
            if job.timed and not rows[0]["disturbed"]:
                self.gave_up = False
            elif job.timed and not self.gave_up:
                latency, share = self.config.latency, rows[0]["cpu_others"] + rows[0]["cpu_steal"]
                log.warning(
                    "%s: the machine is busy (%s; more than %.0f %% count as disturbed) or this "
                    "process was stopped; waiting for quiet, %g s at most (latency.wait_for_quiet)",
                    self.current, taken(share), 100 * latency.busy, latency.wait_for_quiet,
                )  # fmt: skip
                patience, on_gpu = latency.wait_for_quiet, self.meter.on_gpu
                self.gave_up = not wait_for_quiet(patience, latency.busy, one_core=on_gpu)
                again = rows if self.gave_up else self.decode(job)
                rows = rows if isinstance(again, Failure) else again
            self.folder.append(rows)
        self.jobs_left[job.shape] -= 1
        if not self.jobs_left[job.shape]:
            self.decoders.release(+self.jobs_left)  # a counter's + drops what has no jobs left

    def decode_what_fits(self, job: Job) -> list[Row] | Failure:
        """Decodes quality images, in batches half as large where these do not fit the memory. A
        decoder's later jobs begin with the size that fitted: captured steps are kept meanwhile,
        as to capture them again in each block takes longer."""
        name, _ = job.shape
        fitting = replace(job, size=min(job.size, self.fits.get(name, job.size)))
        rows = self.decode(fitting)
        while isinstance(rows, Failure) and "out of memory" in rows.error and fitting.size > 1:
            half = -(-fitting.size // 2)
            log.warning(
                "%d images at once are too many for %s, which goes on with %d (quality.batch)",
                fitting.size, name, half,
            )  # fmt: skip
            gc.collect()
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()
            fitting = replace(job, size=half)
            self.fits[name] = half
            rows = self.decode(fitting)
        return rows

    def decode(self, job: Job) -> list[Row] | Failure:
        """Decodes a job; returns its rows, or what the decoder raised. Raises SharedStateError
        where it has changed what all share, and DeviceLostError."""
        self.current, _ = job.shape
        decoder, columns = self.decoders.built[self.current], self.constants[self.current]
        if isinstance(decoder, Failure):
            return Failure(f"DecoderError: it cannot be run: {decoder.error}")
        call = partial(decode_job, self.config, self.model, decoder, job, self.prompts)
        rows = attempt(partial(call, columns, self.meter))
        stop_if_interrupted()  # or the failure is that of an interrupted callback
        self.decoders.require_unchanged(job.variant)
        return rows

    def append_failed(self, job: Job, error: str) -> None:
        log.warning("%s failed (%s): %s", name := job.shape[0], job.protocol, error)
        self.folder.append(failed_rows(self.constants[name], job, self.prompts, error))

    def warm_up(self, todo: Sequence[Job], bar: Any) -> None:
        """Lets each decoder decode whole images before its first block, until times are stable, and
        some steps before each later block; in batches one call. What fails here is ignored: its
        job will record it. Whole images: caches, allocator and compiled graphs settle only over a
        complete decoding."""
        latency = self.config.latency
        first: dict[tuple[str, int], Job] = {}
        for job in todo:
            first.setdefault(job.shape, job)
        for (name, size), job in first.items():
            bar.set_postfix_str(f"warming up {name}")
            if job.shape in self.warm:
                attempt(partial(self.take_steps, job))
                continue
            # size + 1 prompts: a full batch, and one row refilled.
            warm_up_job = replace(job, indices=job.indices[: size + 1])
            rows: list[Row] | Failure = []
            one_image = job.protocol == LATENCY
            seconds, limit = list[float](), latency.warmup_max if one_image else 1
            while len(seconds) < limit and not stable(seconds, latency.warmup_tolerance):
                rows = self.decode(warm_up_job)
                if isinstance(rows, Failure):
                    break
                seconds.append(rows[0]["seconds_batch"])
            log.info("warm-up of %s: %s s", name, seconds)
            if isinstance(rows, Failure):
                continue
            self.warm.add(job.shape)
            if one_image and ("=compiled" in rows[0]["path"] or self.model.mode == "graph"):
                # Another image than the one that a step was captured on.
                self.decoders.check_compiled_codes(job.variant, self.prompts[-1].text, job.seed + 1)

    def take_steps(self, job: Job) -> None:
        name, size = job.shape
        decoder = self.decoders.built[name]
        if not isinstance(decoder, Failure):
            prompts = [self.prompts[index].text for index in job.indices[:size]]
            prompts += prompts[-1:] * (size - len(prompts))
            noise = Noise.for_prompts(job.seed, prompts, self.model.target.length)
            decoder.warm_up(self.model.text.encode(prompts), noise, WARM_UP_STEPS)

    def speedups(self, block: int) -> list[str]:
        """Lists the speed-ups so far, a line per decoder, after a block of timed images."""
        every = (
            self.folder.rows.values()
        )  # quality images count in the mean forwards, as in the table
        good = [r for r in every if r["status"] == "ok" and r["protocol"] in (LATENCY, QUALITY)]
        if not good:
            return []
        rows = join_blocks(pd.DataFrame(good))
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
    with the work of the target's forward; None for a model whose floor is not known. A run folder
    belongs to one machine, model and backend, so the rates in it are comparable."""
    work, findings = work_of(model.target), read_findings(folder)
    best = findings.machine
    if work.weight_bytes:
        size, _ = work.forward(model.sampling.guidance_rows)
        before, rates = asdict(best or MachineRates()), measure_rates(model, round(size))
        best = MachineRates(**{name: max(before[name], rates[name]) for name in before})
    write_findings(folder, replace(findings, machine=best, work=work))
    return best


def stable(seconds: Sequence[float], tolerance: float) -> bool:
    """Whether the last two times differ by less than `tolerance` of the longer."""
    last = seconds[-2:]
    return len(last) > 1 and max(last) - min(last) < tolerance * max(last)
