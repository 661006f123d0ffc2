"""`bench run ... launch=NAME` and `bench run ... shard=i/n`: a run whose quality images workers
decode.

The workers write into the run's folder; when all have come to their end the run itself finishes:
verdicts, table, FID, page. Timed images are never theirs. Behind local workers, which have ended by
then, the run times them on this machine; for a cluster they are left to a plain run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.compose import compose_study
from bench.config.words import share
from bench.console import complain, say
from bench.records.folder import SHARDS
from bench.run.launch.launchers import lost_of
from bench.run.launch.task import THREADS, Asked, LaunchConfig, Task, asked, tasks_of

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig


def launched(words: Sequence[str], whole: Callable[[Sequence[str]], int]) -> int:
    """The exit status of a run with `launch=` or `shard=` among its words. whole: a run without
    them."""
    mine = asked(words)
    if mine.launch is None:
        return _worker(mine)
    config = compose_study(mine.words)
    return _launch(config, mine.launch, mine.words, whole)


def _worker(mine: Asked) -> int:
    """One shard, in this process. 0 where every image has its row; a failed one is a row too."""
    from bench.run.finish import interruptible, scorer_of
    from bench.run.runner import Shard, run_shard

    shard = Shard(*share("shard", mine.shard))
    config = compose_study(mine.words)
    with interruptible(config, mine.words):
        threads = int(os.environ.get(THREADS, 0)) or None
        done = run_shard(config, shard, threads, scorer_of(config))
    failed = f", {done.failed} of them failed" if done.failed else ""
    say(f"shard {shard}: {done.rows} rows in {config.run_dir}{failed}; `run` without shard= merges")
    return 0


def _launch(
    config: StudyConfig,
    launch: LaunchConfig,
    words: Sequence[str],
    whole: Callable[[Sequence[str]], int],
) -> int:
    from bench.run.finish import interruptible, progress_of
    from bench.run.runner import require_images

    require_images(config)
    timed, away = bool(config.latency.prompts), launch.where != "local"
    if away:
        from bench.commands.fetch import require_fetched

        require_fetched(config)
    logs = Path(config.run_dir).absolute() / SHARDS
    tasks = tasks_of(words, launch.count, launch.threads_of(config.backend.threads), away)
    with interruptible(config, words):
        lost = lost_of(tasks, launch, logs)
    if lost:
        for one in lost:
            complain(f"shard {one.task.shard} is not complete: {one.why}")
        complain(
            f"no FID, no table: rows are missing, N = {progress_of(config)}; the same command goes "
            "on from there"
        )
        return 1
    if not away:
        return whole(words)
    if timed:
        say(
            f"all quality images are recorded in {config.run_dir}. The timed ones are not: workers "
            "share their machines, which would be in every time. On a quiet machine of the same "
            f"kind, run: python -m bench run {shlex.join(words)}"
        )
        return 0
    return _finish(config, launch, words, logs)


def _finish(config: StudyConfig, launch: LaunchConfig, words: Sequence[str], logs: Path) -> int:
    """The end of a run as a task of its own: the machine that launches may have no GPU."""
    lost = lost_of([Task(tuple(words), offline=True)], launch, logs)
    for one in lost:
        complain(f"the run is not finished: {one.why}")
    if not lost:
        say(f"report: {Path(config.run_dir) / 'report' / 'index.html'}")
    return len(lost)
