"""Studies of papers: they compose with the papers' protocol, and run on their stand-ins."""

from pathlib import Path

import pandas as pd
import pytest

from bench.__main__ import main
from bench.commands.fetch import sources_of
from bench.config.compose import compose_study
from bench.data.errors import BenchError
from tests import stand_ins
from tests.decoders.propose.test_draft_trees import RELEASED

STUDIES = Path(__file__).parents[1] / "conf" / "study"
PAPERS = sorted(p.stem for kind in ("table", "baselines") for p in STUDIES.glob(f"*_{kind}*"))


@pytest.mark.parametrize("name", PAPERS)
def test_paper_studies_compose_with_the_protocol(name):
    config = compose_study([f"study={name}"])
    assert config.name == name and any(e.baseline for e in config.decoders)
    for tree in (e.spec.tree for e in config.decoders if e.spec.tree is not None):
        if "choices" in tree.kwargs:
            assert str(tree.kwargs["choices"]) in RELEASED
        else:
            chain = {"depth": 5}  # COOL-SD's
            assert tree.kwargs in (chain, {"depth": 5, "top_k": 10, "nodes": 58})
    if name == "tiny_table":
        return
    assert (config.latency.prompts, config.quality.images) == (1000, 5000)
    assert config.backend.device == "cuda" and config.prompts.name == "coco"
    for rule in (e.spec.acceptance for e in config.decoders):
        if rule is not None and {"k", "delta"} <= {*rule.kwargs}:
            assert rule.kwargs["k"] == 1000 and 0.05 <= rule.kwargs["delta"] <= 0.4


@pytest.mark.parametrize("study", ["lantern_pp_table", "anole_table"])
def test_a_study_runs_on_its_stand_ins(study, tmp_path):
    words = [f"study={study}", "metric=none", "model.grid=4", "decoders=[ar,eagle2]"]
    settings = stand_ins.make(compose_study(words), tmp_path / "made")
    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", "report=false"]
    where = f"run_dir={tmp_path / 'run'}"
    assert main(["run", *words, *settings, *few, where]) == 0
    rows = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert set(rows.decoder) == {"ar", "eagle2"} and set(rows.status) == {"ok"}
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
