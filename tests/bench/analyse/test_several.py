"""Several runs of one study as one: the machine's interval, and what is refused."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.__main__ import main
from bench.analyse.analyse import load
from bench.analyse.several import several
from bench.errors import ConfigError
from tests.bench.compare.test_diff import LINEUP, save
from tests.bench.report.synthetic import write_run

STUDY = {"config_hash": "c0ffee", "machine": {"cpu": "Example CPU", "gpu": "", "torch": "2.9"}}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("several") / "a", LINEUP, prompts=40)
    shutil.rmtree(run / "images")
    return change_study(run, **STUDY)


def change_study(run: Path, **entries: object) -> Path:
    study = json.loads((run / "study.json").read_text()) | entries
    (run / "study.json").write_text(json.dumps(study))
    return run


def at_hour(run: Path, folder: Path, hour: int, factor: float = 1.0) -> Path:
    """The run again at another hour, in which every decoder but AR takes `factor` times as long."""
    shutil.copytree(run, folder)
    rows = pd.read_parquet(run / "records.parquet")
    rows["started_at"] = rows.started_at.str.replace("T00", f"T{hour:02}")
    rows.loc[rows.decoder != "ar", "seconds_total"] *= factor
    save(rows, folder)
    return folder


def speedups(run) -> dict[str, float]:
    return {e.name: e.number("speedup") for e in run.entries}


def test_three_runs_have_the_machine_s_interval_and_one_report(first, tmp_path, capsys):
    hours = [at_hour(first, tmp_path / "abc"[i], i, f) for i, f in enumerate((1.0, 0.9, 1.1))]
    runs, out = [load(folder) for folder in hours], tmp_path / "out"
    whole = several(runs)
    assert whole.spread is not None and whole.spread.runs == 3
    logs = [math.log(speedups(run)["lantern"]) for run in runs]
    assert whole.spread.deviation == pytest.approx(np.std(logs, ddof=1), rel=1e-6), "of all alike"
    lantern = next(e for e in whole.entries if e.name == "lantern")
    assert lantern.number("speedup") == pytest.approx(math.exp(np.mean(logs)))
    reach = 4.302653 * whole.spread.deviation / math.sqrt(3)
    assert math.log(lantern.interval("speedup").hi) == pytest.approx(
        np.mean(logs) + reach, rel=1e-5
    )
    assert main(["report", *map(str, hours), f"out={out}"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "times as fast as AR in 3 runs" in text
    assert "The mean of 3 runs, hours apart, which differ by 10.0 %" in text
    assert f"synthetic@1, 3 runs: {', '.join(map(str, hours))}" in text
    assert f"all else is of the first run ({hours[0]})" in text and "no interval" not in text
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "<title>lantern-bench: synthetic@1, 3 runs</title>" in page
    titles = {*re.findall(r"<h2[^>]*>([^<]+)</h2>", page)}
    assert {"The first run", "Details (first run)", "Provenance (first run)"} < titles
    whole = {"Decoders side by side", "Figures", "The first run"}
    assert all(title in whole or title.endswith("(first run)") for title in titles)


def test_what_are_not_runs_of_one_study_on_one_machine_is_refused(first, tmp_path, capsys):
    later = at_hour(first, tmp_path / "later", 2)
    near = at_hour(first, tmp_path / "near", 0)
    other = change_study(at_hour(first, tmp_path / "other", 4), machine={"cpu": "Other CPU"})
    for name, runs, says in (
        ("near", [first, near], "0 minutes apart"),
        ("one", [first], "found one"),
        ("machine", [first, other], "of one machine"),
    ):
        with pytest.raises(ConfigError, match=says):
            several([load(run) for run in runs])
            pytest.fail(name)
    change_study(
        later, config={"decoders": load(later).identity["config"]["decoders"], "version": 2}
    )
    with pytest.raises(
        ConfigError, match="of one version of a study, found synthetic@1 and synthetic@2"
    ):
        several([load(first), load(later)])
    assert main(["diff", str(first), str(later)]) == 2
    assert "found synthetic@1 and synthetic@2" in capsys.readouterr().err
    assert main(["report", str(first), str(near)]) == 2
    assert "say out=DIR" in capsys.readouterr().err
