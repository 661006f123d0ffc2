"""The scorer of a run is built before it, and must not weigh on the memory that is measured."""

from __future__ import annotations

from pathlib import Path

from bench.quality import ScenesScorer


def test_a_scorer_loads_nothing_before_the_first_images(tmp_path: Path) -> None:
    scorer = ScenesScorer("cpu", 8, str(tmp_path))
    assert not {"clip", "extractor", "reference"} & vars(scorer).keys()
    assert [*tmp_path.iterdir()] == []
