"""`bench run ... shard=i/n`: a part of a run's quality images, decoded by one of n processes.

A shard is every image whose index is i modulo n. An image is a function of its noise, which is one
of (seed, prompt). So it does not matter which process decodes it, or with which other images. All
shards write into the run's folder, and any scheduler can start them. The one that ends last
finishes the run: verdicts, table, FID, page. Shards time nothing, as they may share a machine.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bench.config.words import apart, given
from bench.console import say
from bench.data.errors import ConfigError, InUseError

if TYPE_CHECKING:
    from bench.config.schema import StudyConfig


class Shard(NamedTuple):
    """Shard i of n."""

    i: int
    n: int

    def __str__(self) -> str:
        return f"{self.i}/{self.n}"


def shard_of(words: Sequence[str]) -> tuple[Shard | None, list[str]]:
    """(the shard that a command line names, the other words). Raises ConfigError."""
    own, rest = apart(words, ("shard",))
    if not own:
        return None, rest
    text = given(own, ("shard",), "run")["shard"]
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(
            f"shard must be i/n with 0 <= i < n, found {text!r}; the four quarters of a run are "
            "0/4, 1/4, 2/4 and 3/4"
        )
    return Shard(int(found[1]), int(found[2])), rest


def run_shard(config: StudyConfig, shard: Shard) -> int:
    """Decodes (or resumes) a shard; returns how many of its images failed. Raises as `run_study`
    does, ConfigError where the study has no quality images."""
    from bench.run.runner import opened

    require_images(config)
    with opened(config, f"{shard.i}-of-{shard.n}") as run:
        mine = run.quality(shard)
        run.resume(mine)
        run.all([mine], f"{config.name} {shard}")
        return sum(run.folder.said(key, "status") == "failed" for b in mine for key in b.keys)


def work(config: StudyConfig, shard: Shard, words: Sequence[str], whole: Callable[[], int]) -> int:
    """One shard, and the end of the run where it was the last. Returns an exit status: 0 also where
    images failed, which are rows too. words: of the study; whole: the run without `shard=`."""
    from bench.run.finish import interruptible, progress_of

    with interruptible(config, words):
        failed = run_shard(config, shard)
    gc.collect()  # of its model, which `whole` loads again
    have = progress_of(config)
    say(f"shard {shard} is done, {failed} of its images failed; in {config.run_dir}: {have}")
    if config.latency.prompts:
        say("timed images are decoded by `run` without shard=, on a machine that does nothing else")
    elif have.done == have.total:
        try:
            return whole()
        except InUseError:  # the shard that ends after this one finishes the run
            pass
    return 0


def require_images(config: StudyConfig) -> None:
    """Raises ConfigError where shards would have nothing to do."""
    if not config.quality.images:
        raise ConfigError(
            f"the study {config.name} has timed images alone (quality.images=0), and shards time "
            "nothing: what else runs on a shared machine would be in every time. Run it without "
            "shard= and ray.shards=, on a machine that does nothing else"
        )
