"""`python -m bench run`: a study, or a part of one."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from bench.console import complain, say
from bench.errors import InUseError

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig


def cmd_run(arguments: Sequence[str]) -> int:
    """Run a study (or resume it) and write its summary and report.
    Decodes all images, judges every decoder, writes rows, summary.csv and the report. Exit
    status 1 where some decoder failed.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME         which study (`list study`; default: main)
      decoders=[a,b]     decoders of the study, or any of conf/decoder
      run_dir=DIR        the run's folder (default: results/runs/<study>)
      replicate=K        the study on the K-th next prompts, in results/runs/<study>-<K>
      latency.prompts=N  timed images per decoder; 0 leaves the timing out
      quality.images=N   images per decoder for the quality figures; 0 leaves them out
      retry_failed=true  decode failed rows again
      dry=true           say how much disk, memory and time the run needs, and keep nothing
      shard=I/N          decode a part: every N-th quality image from the I-th on
      ray.shards=N       parts of the quality images, each a task of Ray
      ray.gpus=X         GPUs of each task (default: 0)
      ray.address=WHERE  auto or ray://HOST:PORT of a cluster (default: on this machine)

    example:
      python -m bench run study=main decoders=[ar,lantern] latency.prompts=12 quality.images=64
    """
    from bench.config.arguments import divided
    from bench.config.compose import compose_study
    from bench.run.needs import dry_run
    from bench.run.shards import RunSettings, Shard, require_images, run_on_ray, run_shard
    from bench.run.study import make_scorer

    options, arguments = divided(RunSettings, arguments)
    part, config = options.part, compose_study(arguments)
    if options.dry:
        if part is not None:
            require_images(config)
        status = dry_run(config)
        if not status:
            make_scorer(config)  # raises what the run would raise
        return status
    if part is None:
        return _run(config, arguments)
    if not isinstance(part, Shard):
        return run_on_ray(config, part, arguments)
    complete = run_shard(config, part)
    gc.collect()  # of its model, which the whole run loads again
    with suppress(InUseError):  # the shard that ends after this one finishes the run
        return _run(config, arguments) if complete else 0
    return 0


def _run(config: StudyConfig, arguments: Sequence[str]) -> int:
    """Runs a study that these arguments describe, here; 1 where some decoder failed."""
    from bench.commands.report import show_report
    from bench.measure.device import device_name
    from bench.run.needs import require_disk
    from bench.run.study import explain_interrupts, finish, make_scorer, run_study
    from bench.store.columns import MERGED
    from bench.store.facts import write_study

    say(f"backend={config.backend.name} on {device_name(config.backend)}")
    say(f"{require_disk(config)}")
    with explain_interrupts(config):
        scorer = make_scorer(config)
        study = run_study(config)
        command = shlex.join(["python", "-m", "bench", "run", *arguments])
        write_study(study.path, {"command": command})
        run = finish(study, scorer)
    if config.report:
        show_report(run)
    else:
        say(f"rows: {run.folder / MERGED}")
    failed = {e.name: e.text("status") for e in run.entries if e.text("status") != "ok"}
    for name, status in failed.items():
        complain(f"{name}: {status}")
    return 1 if failed else 0
