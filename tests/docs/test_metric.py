"""The metric and the study of docs/adding.md, the metric on a stand-in for ImageReward."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from bench.analyse.analyse import analyse
from bench.config.arguments import groups
from bench.config.compose import compose_study
from bench.report import notes, texts
from bench.report.page import write_report
from bench.run.study import make_scorer, run_study, scores_of_pictures
from bench.store.facts import Findings, read_study
from tests.bench import fakes
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "adding.md"


def red(prompt: str, path: str) -> float:
    """Stands for a network: the mean of the red of a picture, less one of long prompts."""
    with Image.open(path) as image:
        mean = image.convert("RGB").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    return mean[0] / 255 - len(prompt) / 100


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's files, found by Python and by Hydra."""
    for text in [*blocks(PAGE, "python"), *blocks(PAGE, "yaml")]:
        lines = [line[2:] for line in text.splitlines()[:2] if line[:2] == "# "]
        name = next(line for line in lines if "/" in line or line.endswith(".py"))
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    network = SimpleNamespace(score=red)
    package = SimpleNamespace(load=lambda name, device: network)
    monkeypatch.setitem(sys.modules, "ImageReward", package)
    monkeypatch.syspath_prepend(tmp_path)
    return f"file://{tmp_path}/conf"


def test_a_metric_of_one_file_is_a_column_with_its_unit_and_on_the_page(own, tmp_path) -> None:
    path = fakes.SEARCHPATH.replace("]", f",{own}]")
    config = compose_study(
        [path, "study=fake", f"run_dir={tmp_path / 'run'}", "latency.prompts=0", "metric=my_metric"]
    )
    study, scorer = run_study(config), make_scorer(config)
    names = [variant.name for variant in study.variants]
    scores = scores_of_pictures(scorer, study.path, study.rows, names)
    run = analyse(study.path, study.rows, read_study(study.path), Findings(scores=scores))
    entry = run.entries[-1]
    each = scores[entry.name]["image_reward"].each
    value = entry.interval("image_reward")
    assert value.value == pytest.approx(sum(each) / len(each)) and value.lo <= value.value
    assert {"image_reward", "image_reward_lo"} <= {*run.tables["summary"].columns}
    assert "metric measures image_reward, no CLIP" in " ".join(notes.facts(run))
    heading = "image_reward (reward), higher is better"
    assert heading in texts.plain(texts.summarise(run))
    assert heading in (write_report(run) / "index.html").read_text()


@pytest.mark.parametrize("study", sorted(groups()["study"]))
def test_the_metric_of_the_page_goes_with_every_study(own, study) -> None:
    """Also where the study has settings for a metric of its own."""
    words = [f"hydra.searchpath=[{own}]", "backend=cpu", "metric=my_metric", f"study={study}"]
    config = compose_study([*words, "decoders=[ar]", "name=mine"])
    assert config.metric is not None and config.metric.kwargs == {}
    assert callable(config.metric.load(device="cpu").score)


def test_the_study_of_the_page_is_composed(own) -> None:
    config = compose_study(["study=my_study", f"hydra.searchpath=[{own}]"])
    assert [one.name for one in config.decoders] == ["ar", "mine"]
