"""The parts of docs/adding.md are short, decode, and get the verdicts that the page states; its
metric, on a stand-in for ImageReward, is a column, and its study is composed."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from bench.config.compose import compose_study
from bench.config.schema import StudyConfig
from bench.report import texts
from bench.report.page import write_report
from bench.run.study import make_scorer, run_study
from decoders.api import ImageModel
from decoders.compose import build_decoder
from decoders.models.random_weights import random_model
from tests.bench import fakes
from tests.decoders.compositions import images
from tests.docs.pages import ROOT, blocks, judged, variant_of, written

PAGE = ROOT / "docs" / "adding.md"
ROWS = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
CODE = blocks(PAGE, "python")[: len(ROWS)]  # behind the parts stands a metric
FILES = {
    re.findall(r"^# (\S+\.(?:py|yaml))$", text, re.MULTILINE)[0]: text
    for text in [*blocks(PAGE, "python"), *blocks(PAGE, "yaml")]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adding")


@pytest.fixture(scope="module")
def study(folder: Path) -> Iterator[StudyConfig]:
    """That of the page's command, its files in the folder."""
    with written(folder, FILES, blocks(PAGE, "")[-1].splitlines()[-1]) as config:
        yield config


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return random_model(vocab=5, grid=4)


def test_the_parts_of_the_page_are_short():
    assert len(CODE) == 3
    assert all(len([line for line in text.splitlines() if line]) < 40 for text in CODE)


@pytest.mark.parametrize("name, verdict", ROWS)
def test_a_part_gets_the_verdict_that_the_page_states(name, verdict, study, model):
    variant = variant_of(study, model, name)
    report = judged(variant, model)
    assert report.word == verdict, report.detail
    assert variant.entry.expect in (None, verdict)


@pytest.mark.parametrize("name", [name for name, _ in ROWS])
def test_a_part_needs_fewer_forwards_than_ar(name, study, model):
    spec = variant_of(study, model, name).entry.spec
    generation = images(build_decoder(model, spec, model.sampling), ["a", "b", "c"])
    assert generation.codes.shape == (3, model.target.length)
    assert generation.trace.target_calls.float().mean() < model.target.length - 1


def red(prompt: str, path: Path) -> float:
    """Stands for a network: the mean of the red of a picture, less one of long prompts."""
    with Image.open(path) as image:
        mean = image.convert("RGB").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    return mean[0] / 255 - len(prompt) / 100


def test_a_metric_of_one_file_is_a_column_with_its_unit_and_on_the_page(
    study, folder, tmp_path, monkeypatch
) -> None:
    package = SimpleNamespace(load=lambda name, device: SimpleNamespace(score=red))
    monkeypatch.setitem(sys.modules, "ImageReward", package)
    path = fakes.SEARCHPATH.replace("]", f",file://{folder}/conf]")
    config = compose_study(
        [path, "study=fake", f"run_dir={tmp_path / 'run'}", "latency.prompts=0", "metric=my_metric"]
    )
    result = run_study(config)
    run = fakes.analysed(result, make_scorer(config))
    entry = run.entries[-1]
    each = [red(row.prompt, result.path / row.image) for row in entry.images.itertuples()]
    value = entry.interval("image_reward")
    assert value.value == pytest.approx(sum(each) / len(each)) and value.lo <= value.value
    assert {"image_reward", "image_reward_lo"} <= {*run.tables["summary"].columns}
    heading = "image_reward (reward), higher is better"
    assert heading in texts.plain(texts.summarise(run))
    assert heading in (write_report(run) / "index.html").read_text()


def test_the_study_of_the_page_is_composed(study, folder) -> None:
    config = compose_study(["study=my_study", f"hydra.searchpath=[file://{folder}/conf]"])
    assert [one.name for one in config.decoders] == ["ar", "mine"]
