"""prompts.limit, on every prompt set; captions and classes as prompts."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bench.config.compose import compose_study
from bench.config.plugins import call
from bench.data.errors import ConfigError, PromptError
from bench.prompts import classes, coco, file
from bench.run.runner import run_study
from tests.bench import fakes

SETS = sorted(p.stem for p in (Path(__file__).parents[3] / "conf/prompts").glob("*.yaml"))


@pytest.fixture
def ten(tmp_path):
    path = tmp_path / "ten.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(10)))
    return str(path)


def texts(prompts):
    return [p.text for p in prompts]


@pytest.mark.parametrize("name", SETS)
def test_every_set_has_a_limit(name):
    settings = OmegaConf.load(Path(__file__).parents[3] / f"conf/prompts/{name}.yaml")
    words = [f"prompts={name}", "decoders=[ar]", "prompts.limit=0"]
    if "path" in settings.keys():  # noqa: SIM118  ??? is a key without a value
        words.append("prompts.path=none.txt")
    with pytest.raises(ConfigError, match=r"prompts\.limit must be a whole number"):
        call(compose_study(words).prompts, count=1)


@pytest.mark.parametrize(
    ("count", "settings", "expected"),
    [
        (1, {"limit": 11}, "prompts.limit=11, but .* has 10 prompts"),
        (3, {"limit": 2}, "prompts.limit=2 leaves 2 prompts, 3 are wanted"),
    ],
)
def test_too_few_prompts_are_explained(ten, count, settings, expected):
    with pytest.raises(PromptError, match=expected):
        file.load(count, ten, **settings)


def test_a_study_that_wants_more_than_is_left_stops_before_anything_is_decoded(fake_study, ten):
    words = ["prompts=file", f"prompts.path={ten}", "prompts.limit=5"]
    with pytest.raises(PromptError, match="leaves 5 prompts, 6 are wanted"):
        run_study(fake_study(*words))
    assert fakes.CALLS == []
    rows = run_study(fake_study(*words, "quality.images=5")).rows
    assert sorted(set(rows.prompt_id)) == ["1", "2", "3", "4", "5"]


def test_coco_picks_one_caption_an_image_and_keeps_its_id(tmp_path):
    rows = [(9, "a b"), (4, "a c"), (9, "a longer one"), (4, "a c\n "), (9, "as long, too")]
    path = tmp_path / "captions_val2014.json"
    path.write_text(json.dumps({"annotations": [{"image_id": i, "caption": c} for i, c in rows]}))
    longest = coco.load(None, str(path))
    assert [(p.id, p.text) for p in longest] == [("9", "a longer one"), ("4", "a c")]
    assert texts(coco.load(None, str(path), caption="first")) == ["a b", "a c"]
    with pytest.raises(ConfigError, match="longest"):
        coco.load(None, str(path), caption="longer")
    path.write_text("[]")
    with pytest.raises(PromptError, match="not an official COCO"):
        coco.load(1, str(path))


def test_classes():
    assert texts(classes.load(3)) == ["0", "1", "2"] and len(classes.load(None)) == 1000
    assert [p.id for p in classes.load(None, only=[207, 7])] == ["class-0207", "class-0007"]
    config = compose_study(["prompts=classes", "prompts.only=[207,360]", "decoders=[ar]"])
    assert texts(call(config.prompts, count=2)) == ["207", "360"]
    with pytest.raises(PromptError, match="prompts=classes has 1000 prompts, 1001 are wanted"):
        classes.load(1001)
    with pytest.raises(ConfigError, match="from 0 to 9, found 10"):
        classes.load(1, classes=10, only=[10])
    with pytest.raises(PromptError, match="are the same"):
        classes.load(2, only=[5, 5])
