"""summary.csv: its columns, its speed-ups and its quality figures, on rows with known answers."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from bench.run.study import run_study
from bench.store.facts import Verdict
from metrics import MetricError
from metrics.images import from_pil, open_rgb
from metrics.scores import Score, Scores
from tests.bench.fakes import analysed


class CountingScorer:
    """Figures that reveal which images were scored."""

    def score(self, images, captions):
        if len(images) < 6:
            raise MetricError("too few images")
        mean = float(torch.stack([from_pil(open_rgb(file)) for file in images]).float().mean())
        return Scores({"fid": Score(mean, features="mean"), "clip": Score(float(len(captions)))})


@pytest.fixture
def done(fake_run):
    return fake_run("loop.seconds=0.01")


def summary_of(result, rows=None, scorer=None):
    found = analysed(result, scorer, rows, gate={"fake_ar": Verdict("exact", "")})
    return found.tables["summary"].set_index("decoder")


def test_the_speedup_is_typical_of_the_blocks_and_times_are_of_all_timings(fake_study):
    words = ("latency.prompts=24", "latency.blocks=12", "quality.images=0")
    result = run_study(fake_study(*words, "decoders=[fake_ar,fake_spec]"))
    rows = result.rows.copy()
    assert sorted(rows.block.unique()) == list(range(12)) and len(rows) == 2 * 2 * 12
    rows["started_at"] = [f"2026-01-01T00:{block:02}:00+00:00" for block in rows.block]
    rows["seconds_prefill"] = 0.0
    rows["seconds_total"] = rows.nfe * (1.0 + (rows.decoder == "fake_ar"))
    slowed = rows.block == 3  # a neighbour, who slows all alike
    rows.loc[slowed, "seconds_total"] *= 5.0
    line = summary_of(result, rows).loc["fake_spec"]
    assert line.n_latency == 24
    assert line.latency_mean_s == pytest.approx(5 * (1 + 4 / 12))
    assert line.speedup == pytest.approx(2 * 15 / 5) and line.speedup_blocks == 12
    assert line.speedup_least == pytest.approx(line.speedup_greatest)
    rows.loc[slowed & (rows.decoder == "fake_ar"), "seconds_total"] *= 2.0  # AR more
    line = summary_of(result, rows).loc["fake_spec"]
    assert line.speedup == pytest.approx(6 * 2 ** (1 / 12)), "the typical ratio"
    assert line.speedup_greatest == pytest.approx(12)
    assert line.speedup_lo < line.speedup < line.speedup_hi


def test_acceptance_and_mass_moved(done):
    _, result = done
    table = summary_of(result)
    assert table.loc["fake_spec", ["mal", "mal_no_bonus", "nfe"]].tolist() == [3, 2, 5]
    assert table.loc["fake_ar", ["mal", "mal_no_bonus", "nfe"]].tolist() == [1, 0, 15]
    assert table.loc["fake_spec", "tv_shift_max"] == pytest.approx(0.05)
    assert table.loc["fake_spec", "tv_bound"] == pytest.approx(0.1)
    assert 0 <= table.loc["fake_spec", "tv_output"] < 1e-6, "the toy rule is exact"
    assert table.loc["fake_spec", "tv_output_bound"] == pytest.approx(0, abs=1e-6)
    assert table.loc["fake_spec", "tv_declared_bound"] > 0, "the toy rule declares more than it is"
    assert math.isnan(table.loc["fake_ar", "tv_output"])


def test_output_tv_is_per_committed_code_and_untested_codes_count_as_zero(done):
    _, result = done
    rows = result.rows.copy()
    mine = rows.decoder == "fake_spec"
    kinds = [0, *[4] * 7, *[1, 2] * 4], [0, *[4] * 11, *[3] * 4]  # 8 and 4 of 16 were tested
    tvs = [0.2, 0.4], [0.6]
    for column, values in (("kind", kinds), ("tv_output", tvs), ("tv_output_bound", tvs)):
        each = [values[i % 2] for i in range(int(mine.sum()))]
        rows.loc[mine, column] = pd.Series(each, index=rows.index[mine])
    line = summary_of(result, rows).loc["fake_spec"]
    assert line.tv_tested == pytest.approx(1.2 / 3)
    assert line.tv_output == line.tv_output_bound == pytest.approx(1.2 / (2 / 0.5 + 1 / 0.25))
    assert line.tv_output_lo < line.tv_output < line.tv_output_hi


def test_ambiguity_is_of_the_recorded_pairs_and_of_none_in_older_rows(done):
    _, result = done
    line = summary_of(result).loc["fake_spec"]
    drawn = result.rows[(result.rows.decoder == "fake_spec") & (result.rows.protocol == "quality")]
    alphas = np.concatenate(drawn.alpha.to_list())
    assert line.alpha == pytest.approx(alphas.mean()) and len(alphas) > 1
    assert 0 < line.target_top_1 < line.target_top_10 <= line.target_top_100 <= 1 + 1e-9
    assert 0 < line.target_entropy < 5, "bits of 32 codes"
    assert line.target_top_1_lo <= line.target_top_1 <= line.target_top_1_hi
    assert math.isnan(line.drafter_top_1) and math.isnan(line.drafter_entropy), "no q"
    columns = ["alpha", "target_mass", "drafter_mass"]
    older = result.rows.assign(**{name: [[]] * len(result.rows) for name in columns})
    line = summary_of(result, older.assign(target_entropy=math.nan)).loc["fake_spec"]
    assert line[["alpha", "target_top_1", "target_entropy"]].isna().all()
    assert line.tv_output == pytest.approx(0, abs=1e-6)


def test_quality_is_of_quality_images_also_of_a_reseed_and_is_said_where_it_cannot_be(done, caplog):
    _, result = done
    table = summary_of(result, scorer=CountingScorer())
    again = table.loc["fake_ar (reseed)"]
    assert again.n_latency == 0 and again.n_quality == 6
    assert again.fid != table.loc["fake_ar", "fid"], "another seed, other images"
    assert "greedy (reseed)" not in table.index
    assert table.loc["fake_ar", "exactness"] == "exact"
    assert table["clip"].tolist() == [6, 6, 6, 6]
    rows = result.rows.copy()
    few = rows[~((rows.decoder == "greedy") & (rows.prompt_index > 3))]
    table = summary_of(result, few, CountingScorer())
    assert np.isnan(table.loc["greedy", "fid"]) and table.loc["greedy", "n_quality"] == 4
    assert "no quality figures for greedy" in caplog.text
