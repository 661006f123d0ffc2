"""`python -m bench best`: the fastest that keeps a criterion, by how much, and at which edge."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from tests.bench.report.synthetic import DECODERS, write_run

AR, LANTERN = DECODERS[0], DECODERS[4]
# (delta, seconds, FID, CLIP, output TV): the larger, the faster and the worse
SWEPT = ((0.1, 0.9, 21.5, 0.3115, 0.05), (0.2, 0.8, 21.6, 0.3112, 0.1), (0.4, 0.7, 24.0, 0.3, 0.3))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """AR at one second, and three values of delta."""
    made = [
        replace(LANTERN, name=f"delta{d}", seconds=s, fid=fid, clip=clip, output_tv=tv)
        for d, s, fid, clip, tv in SWEPT
    ]
    folder = write_run(tmp_path_factory.mktemp("best") / "run", (AR, *made), images=False)
    spec = {part: None for part in ("loop", "drafter", "tree", "proposer")}
    listed = [
        {
            "name": one.name,
            "sampling": {},
            "spec": {**spec, "acceptance": {"target": "L", "kwargs": {"delta": delta}}},
        }
        for one, (delta, *_) in zip(made, SWEPT, strict=True)
    ]
    (folder / "study.json").write_text(json.dumps({"config": {"decoders": listed}}))
    return folder


@pytest.mark.parametrize(
    ("words", "best", "edge"),
    [
        ([], "delta0.2", False),  # delta 0.4's CLIP score lies below all of AR's seeds
        (["quality=fid"], "delta0.2", False),
        (["tv=0.05"], "delta0.1", True),
        (["tv=0.5"], "delta0.4", True),
    ],
)
def test_the_fastest_that_keeps_it_is_named_with_its_edge(run, capsys, words, best, edge) -> None:
    assert main(["best", str(run), *words]) == 0
    said = capsys.readouterr().out
    assert f"Fastest: {best}," in said and "margin" in said
    assert ("at the edge of acceptance.delta" in said) is edge


def test_nothing_that_keeps_it_is_status_1(run, capsys) -> None:
    assert main(["best", str(run), "tv=0.01"]) == 1
    assert "No timed decoder keeps it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["quality=clp"], "did you mean 'clip'"),
        (["tv=2"], "tv lies between 0 and 1, found 2"),
        (["tv=x"], "tv must be a number, found 'x'"),
        (["tv=0.1", "quality=clip"], "found 1 folders and 2 criteria"),
    ],
)
def test_bad_words_are_answered(run, capsys, words, says) -> None:
    assert main(["best", str(run), *words]) == 2
    assert says in capsys.readouterr().err
