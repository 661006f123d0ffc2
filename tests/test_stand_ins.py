"""Studies compose, and those of papers run on their stand-ins."""

from pathlib import Path

import pandas as pd
import pytest

from bench.__main__ import main
from bench.commands.fetch import sources_of
from bench.config.compose import compose_study
from bench.errors import BenchError
from tests import stand_ins

STUDIES = sorted(
    path.stem for path in (Path(__file__).parents[1] / "conf" / "study").glob("*.yaml")
)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_composes_and_has_a_baseline(name):
    config = compose_study([f"study={name}"])
    assert config.name == name and any(entry.baseline for entry in config.decoders)


@pytest.mark.parametrize(
    ("study", "other"),
    [("lantern_pp_table", "eagle2"), ("anole_table", "eagle2"), ("sjd_table", "pjd")],
)
def test_a_study_runs_on_its_stand_ins(study, other, tmp_path):
    words = [f"study={study}", "metric=none", "model.grid=4", f"decoders=[ar,{other}]"]
    settings = stand_ins.make(compose_study(words), tmp_path / "made")
    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", "report=false"]
    where = f"run_dir={tmp_path / 'run'}"
    assert main(["run", *words, *settings, *few, where]) == 0
    rows = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert set(rows.decoder) == {"ar", other} and set(rows.status) == {"ok"}
    assert (tmp_path / "run" / rows.image[0]).is_file()
    sources = sources_of(compose_study([*words, *settings]))
    assert len(sources) >= 3 and all(Path(source).exists() for source in sources)


@pytest.mark.parametrize(
    ("study", "folder", "expected"),
    [
        ("smoke", "new", "runs on an embedded model"),
        ("lantern_table", "", "not empty"),
        ("gpu_costs", "new", "there is no stand-in for llamagen_xl_256_random"),
    ],
)
def test_what_has_no_stand_ins_is_said(tmp_path, study, folder, expected):
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match=expected):
        stand_ins.main([str(tmp_path / folder), f"study={study}"])
