"""A shard of a run: the quality images whose index is i modulo n, decoded by one worker.

Why by the index: an image is a function of its noise, which is one of (seed, prompt), so it does
not matter who decodes it nor with which others. A worker writes the rows of its shard into the
run's folder, next to those of the other workers, and stops; the run itself merges and judges them.
It times nothing: a machine that other workers share is no place to measure on.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.config.schema import StudyConfig
from bench.data.errors import ConfigError
from bench.judge.quality import Scorer, with_kept_features
from bench.run.runner import opened
from bench.run.session import frozen_heap


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
            run.all([mine], f"{config.name} {shard}")
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
