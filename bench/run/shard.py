"""A shard of a run: the quality images whose index is i modulo n, decoded by one worker.

Why by the index: an image is a function of its noise, which is one of (seed, prompt), so it does
not matter who decodes it nor with which others. A worker writes the rows of its shard into the
run's folder, next to those of the other workers, and stops; the run itself merges and judges them.
It times nothing: a machine that other workers share is no place to measure on.

An image that kills its worker (out of memory, a crash in native code) would kill the next one too.
So a worker notes what it is about to decode; what has taken `DEATHS` workers becomes failed rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.config.schedule import Batch
from bench.config.schema import StudyConfig
from bench.console import progress
from bench.data.errors import ConfigError
from bench.data.files import write_atomically
from bench.judge.quality import Scorer, with_kept_features
from bench.measure.clock import now
from bench.records.folder import SHARDS
from bench.run.runner import Run, opened
from bench.run.session import frozen_heap

log = logging.getLogger(__name__)
DEATHS = 3  # workers that die in a batch until it is not tried any more


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `of`."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.index}-of-{self.of}"


@dataclass(frozen=True)
class Done:
    """What a worker leaves: rows of its shard, and how many of them failed."""

    rows: int
    failed: int


def run_shard(
    config: StudyConfig, shard: Shard, threads: int | None = None, scorer: Scorer | None = None
) -> Done:
    """Decodes (or resumes) a shard, and keeps the features of its pictures where the scorer can
    say them. threads: of this worker, in place of the study's.

    Raises as `run_study` does, ConfigError where the study has no quality images.
    """
    require_images(config)
    with opened(config, shard.name, threads) as run:
        folder, (latency, quality) = run.folder, run.batches()
        folder.expect(sum(len(b.indices) for b in (*latency, *quality)))
        mine = run.quality((shard.index, shard.of))
        run.resume(run.context.expected(mine), mine)
        with frozen_heap():
            _decode(run, mine, shard)
        rows = [folder.tables[key].select(["status", "image"]) for b in mine for key in b.keys]
        found = [row.to_pylist()[0] for row in rows]
        pictures = [folder.path / row["image"] for row in found if row["image"]]
        if scorer is not None and run.model.draws:
            with_kept_features(scorer, folder.path, pictures)
        return Done(len(found), sum(row["status"] == "failed" for row in found))


def require_images(config: StudyConfig) -> None:
    """Raises ConfigError where workers would have nothing to do."""
    if not config.quality.images:
        raise ConfigError(
            f"the study {config.name} has timed images alone (quality.images=0), and workers time "
            "nothing: what else runs on a shared machine would be in every time. Run it without "
            "shard= and launch=, on a machine that does nothing else"
        )


def _decode(run: Run, mine: list[Batch], shard: Shard) -> None:
    trying = _Trying(run.folder.path / SHARDS / f"{shard.name}.trying")
    left = [batch for batch in mine if not run.recorded(batch)]
    run.lineup.expect(left)
    total, todo = (sum(len(b.indices) for b in batches) for batches in (mine, left))
    with progress(total, f"{run.config.name} {shard}", total - todo) as bar:
        run.lineup.announce(bar)
        for batch in left:
            bar.set_postfix_str(f"{batch.cell.entry.name} ({batch.protocol})", False)
            with trying(batch) as died:
                if died < DEATHS:
                    run.run(batch, again=True)
                else:
                    error = f"{died} workers died while they decoded it (killed, out of memory?)"
                    run.fail(batch, error, now())
            run.lineup.done(batch)
            bar.update(len(batch.indices))


class _Trying:
    """Notes what is being decoded, in a file that only a process that dies leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.left = json.loads(path.read_bytes())
        except (OSError, ValueError):  # nobody died, or while writing it
            self.left = {}

    @contextmanager
    def __call__(self, batch: Batch) -> Iterator[int]:
        """How many processes have died in this batch, one after the other."""
        what = [batch.cell.key, batch.stem(batch.indices[0])]
        died = int(self.left["tries"]) if self.left.get("what") == what else 0
        note = json.dumps({"what": what, "tries": died + 1}).encode()
        write_atomically(self.path, lambda file: file.write(note), sync=False)
        try:
            yield died
        finally:
            self.path.unlink(missing_ok=True)
