"""`python -m bench diff`: noise is not told apart, planted losses are."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.compare.diff import RATIOS
from bench.store import columns
from bench.store.facts import read_findings, write_findings
from bench.store.run_folder import write_parquet
from metrics.scores import Score, Scores
from metrics.stats import student_mean
from tests.bench.report.synthetic import DECODERS, RESEED_FID, write_run

LINEUP = tuple(d for d in DECODERS if d.name in ("ar", "sd_chain", "eagle2", "lantern"))


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    run = write_run(tmp_path_factory.mktemp("a") / "run", LINEUP, prompts=40)
    shutil.rmtree(run / "images")  # that rows name pictures is enough
    return run


def save(rows: pd.DataFrame, folder: Path) -> None:
    table = pa.Table.from_pandas(rows, schema=columns.SCHEMA, preserve_index=False)
    write_parquet(folder / "records.parquet", table)


def again(run: Path, folder: Path, seed: int, hour=1.0, slow=None, loss=None) -> Path:
    """The same codes timed at another hour, with what is planted by decoder: slow (factor of its
    seconds), loss (of its CLIP score)."""
    shutil.copytree(run, folder, dirs_exist_ok=True)
    rows = pd.read_parquet(run / "records.parquet")
    rng = np.random.default_rng(seed)
    rows["seconds_total"] *= hour * rng.normal(1, 0.03, len(rows))
    for name, factor in (slow or {}).items():
        rows.loc[rows.decoder == name, "seconds_total"] *= factor
    save(rows, folder)
    scores = {}
    for name, group in rows[rows.protocol == "quality"].groupby("decoder"):
        drawn = group.sort_values("prompt_index")
        base = 65 + 10 * np.sin(drawn.prompt_index.to_numpy())  # what the prompt does
        each = base + rng.normal(0, 2, len(drawn)) - (loss or {}).get(name, 0)
        clip, fid = student_mean(each), next(made.fid for made in LINEUP if made.name == name)
        scores[name] = Scores({
            "fid": Score(fid, fid - 0.45, fid + 0.5, features="scenes-clip"),
            "clip": Score(clip.value, clip.lo, clip.hi, tuple(map(float, each))),
        })  # fmt: skip
    scores["ar (reseed)"] = Scores({"fid": Score(RESEED_FID)})
    write_findings(folder, replace(read_findings(run), scores=scores))
    return folder


def clip_less(a: Path, b: Path, name: str) -> np.ndarray:
    one, other = (read_findings(run).scores[name]["clip"].each for run in (a, b))
    return np.array(other) - np.array(one)


def said(tmp: Path, *words: object) -> tuple[int, dict[tuple[str, str], dict]]:
    status = main(["diff", *map(str, words), f"out={tmp / 'diff.json'}"])
    found = json.loads((tmp / "diff.json").read_text())["findings"]
    return status, {(f["b"], f["figure"]): f for f in found}


def test_two_runs_of_the_same_codes_are_not_told_apart(first, tmp_path, capsys):
    a, b = again(first, tmp_path / "a", 1), again(first, tmp_path / "b", 2)
    status, found = said(tmp_path, a, b)
    assert status == 0
    assert {name for name, _ in found} == {made.name for made in LINEUP}
    for (_, figure), one in found.items():
        equal = figure in ("codes per forward", "FID")
        assert one["verdict"] == ("equal" if equal else "not told apart")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no figure differs beyond chance"
    assert lines[1].startswith("A and B are equal in codes (4 decoders, ")
    fid = next(line for line in lines if " FID " in line)
    assert fid.split()[-2:] == ["0.000", "equal"], "without an interval"


def test_runs_that_share_some_images_say_how_many_are_compared(first, tmp_path, capsys):
    a, b = again(first, tmp_path / "a", 1), again(first, tmp_path / "b", 2)
    rows = pd.read_parquet(b / "records.parquet")
    last = rows.prompt_index.max()
    save(rows.assign(prompt_index=rows.prompt_index.replace(last, 10 * last)), b)
    said(tmp_path, a, b)
    shown = capsys.readouterr().out
    both, whole, part = re.search(
        r"all but speed is of the (\d+) images that both made: A has (\d+), B (\d+)", shown
    ).groups()
    assert int(both) < int(part) == int(whole)


def test_a_planted_slowdown_and_a_planted_loss_are_found(first, tmp_path, capsys):
    """On another machine, of another commit; a slower hour slows all alike."""
    a = again(first, tmp_path / "a", 1)
    b = again(first, tmp_path / "b", 2, hour=1.3, slow={"eagle2": 1.1}, loss={"lantern": 2})
    other = {"cpu": "another CPU", "threads": 7, "git_commit": "fedcba9876543210"}
    save(pd.read_parquet(b / "records.parquet").assign(git_dirty=True, **other), b)
    status, found = said(tmp_path, a, b)
    same = ("not told apart", "equal")
    verdicts = {key: f["verdict"] for key, f in found.items() if f["verdict"] not in same}
    slower, worse = ("eagle2", "speed-up over AR"), ("lantern", "CLIP")
    assert verdicts == {slower: "slower", worse: "worse"} and status == 1
    assert found[slower]["value"] == pytest.approx(1 / 1.1, abs=0.02)
    assert found[worse]["value"] == pytest.approx(-2, abs=1)
    for (_, figure), one in found.items():  # p and interval say the same
        apart = one["lo"] > (figure in RATIOS) or one["hi"] < (figure in RATIOS)
        assert one["p"] is None or apart == (one["p"] < 0.05) or one["verdict"] == "equal"
    alone = student_mean(clip_less(a, b, "eagle2"))
    assert found["eagle2", "CLIP"]["hi"] > alone.hi, "of four decoders"
    shown = capsys.readouterr().out
    assert "5 % or less are chance" in shown
    lines = shown.splitlines()
    assert re.fullmatch(
        r"eagle2 is slower in B: 0\.\d+ \[0\.\d+, 0\.\d+\] \(ratio of speed-up over AR\)", lines[0]
    )
    assert re.match(r"lantern is worse in B: -\d.* \(difference of CLIP\)", lines[1])
    assert lines[2].startswith("A and B are equal in codes")
    assert lines[3].startswith(f"A: {a}, on ")
    assert lines[4:6] == ["   exact: ar, sd_chain, eagle2", "   relaxed: lantern"]
    assert "on another CPU, 7 threads" in lines[6]
    assert "commit fedcba987654 (changed), reads 20 GB/s" in lines[6]


def test_two_decoders_of_one_run(first, tmp_path, capsys):
    a = again(first, tmp_path / "a", 1)
    status, found = said(tmp_path, a, "decoders=eagle2,lantern")
    assert found["lantern", "images per second"]["verdict"] == "faster"
    codes = found["lantern", "codes per forward"]
    pooled = {entry.name: entry.interval("mal") for entry in load(a).entries}
    less = pooled["lantern"].value - pooled["eagle2"].value
    assert codes["verdict"] == "better" and codes["value"] == pytest.approx(less, rel=1e-9)
    widths = [pooled[name].half_width for name in ("lantern", "eagle2")]
    reach = (codes["hi"] - codes["lo"]) / 2
    assert reach == pytest.approx(math.hypot(*widths), rel=0.3), "their images are independent"
    assert status == 0
    assert said(tmp_path, a, "decoders=lantern,eagle2")[0] == 1
    assert main(["diff", str(a), "decoders=ar,eagle3"]) == 2
    assert main(["diff", str(a), "decoders=ar,ar"]) == 2
    shown, refused = capsys.readouterr()
    assert "did you mean 'eagle2'" in refused
    assert re.match(r"lantern is faster than eagle2: 1\.\d+ \[1\.\d+, \d\.\d+\] \(ratio of", shown)
    assert "eagle2 -> lantern" in shown and "in codes" not in shown


def test_what_the_runs_do_not_share_is_listed(first, tmp_path, capsys):
    runs = first, write_run(tmp_path / "b", LINEUP[:2], prompts=2)
    for run, seed in zip(runs, (0, 1), strict=True):
        study = json.loads((run / "study.json").read_text())
        study["config"]["seed"] = seed
        (run / "study.json").write_text(json.dumps(study))
    main(["diff", *map(str, runs)])
    shown = capsys.readouterr().out
    assert shown.startswith(
        "no figure differs beyond chance\nno speed of sd_chain was compared: expected 10 blocks "
        "that start 60 s apart (latency.blocks, latency.spacing), found 1; run it again with more\n"
    )
    assert f"only in {first}: eagle2, lantern" in shown
    assert "settings differ: decoders: " in shown and "; seed: 0 in A, 1 in B" in shown


def with_protocol(run: Path, **lines: str) -> Path:
    """The same run, its quality measured as these lines say."""
    found, protocol = read_findings(run), {"network": "one", "clip_network": "one"} | lines
    scores = {name: replace(one, protocol=protocol) for name, one in found.scores.items()}
    write_findings(run, replace(found, scores=scores))
    return run


def test_quality_measured_in_two_ways_is_not_compared(first, tmp_path, capsys):
    a, b = (with_protocol(again(first, tmp_path / name, n)) for n, name in enumerate("ab"))
    fid, clip = ("eagle2", "FID"), ("eagle2", "CLIP")
    assert {fid, clip} <= {*said(tmp_path, a, b)[1]}
    for other, gone in ({"network": "another"}, fid), ({"clip_network": "another"}, clip):
        found = said(tmp_path, a, with_protocol(b, **other))[1]
        assert {fid, clip} - {*found} == {gone}
    assert (
        "FID was measured in two ways, network: one in A, another in B" in capsys.readouterr().out
    )


def test_why_no_speed_was_compared_is_said(first, tmp_path, capsys):
    alone, few = again(first, tmp_path / "alone", 1), again(first, tmp_path / "few", 1)
    rows = pd.read_parquet(first / "records.parquet")
    timed, apart = rows.protocol == "latency", (rows.block % 2 == 0) == (rows.decoder == "ar")
    save(rows[~timed | apart], alone)
    save(rows[~timed | (rows.block < 4)], few)
    for words, why in (
        ([few, alone], "no block has timings that count of both it and AR"),
        ([few, "decoders=eagle2,lantern"], "expected 10 blocks that start 60 s apart .* found 4"),
    ):
        main(["diff", *map(str, words)])
        shown = capsys.readouterr().out
        assert re.search(f"no speed of .*lantern was compared: {why}", shown), shown
