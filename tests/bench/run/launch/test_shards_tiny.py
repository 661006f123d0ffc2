"""Shards of a run on the embedded model: its layers, its kernel and its tokenizer round alike
whoever decodes an image, and with whichever others."""

from pathlib import Path

import pandas as pd
import pytest

from bench.config.compose import compose_study
from bench.run.runner import Shard, run_shard, run_study

IMAGES = 4
WORDS = [
    "study=main", "model=tiny", "decoders=[ar,lantern_pp]", "latency.prompts=0",
    "quality.reseeds=0", "quality.pairs=24", f"quality.images={IMAGES}", "quality.batch=2",
    "backend.threads=1",
]  # fmt: skip
OF_THE_CALL = ("seconds_", "peak_memory", "started_at")
LISTS = ("tv_output", "tv_declared_bound", "tv_output_bound", "moved", "bound", "codes")


def table(where: Path, count: int) -> pd.DataFrame:
    """The rows of a run that so many workers did, but for its times."""
    config = compose_study([*WORDS, f"run_dir={where / str(count)}"])
    done = [run_shard(config, Shard(index, count)) for index in range(count)]
    assert sum(one.rows for one in done) == 2 * IMAGES and not any(one.failed for one in done)
    rows = run_study(config).rows
    return rows[[c for c in rows if not c.startswith(OF_THE_CALL)]].map(str)


@pytest.mark.slow
def test_any_number_of_shards_gives_the_same_table(tmp_path):
    whole = table(tmp_path, 1)
    verified = whole[whole.decoder != "ar"]
    for name in LISTS:
        assert (verified[name] != "[]").any(), f"{name}: there is something to compare"
    parts = table(tmp_path, 3)
    assert set(parts.pop("batch")) == {"1", "2"}, "images alone, and with another one than before"
    pd.testing.assert_frame_equal(parts, whole.drop(columns="batch"))
