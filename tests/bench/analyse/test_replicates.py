"""Replicates as one run: every figure is of all of them, and what is refused."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load, pooled
from bench.analyse.contrast import contrast
from bench.analyse.replicates import pooled_scores
from bench.analyse.run import Run
from bench.errors import ConfigError
from bench.measure.roofline import MachineRates
from bench.notebook import summary
from bench.store.facts import figures_by_name, read_findings, write_findings
from metrics.replicates import Replicated
from metrics.scores import Score, Scores
from metrics.stats import student_mean
from tests.bench.compare.test_diff import LINEUP, save
from tests.bench.report.synthetic import RATES, write_run

MACHINE = {"cpu": "Example CPU", "cpu_family": "25", "gpu": "", "torch": "2.9"}
PROMPTS, BLOCKS = 60, 30  # of one big run, of which replicates have a third each
FIGURES = ("mal", "clip", "tv_output", "latency_mean_s", "nfe", "n_quality", "n_latency", "alpha")


def change_study(run: Path, config: dict[str, object], **entries: object) -> Path:
    study = json.loads((run / "study.json").read_text())
    study |= {"config": study["config"] | config, "machine": MACHINE} | entries
    (run / "study.json").write_text(json.dumps(study))
    return run


def score(run: Path) -> None:
    """CLIP scores that are functions of the prompt and the decoder, and an FID."""
    rows, scores = pd.read_parquet(run / "records.parquet"), {}
    names = [made.name for made in LINEUP]
    for at, name in enumerate([*names, "ar (reseed)"]):
        protocol = "quality" if name in names else "reseed"
        drawn = rows[(rows.decoder == name.split()[0]) & (rows.protocol == protocol)]
        number = drawn.prompt.str.extract(r"(\d+)")[0].astype(float)
        each = tuple((65 + 10 * np.sin(number) - at * np.cos(number)).tolist())
        clip = Score(*vars(student_mean(each)).values(), each)
        scores[name] = Scores(
            {"fid": Score(20 + at), "clip": clip if drawn.image.all() else Score()}
        )
    write_findings(run, replace(read_findings(run), scores=scores))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("whole") / "run", LINEUP, prompts=PROMPTS)
    shutil.rmtree(run / "images")
    rows = pd.read_parquet(run / "records.parquet")
    rows.loc[rows.prompt_index == 1, "prompt"] = "ring 1"
    rows.loc[rows.protocol == "reseed", "image"] = "images/ar/reseed-1/x.png"
    save(rows.sort_values(["decoder", "prompt_index"], kind="stable"), run)
    score(run)
    decoders = json.loads((run / "study.json").read_text())["config"]["decoders"]
    config = {"decoders": [one | {"spec": {}} for one in decoders], "prompts": {"name": "scenes"}}
    return change_study(run, config)


def part(whole: Path, folder: Path, k: int, slow: float = 1.0, **config: object) -> Path:
    """A third of the prompts of the big run, as replicate k. slow: what its hour does to the
    decoders, AR left out."""
    shutil.copytree(whole, folder)
    rows, size = pd.read_parquet(whole / "records.parquet"), PROMPTS // 3
    mine = rows[rows.prompt_index // size == k].copy()
    mine["prompt_index"] -= k * size
    mine["block"] -= mine.block.min()
    reseed = (mine.protocol == "reseed").astype(int)
    mine["seed"] = 2 * k + reseed
    mine.loc[mine.decoder != "ar", "seconds_total"] *= slow
    save(mine, folder)
    score(folder)
    return change_study(folder, ({"replicate": k} if k else {}) | config)


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> Path:
    """A folder of three replicates."""
    for k, slow in enumerate((1.0, 0.9, 1.1)):
        part(whole, tmp_path / "table" / str(k), k, slow)
    return tmp_path / "table"


def entries(run: Run) -> dict[str, object]:
    return {entry.name: entry for entry in run.entries}


def test_replicates_that_differ_in_their_prompts_alone_are_one_big_run(whole, tmp_path):
    folders = [part(whole, tmp_path / str(k), k) for k in (2, 0, 1)]
    big, joined = entries(load(whole)), entries(pooled(folders, tmp_path))
    assert big.keys() == joined.keys() and len(big) == len(LINEUP) + 1
    for name, entry in joined.items():
        for figure in FIGURES:
            one, other = entry.interval(figure), big[name].interval(figure)
            assert [*vars(one).values()] == pytest.approx([*vars(other).values()], nan_ok=True)
        if name == "lantern":
            less, other = (x.interval("clip_less_baseline") for x in (entry, big[name]))
            assert less == other and math.isfinite(less.lo)
    assert len(joined["ar"].rows) == len(big["ar"].rows)
    frames = [run["lantern"].rows.sort_values("prompt_index") for run in (big, joined)]
    assert [*frames[0].prompt] == [*frames[1].prompt], "in the order of the prompts"
    assert joined["lantern"].interval("fid").value == big["lantern"].number("fid")
    same = contrast("mal", joined["lantern"], joined["eagle2"])
    assert same is not None and same.count == PROMPTS


def test_speed_ups_are_over_replicates_and_two_decoders_are_paired_in_each(parts):
    run = load(parts)
    assert len(run.folders) == 3 and run.title == "synthetic@1, 3 replicates"
    assert run.study == "synthetic@1"
    every = [entries(load(parts / name))["lantern"].number("speedup") for name in "012"]
    found = entries(run)["lantern"].line.speedup
    assert isinstance(found, Replicated) and [*found.each] == [0, 1, 2]
    assert found.value == pytest.approx(math.exp(np.mean(np.log(every))))
    reach = 4.302653 * np.std(np.log(every), ddof=1) / math.sqrt(3)
    assert math.log(found.interval().hi / found.value) == pytest.approx(reach, rel=1e-4)
    ratio = contrast("speedup", entries(run)["eagle2"], entries(run)["lantern"])
    assert isinstance(ratio, Replicated)
    assert ratio.interval().lo > 1.5, "the hour that slows both by 10 % cancels"


def test_a_pooled_share_stays_below_one_and_a_score_keeps_its_heading():
    mine = {"unit": "share", "better": "higher"}
    every = [
        Scores({"precision": Score(x, unit="share"), "mine": Score(x, **mine), "fid": Score(x)})
        for x in (0.9, 1.0, 1.0)
    ]
    found = pooled_scores(every)
    assert found["mine"].interval == found["precision"].interval
    assert found["precision"].lo < 0.9 and found["precision"].hi < 1 < found["fid"].hi
    assert (found["mine"].unit, found["mine"].better) == ("share", "higher")
    older = figures_by_name({"figures": {n: {"value": 0.9, "unit": ""} for n in ("recall", "fid")}})
    assert [older["figures"][name]["unit"] for name in ("recall", "fid")] == ["share", ""]


def test_a_folder_of_replicates_is_read_as_what_it_is(parts, tmp_path, capsys, without_plots):
    table = summary(parts)
    assert table.set_index("decoder").n_quality["lantern"] == PROMPTS
    assert main(["report", str(parts), f"out={tmp_path / 'out'}"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "times as fast as AR in 3 replicates" in text
    assert "Every figure is of 3 replicates (0, 1, 2)" in text and "first run" not in text
    assert "with 5 replicates intervals of speed-ups would be 0.50 times as wide" in text
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<title>lantern-bench: synthetic@1, 3 replicates</title>" in page
    places = [str(parts / name) for name in "012"]
    assert main(["report", *places, f"out={tmp_path / 'again'}"]) == 0
    assert "Every figure is of 3 replicates" in capsys.readouterr().out
    apart = tmp_path / "apart"
    (parts / "2").rename(apart)  # a folder of two and a third one
    assert main(["report", str(parts), str(apart), f"out={tmp_path / 'joined'}"]) == 0
    assert "times as fast as AR in 3 replicates" in " ".join(capsys.readouterr().out.split())
    apart.rename(parts / "2")
    apart.mkdir()
    for study in ("{}", '{"config": {}}'):
        for file in ("records.parquet", "findings.json"):
            (apart / file).write_bytes((parts / "0" / file).read_bytes())
        (apart / "study.json").write_text(study)
        for command in (
            ["report", apart, f"out={tmp_path / 'out'}"],
            ["compare", apart],
            ["diff", apart, parts],
        ):
            assert main([*map(str, command)]) == 2
            assert "study.json is damaged: it names no decoders" in capsys.readouterr().err
    assert main(["compare", str(parts)]) == 0
    assert "published figures: 0 reproduced" in capsys.readouterr().out


def test_replicates_are_packed_to_be_read_as_one_run_elsewhere(
    parts, tmp_path, capsys, without_plots
):
    wanted, out = load(parts), tmp_path / "pack"
    assert main(["report", str(parts), f"out={out}", "pack=true"]) == 0
    assert "packed without pictures" in capsys.readouterr().out
    picture = parts / "2" / "images" / "ar" / "quality" / "0.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"a picture")
    places = [str(parts / name) for name in "201"]
    assert main(["report", *places, f"out={out}", "pack=true"]) == 0
    assert "packed without pictures" not in capsys.readouterr().out
    parts.rename(tmp_path / "gone")
    found = load(out)
    assert [*found.folders] == [out / name for name in "012"]
    for name, entry in entries(found).items():
        assert entry.interval("speedup") == entries(wanted)[name].interval("speedup")
    assert (out / "2" / picture.relative_to(parts / "2")).read_bytes() == b"a picture"
    links = re.findall(r'href="([^"#]+)', (out / "index.html").read_text(encoding="utf-8"))
    assert links and all((out / link).is_file() for link in links)
    for place in (out, tmp_path, out / "0" / "more"):  # it, what holds it, and in it
        assert main(["report", str(out), f"out={place}", "pack=true"]) == 2
    assert "is not in it and does not hold it" in capsys.readouterr().err


def test_two_folders_of_replicates_are_compared_replicate_by_replicate(parts, whole, tmp_path):
    """B's hours are others; its decoders are as fast, but for EAGLE-2."""
    for k, slow in enumerate((1.1, 1.0, 0.9)):
        folder = part(whole, tmp_path / "b" / str(k), k, slow)
        rows = pd.read_parquet(folder / "records.parquet")
        rows.loc[rows.decoder == "eagle2", "seconds_total"] *= 2.5
        save(rows, folder)
    out = tmp_path / "diff.json"
    assert main(["diff", str(parts), str(tmp_path / "b"), f"out={out}"]) == 1
    found = {(f["b"], f["figure"]): f for f in json.loads(out.read_text())["findings"]}
    assert found["lantern", "speed-up over AR"]["verdict"] == "not told apart"
    assert found["eagle2", "speed-up over AR"]["verdict"] == "slower"
    assert found["lantern", "codes per forward"]["verdict"] == "equal"
    assert found["lantern", "codes per forward"]["pairs"] == PROMPTS
    assert main(["diff", str(parts), str(parts / "0"), f"out={out}"]) == 0
    found = {(f["b"], f["figure"]): f for f in json.loads(out.read_text())["findings"]}
    assert found["lantern", "speed-up over AR"]["verdict"] == "not told apart"


def test_what_are_not_replicates_of_one_study_on_one_machine_is_refused(
    whole, tmp_path, capsys, without_plots
):
    first = part(whole, tmp_path / "first", 0)
    second = part(whole, tmp_path / "second", 1)
    again = part(whole, tmp_path / "again", 0)
    settings = part(whole, tmp_path / "settings", 1, seed=7)
    machine = change_study(
        part(whole, tmp_path / "machine", 1), {}, machine=MACHINE | {"cpu_family": "26"}
    )
    fast = part(whole, tmp_path / "fast", 1)
    rates = MachineRates(RATES.step_bytes_per_s * 1.6, RATES.operations_per_s)
    write_findings(fast, replace(read_findings(fast), machine=rates))
    for other, says in (
        (again, r"of the same prompts \(replicate=0\).* with replicate=1"),
        (settings, "seed: not set in .*, 7 in "),
        (machine, "cpu_family: 25 in .*, 26 in "),
        (fast, "less than 1.5 times, found 1.60 times"),
    ):
        with pytest.raises(ConfigError, match=says):
            pooled([first, other], tmp_path)
            pytest.fail(other.name)
    rows = pd.read_parquet(second / "records.parquet").assign(git_commit="fedcba98")
    save(rows, second)
    assert main(["report", str(first), str(second), f"out={tmp_path / 'out'}"]) == 0
    assert "of different commits: 0123456789, fedcba98" in capsys.readouterr().out
    assert main(["report", str(first), str(second)]) == 2
    assert "say out=DIR" in capsys.readouterr().err


def test_runs_in_a_folder_on_its_own_prompts_are_not_taken_for_a_part_of_it(
    whole, tmp_path, capsys, without_plots
):
    first = change_study(part(whole, tmp_path / "first", 0), {}, config_hash="c0ffee")
    shutil.copytree(first, first / "run_2")
    assert load(first).folders == ()
    assert main(["report", str(first), f"out={tmp_path / 'out'}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The runs in run_2 of this folder are on the same prompts, and are not pooled" in said
