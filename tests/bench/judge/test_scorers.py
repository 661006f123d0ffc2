"""The scorer of a run is built before it, and must not weigh on the memory that is measured."""

import pytest

from bench.judge.scorers import ScenesScorer
from bench.prompts import Prompt
from decoders.api import DecoderError
from metrics.official import papers
from metrics.scenes_clip import ScenesClipFeatures


def test_a_scorer_loads_nothing_before_the_first_images(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "load", lambda **_: pytest.fail("weights before the run"))
    ScenesScorer("cpu", 8, str(tmp_path))
    assert [*tmp_path.iterdir()] == []


def test_captions_are_read_before_the_images(tmp_path, monkeypatch):
    """An unknown word shows at once, not after minutes of features."""
    monkeypatch.setattr(
        ScenesClipFeatures, "forward", lambda *_: pytest.fail("features before the captions")
    )
    prompts = [Prompt("one", "a red circle"), Prompt("two", "a zeppelin")]
    with pytest.raises(DecoderError, match="zeppelin"):
        ScenesScorer("cpu", 8, str(tmp_path)).score([tmp_path / "none.png"] * 2, prompts)
