"""CLIP scores beside the baseline's: what is paired with what, from a study to clip_pairs.csv."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from bench.analyse.analyse import export
from bench.analyse.paired import clip_differences
from bench.run.contender import Study
from bench.run.study import run_study
from metrics import MetricError, papers
from metrics.scorers import ScenesScorer
from metrics.scores import Score, Scores
from metrics.stats import student_mean
from tests.bench.fakes import analysed

GREEDY = "{{decoder: {}, name: {}, overrides: ['sampling.temperature=0']}}"
ALONE, FAST = GREEDY.format("fake_ar", "greedy"), GREEDY.format("fake_spec", "fast_greedy")
DECODERS = f"decoders=[fake_ar,fake_spec,{ALONE},{FAST}]"


def expected(image: Path) -> float:
    """A made-up score: its prompt's own, and what the decoder does to it. Greedy: 50 more."""
    prompt, decoder = int(image.stem.split("-")[2]), image.parent.parent.name
    offset = {"fake_spec": -1.0 - prompt % 2, "greedy": 50.0, "fast_greedy": 50.5}
    return 10.0 * prompt + offset.get(decoder, 0.0)


class ScorerByName:
    """Scores by the files' names."""

    def score(self, images: Sequence[Path], captions: Sequence[str]) -> Scores:
        if len(images) < 2:
            raise MetricError("too few images")
        each = [expected(image) for image in images]
        assert len(captions) == len(images)
        return Scores({"clip": Score(sum(each) / len(each), each=tuple(each))})


def compared(result: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """clip_pairs.csv of a run with these rows, by decoder."""
    export(analysed(result, ScorerByName(), rows))
    return pd.read_csv(result.path / "clip_pairs.csv").set_index("decoder")


def test_a_study_pairs_each_decoder_with_ar_of_its_temperature(fake_run) -> None:
    _, result = fake_run("latency.prompts=0", DECODERS)
    found = compared(result, result.rows)
    reseed = "fake_ar (reseed)"
    assert found.baseline.to_dict() == {
        "fake_ar": "fake_ar", reseed: "fake_ar", "fake_spec": "fake_ar", "fast_greedy": "greedy",
    }  # fmt: skip
    assert found.seeds.to_dict() == {"fake_ar": 1, reseed: 1, "fake_spec": 2, "fast_greedy": 1}
    assert found.clip_less_baseline[["fake_ar", reseed]].tolist() == [0.0, 0.0]
    mean = student_mean([-1.0 - prompt % 2 for prompt in range(6)])
    line = found.loc["fake_spec"]
    assert (line.clip_images, line.clip_less_baseline) == (6, pytest.approx(-1.5))
    assert (line.clip_less_baseline_lo, line.clip_less_baseline_hi) == (mean.lo, mean.hi)
    assert found.clip_less_baseline["fast_greedy"] == pytest.approx(0.5)
    columns = (result.path / "summary.csv").read_text().splitlines()[0]
    assert "less" not in columns and "each" not in columns, "the summary keeps its columns"


def test_without_ar_there_is_no_table_and_an_old_one_goes(fake_study) -> None:
    result = run_study(fake_study("latency.prompts=0", "decoders=[fake_spec]"))
    (result.path / "clip_pairs.csv").write_text("of another time")
    with pytest.raises(FileNotFoundError):
        compared(result, result.rows)
    assert clip_differences({"a": None, "b": "gone"}, {"a": [{0: 1.0}], "b": [{}]}).empty


def test_seeds_of_ar_stand_for_it_together_and_are_held_against_each_other() -> None:
    ar = [{0: 1.0, 1: 2.0, 2: 9.0}, {0: 3.0, 1: 4.0}, {0: 2.0, 1: 6.0, 2: 9.0}]
    scores = {"ar": ar, "fast": [{0: 1.0, 1: 5.0, 2: 9.0}]}
    found = clip_differences({"ar": "ar", "fast": "ar"}, scores).set_index("decoder")
    assert found.clip_images.tolist() == [2] * 4, "prompt 2 failed under one seed"
    assert found.seeds.to_dict() == {
        "ar": 2, "ar (reseed)": 2, "ar (reseed 2)": 2, "fast": 3,
    }  # fmt: skip
    less = found.clip_less_baseline
    assert less["fast"] == pytest.approx(((1 - 2) + (5 - 4)) / 2)
    assert less["ar"] == pytest.approx(((1 - 2.5) + (2 - 5)) / 2)
    assert less["ar (reseed)"] == pytest.approx(((3 - 1.5) + (4 - 4)) / 2)


# ---- the scorer of a run is built before it, and must not weigh on the memory that is measured ---


def test_a_scorer_loads_nothing_before_the_first_images(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "load", lambda **_: pytest.fail("weights before the run"))
    ScenesScorer("cpu", 8, str(tmp_path))
    assert [*tmp_path.iterdir()] == []
