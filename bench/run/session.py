"""Runs the jobs of a study: each is decoded, its images become rows, and these are appended.

Latency: every decoder warmed up, then interleaved prompt by prompt, in blocks spread over the run.
Quality: in batches, the same seed for every decoder, and the baseline again under other seeds (the
reseeds). What has a row already is skipped. A decoder that raises becomes failed rows. A killed run
loses the call in flight.
"""

from __future__ import annotations

import gc
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import pandas as pd
import torch

from bench.analyse.paired import (
    MOST_DISTURBED_SHARE,
    baselines_of,
    join_blocks,
    latency_rows,
    paired_speedup,
    timings,
)
from bench.console import progress
from bench.errors import DeviceLostError, Failure, attempt
from bench.measure.meter import taken, wait_for_quiet
from bench.measure.roofline import MOST_APART, MachineRates, measure_rates, work_of
from bench.run.compiled_steps import compiled_fault
from bench.run.contender import Contender, Study, build
from bench.run.decode import decode_job, failed_rows
from bench.run.needs import memory_line
from bench.run.schedule import Job
from bench.store.columns import LATENCY, QUALITY, Row
from bench.store.facts import read_findings, write_findings
from decoders.api import ImageModel
from decoders.execution.eager import release
from decoders.interrupts import stop_if_interrupted
from decoders.noise import Noise
from metrics.speedup import FEWEST_BLOCKS

log = logging.getLogger(__name__)
WARM_UP_STEPS = 16  # of a decoder before each block but its first
QUIET = (
    "stop other programs (`top` and `nvidia-smi` show them), or start again with another name= and "
    "latency.busy=1, which counts all timings"
)


class Session:
    """A study while it runs. current: the name of the decoder that is called; gave_up: whether the
    last wait for a quiet machine was in vain; next_block: when the next block may start
    (`monotonic`); before: the rates of the machine in an interrupted run, which this resumes."""

    def __init__(self, study: Study) -> None:
        self.study, self.config = study, study.config
        self.current, self.gave_up, self.next_block = "", False, 0.0
        self.before = read_findings(study.path).machine  # of an earlier session

    def run(self, groups: Sequence[Sequence[Job]], name: str) -> None:
        """Runs the jobs that have no rows yet, in order: blocks of timed jobs and shares of the
        quality jobs. Before a block the machine is measured, whose rates the floor of a step needs,
        and the decoders are warmed up. name: what the terminal shows."""
        study, rows = self.study, self.study.folder.rows
        todo = [
            [job for job in group if not all(key in rows for key in job.keys)] for group in groups
        ]
        total, count = (
            sum(len(job.indices) for group in some for job in group) for some in (groups, todo)
        )
        if not count:
            return
        for job in (job for group in todo for job in group):
            job.contender.jobs_left[job.size] += 1
        freeze_heap()
        try:
            with progress(total, name, total - count) as bar:
                bar.write(memory_line(self.config, study.model), file=sys.stderr)
                for part in filter(None, todo):
                    self.study.folder.require_there()
                    if part[0].timed:
                        self.begin_block(part, bar)
                    freeze_heap()  # what the warm-up has left stays
                    for job in part:
                        stop_if_interrupted()
                        bar.set_postfix_str(f"{job.contender.name} ({job.protocol})", False)
                        self.run_job(job)
                        bar.update(len(job.indices))
                    if part[0].protocol == LATENCY:
                        bar.write("\n".join(self.speedups(part[0].block)), file=sys.stderr)
        except DeviceLostError as error:
            # What is left of its decoder fails, so that a resume goes on without it.
            failing = self.current
            for job in [job for group in todo for job in group if job.contender.name == failing]:
                if any(key not in study.folder.rows for key in job.keys):
                    self.append_failed(job, str(error))
            raise DeviceLostError(
                f"{failing} has stopped the GPU ({error}), and nothing more can run in this "
                "process. Its images to come are recorded as failed; the same command goes on with "
                "the other decoders, and with retry_failed=true tries this one again"
            ) from error
        finally:
            gc.unfreeze()

    def begin_block(self, jobs: Sequence[Job], bar: Any) -> None:
        """Waits until the block may start, measures the machine, and warms the decoders up."""
        while (left := self.next_block - monotonic()) > 0:
            bar.set_postfix_str("waiting for the next block (latency.spacing)")
            stop_if_interrupted()
            sleep(min(left, 1.0))
        bar.set_postfix_str("measuring the machine")
        measure_machine(self.study.path, self.study.model, self.before)
        self.before = None
        self.warm_up(jobs, bar)
        self.next_block = monotonic() + self.config.latency.spacing

    def run_job(self, job: Job) -> None:
        """Decodes one job and appends its rows, those of a failure too. If other
        programs disturbed a timed image, waits for a quiet machine and times it once more. After a
        wait that timed out it waits no more until an image is not disturbed."""
        contender = job.contender
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
                    "process was stopped; waiting for quiet, %g s at most (latency.wait_for_quiet)."
                    " Disturbed timings count for no figure: %s",
                    job.contender.name,
                    taken(share),
                    100 * latency.busy,
                    latency.wait_for_quiet,
                    QUIET,
                )
                patience, on_gpu = latency.wait_for_quiet, self.study.meter.on_gpu
                self.gave_up = not wait_for_quiet(patience, latency.busy, one_core=on_gpu)
                again = rows if self.gave_up else self.decode(job)
                rows = rows if isinstance(again, Failure) else again
            self.study.folder.append(rows)
        contender.jobs_left[job.size] -= 1
        if not contender.jobs_left[job.size]:
            self.release_caches()

    def decode_what_fits(self, job: Job) -> list[Row] | Failure:
        """Decodes quality images: operator by operator where a decoder fails with captured steps,
        which hold their memory, then in batches half as large where these do not fit. Its later
        jobs begin in the way that succeeded: timed steps stay captured meanwhile, as to capture
        them again in each block takes longer."""
        contender, decoder = job.contender, job.contender.decoder
        size = min(job.size, contender.fits or job.size)
        while isinstance(rows := self.decode(replace(job, size=size)), Failure):
            how = None if isinstance(decoder, Failure) else decoder.execution
            if how is not None and how.stop_capturing(cast(Any, decoder)):
                log.warning(
                    "%s goes on operator by operator in batches of %d, as it fails where its steps "
                    "are captured: %s",
                    contender.name,
                    size,
                    rows.error,
                )
            elif "out of memory" in rows.error and size > 1:
                half = -(-size // 2)
                log.warning(
                    "%d images at once are too many for %s, which goes on with %d (quality.batch)",
                    size,
                    contender.name,
                    half,
                )
                size = contender.fits = half
            else:
                break
            gc.collect()
            if self.study.model.device.type == "cuda":
                torch.cuda.empty_cache()
        return rows

    def release_caches(self) -> None:
        """Drops what executions keep for calls of other sizes than those to come, and make again
        where needed: a captured step keeps its caches."""
        dropped = [
            release(one.decoder, {*+one.jobs_left})  # a counter's + drops zeros
            for one in self.study.contenders
            if not isinstance(one.decoder, Failure)
        ]
        if any(dropped):
            gc.unfreeze()  # it may refer to itself, as a state that a compiler has seen
            freeze_heap()

    def decode(self, job: Job) -> list[Row] | Failure:
        """Decodes a job; returns its rows, or what the decoder raised. Raises SharedStateError
        where it has changed what all share, and DeviceLostError."""
        self.current, decoder = job.contender.name, job.contender.decoder
        if isinstance(decoder, Failure):
            return Failure(f"DecoderError: it cannot be run: {decoder.error}")
        rows = attempt(partial(decode_job, self.study, job, decoder))
        stop_if_interrupted()  # or the failure is that of an interrupted callback
        self.study.shared.require_unchanged(job.contender)
        return rows

    def append_failed(self, job: Job, error: str) -> None:
        log.warning("%s failed (%s): %s", job.contender.name, job.protocol, error)
        self.study.folder.append(failed_rows(job, self.study.prompts, error))

    def warm_up(self, todo: Sequence[Job], bar: Any) -> None:
        """Lets each decoder decode whole images before its first block, until times are stable, and
        some steps before each later block; in batches one call. What fails here is ignored: its
        job will record it. Whole images: caches, allocator and compiled graphs settle only over a
        complete decoding."""
        latency, model = self.config.latency, self.study.model
        first = dict[tuple[str, int], Job]()
        for job in todo:
            first.setdefault((job.contender.name, job.size), job)
        for job in first.values():
            bar.set_postfix_str(f"warming up {job.contender.name}")
            contender = job.contender
            if job.size in contender.warm:
                attempt(partial(self.take_steps, job))
                continue
            # size + 1 prompts: a full batch, and one row refilled.
            warm_up_job = replace(job, indices=job.indices[: job.size + 1])
            rows: list[Row] | Failure = []
            one_image = job.protocol == LATENCY
            seconds, limit = list[float](), latency.warmup_max if one_image else 1
            while len(seconds) < limit and not stable(seconds, latency.warmup_tolerance):
                rows = self.decode(warm_up_job)
                if isinstance(rows, Failure):
                    break
                seconds.append(rows[0]["seconds_batch"])
            log.info("warm-up of %s: %s s", job.contender.name, seconds)
            if isinstance(rows, Failure):
                continue
            contender.warm.add(job.size)
            if one_image and ("=compiled" in rows[0]["path"] or model.mode == "graph"):
                # Another image than the one that a step was captured on.
                self.check_compiled_codes(contender, self.study.prompts[-1].text, job.seed + 1)

    def check_compiled_codes(self, contender: Contender, prompt: str, seed: int) -> None:
        """Fails a compiled decoder whose steps differ, beyond rounding, from those of the same
        pieces without a compiler: a table of it would compare what nobody wrote."""
        model, fast = self.study.model, contender.decoder
        how = model.execution.uncompiled()
        if how is None or isinstance(fast, Failure) or fast.execution is None:
            return
        plain = build(replace(model, execution=how), contender.variant)
        if isinstance(plain, Failure):
            return
        difference = attempt(lambda: compiled_fault(fast, plain, prompt, seed))
        if isinstance(difference, Failure):
            name = contender.name
            log.warning("%s is not compared with eager steps: %s", name, difference.error)
        elif difference:
            contender.decoder = Failure(
                "its compiled steps compute something else than the same pieces without a compiler "
                f"({difference}); set backend.execution=eager, and report it with this decoder"
            )

    def take_steps(self, job: Job) -> None:
        decoder = job.contender.decoder
        if isinstance(decoder, Failure):
            return
        prompts = [self.study.prompts[index].text for index in job.indices[: job.size]]
        prompts += prompts[-1:] * (job.size - len(prompts))
        model = self.study.model
        noise = Noise.for_prompts(job.seed, prompts, model.target.length)
        decoder.warm_up(model.text.encode(prompts), noise, WARM_UP_STEPS)

    def speedups(self, block: int) -> list[str]:
        """Lists the speed-ups so far, a line per decoder, after a block of timed images."""
        # Quality images count in the mean forwards, as in the table.
        every = self.study.folder.rows.values()
        good = [r for r in every if r["status"] == "ok" and r["protocol"] in (LATENCY, QUALITY)]
        if not good:
            return []
        rows = join_blocks(pd.DataFrame(good))
        lines = [f"speed-ups after block {block + 1} of {self.config.latency.block_count}:"]
        timed = timings(rows)
        if (timed.groupby("decoder").disturbed.mean() > MOST_DISTURBED_SHARE).any():
            lines.append(
                f"  {100 * timed.disturbed.mean():.0f} % of the timings were disturbed and do not "
                f"count ({taken(float((timed.cpu_others + timed.cpu_steal).median()))}): {QUIET}"
            )
        for name, baseline in baselines_of(self.config.measured()["decoders"], rows).items():
            mine = rows[rows.decoder == name]
            ratio = paired_speedup(rows[rows.decoder == baseline], mine)
            seconds = latency_rows(mine).seconds_total.mean()
            if math.isnan(seconds):
                lines.append(f"  {name:<24} no time that counts yet")
                continue
            speed = "" if ratio is None else f"{ratio.value:.2f}"
            if ratio is not None and ratio.blocks >= FEWEST_BLOCKS:
                speed += " [{1:.2f}, {2:.2f}]".format(*astuple(ratio.interval()))
            lines.append(f"  {name:<24} {seconds:8.3f} s/image  {speed}")
        return lines


def measure_machine(folder: Path, model: ImageModel, before: MachineRates | None = None) -> None:
    """Measures the machine now, unless its model's floor is not known. findings.json keeps the best
    rates of the run so far, with the work of the target's forward. A run folder belongs to one
    machine, model and backend, so the rates in it are comparable. before: those of an earlier
    session: a warning says where they were others."""
    work, findings = work_of(model.target), read_findings(folder)
    best = findings.machine
    if work.weight_bytes:
        size, _ = work.forward(model.sampling.guidance_rows)
        known, rates = asdict(best or MachineRates()), measure_rates(model, round(size))
        best = MachineRates(**{name: max(known[name], rates[name]) for name in known})
        log.info("the machine: %s", best)
        now = MachineRates(**rates)
        if before is not None and now.apart(before) > MOST_APART:
            log.warning(
                "%s was begun where the machine %s, and now it %s: a factor of %.1f. If it is "
                "another machine, or a busy one, its times do not belong with those before: choose "
                "another run_dir=",
                folder,
                before,
                now,
                now.apart(before),
            )
    write_findings(folder, replace(findings, machine=best, work=work))


def freeze_heap() -> None:
    """Moves all objects out of the garbage collector's sight: collecting before each call then
    costs no more than what the last one left."""
    gc.collect()
    gc.freeze()


def stable(seconds: Sequence[float], tolerance: float) -> bool:
    """Whether the last two times differ by less than `tolerance` of the longer."""
    last = seconds[-2:]
    return len(last) > 1 and max(last) - min(last) < tolerance * max(last)
