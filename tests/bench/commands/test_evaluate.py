"""`evaluate` on folders of images, captions matched to them, and the papers' scorer of studies."""

import csv
import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.commands import evaluate
from bench.commands.evaluate import cmd_evaluate
from bench.config.compose import compose_study
from bench.errors import EXPLAINED, ConfigError
from bench.prompts.sources import captions_of
from bench.run.study import run_study
from metrics.images import image_files
from metrics.scorers import CocoScorer
from tests.metrics.small_weights import clip_file, small, write_scenes


@pytest.fixture
def scenes(tmp_path):
    """(folder of 12 images, captions file, folder of 20 real images)"""
    captions = write_scenes(tmp_path / "drawn", "valid", 12)
    write_scenes(tmp_path / "real", "reference", 20)
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    return tmp_path / "drawn", tmp_path / "captions.txt", tmp_path / "real"


def words(scenes, tmp_path, *more: str) -> list[str]:
    images, captions, reference = scenes
    settings = (f"images={images}", f"captions={captions}", f"reference={reference}")
    return [*settings, f"cache_dir={tmp_path / 'cache'}", "device=cpu", *more]


def test_a_folder_is_evaluated_with_the_embedded_network(scenes, tmp_path, capsys):
    out = tmp_path / "figures.csv"
    assert cmd_evaluate(words(scenes, tmp_path, "metrics=[scenes]", f"out={out}")) == 0
    shown = capsys.readouterr().out
    for name in ("FID (scenes-clip)", "recall (scenes-clip)", "CLIP (scenes, 100 cos)"):
        assert name in shown
    assert "seeds and sampling that made them are unknown" in shown
    with out.open(newline="") as file:
        rows = {row["figure"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["fid", "fid_debiased", "kid", "precision", "recall", "score"]
    assert float(rows["fid"]["lo"]) <= float(rows["fid"]["value"]) <= float(rows["fid"]["hi"])
    assert float(rows["score"]["value"]) > 40  # the captions belong to the images
    for row in rows.values():
        assert row["images"] == "12" and row["weights"] == "clip.safetensors"
        assert len(row["weights_sha256"]) == len(row["captions_sha256"]) == 64
        assert json.loads(row["versions"])["pillow"]
    assert [rows[key]["reference"] for key in ("fid", "score")] == ["20", "0"]


def test_pictures_of_one_s_own_run_are_evaluated(fake_study, tmp_path, capsys):
    """As docs/official_models.md shows it."""
    fast = "sampling.temperature=0", "latency.prompts=0", "decoders=[fake_ar,fake_spec]"
    result = run_study(fake_study("prompts=scenes", *fast))
    ar, spec = (result.path / "images" / name / "quality" for name in ("fake_ar", "fake_spec"))
    assert main(["evaluate", str(spec), f"reference={ar}", f"cache_dir={tmp_path / 'cache'}"]) == 0
    shown = capsys.readouterr().out
    assert "6 images on" in shown and "metrics scenes" in shown and "CLIP (scenes" in shown
    assert f"6 captions are also captions of {ar}" in shown and "unknown" not in shown


def test_a_folder_by_itself_is_compared_with_real_scenes(scenes, tmp_path, capsys, monkeypatch):
    images, captions, reference = scenes
    monkeypatch.setattr(evaluate, "SCENES", 20)
    (images / "captions.json").write_text(json.dumps(captions.read_text().splitlines()))
    alone = ["evaluate", str(images), f"cache_dir={tmp_path / 'cache'}", "device=cpu"]
    assert main(alone) == 0
    shown = capsys.readouterr().out
    assert main([*alone, f"reference={reference}"]) == 0  # the first 20 of that split
    assert capsys.readouterr().out.splitlines()[1:] == shown.splitlines()[1:]


NAMED = [{"image": f"{n}.png", "caption": f"picture {n}"} for n in (10, 2, 1)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.txt", "picture 1\npicture 2\npicture 10\n"),
        ("c.json", json.dumps(["picture 1", "picture 2", "picture 10"])),
        ("c.json", json.dumps({d["image"]: d["caption"] for d in NAMED})),
        ("c.csv", 'image,caption\n1,"picture\n1"\n2,picture 2\n10,picture 10\n'),
        ("c.tsv", "image\ttext\n2.png\tpicture 2\n10.png\tpicture 10\n1.png\tpicture 1\n"),
    ],
)
def test_captions_find_their_images(tmp_path, name, text):
    files = [Path(f"{n}.png") for n in (1, 2, 10)]
    (tmp_path / name).write_text(text)
    found = captions_of(files, tmp_path / name)
    assert [" ".join(x.split()) for x in found] == ["picture 1", "picture 2", "picture 10"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.txt", "", r"c\.txt does not exist; set captions="),
        ("c.txt", "one\ntwo\n", "2 captions for 3 images"),
        ("c.txt", "one\n\nthree\n", r"caption of 2\.png is empty"),
        ("c.csv", "image,caption\n1,a\n2,b\n", r"1 images without a caption \(10\.png\)"),
        ("c.csv", "image,caption\n1,a\n1.png,b\n10,c\n", r"names 1\.png twice"),
        ("c.csv", "image,caption\n1,a\n2,b\n10,c\n._1.png,d\n", "a dot are of hidden files"),
        ("c.txt", "one\ntwo\x1b[31m\nthree\n", "caption of 2.png holds control characters"),
        ("c.jsonl", '{"image": "1.png"', "line 1, is not valid JSON"),
        ("c.json", json.dumps({"annotations": [], "info": {}}), "official annotation file"),
    ],
)
def test_captions_that_do_not_match_are_refused(tmp_path, name, text, message):
    if text:
        (tmp_path / name).write_text(text)
    with pytest.raises(EXPLAINED, match=message):
        captions_of([Path(f"{n}.png") for n in (1, 2, 10)], tmp_path / name)


def test_what_is_missing_or_useless_is_said_before_anything_is_read(scenes, tmp_path):
    images, captions, _ = scenes
    with pytest.raises(ConfigError, match="the folder of the images themselves"):
        cmd_evaluate(words((images, captions, images), tmp_path, "metrics=[scenes]"))
    with pytest.raises(ConfigError, match=r"nothing can be measured of .* give captions=FILE"):
        cmd_evaluate([str(images)])


def test_the_papers_scorer_fills_the_columns_of_the_summary(scenes, tmp_path, monkeypatch):
    """With small networks in place of the official ones."""
    small(monkeypatch)
    images, captions, reference = scenes
    weights = clip_file(tmp_path, wrap=True)
    words = [f"metric.weights.{key}={weights}" for key in ("inception", "vgg", "clip", "hps")]
    words += ["metric.hps=true", f"metric.reference={reference}"]
    words += [f"metric.cache_dir={tmp_path / 'cache'}"]
    config = compose_study(["study=smoke", "decoders=[ar]", "metric=coco", *words])
    scorer = config.metric.load(device="cpu")
    assert isinstance(scorer, CocoScorer)
    files = image_files(images)
    found = scorer.score(files, captions_of(files, captions))
    for name in ("fid", "clip", "hps", "precision", "recall"):
        assert found[name].lo <= found[name].value <= found[name].hi, name
    assert [name for name, one in found.figures.items() if one.unit] == ["precision", "recall"]
    assert 0 <= found["precision"].value <= 1 and 0 <= found["recall"].value <= 1
    assert found["fid"].features == "tiles" and found["precision"].features == "tiles"
    assert found["clip"].features.startswith("CLIP by the weights "), "which are not OpenAI's"
    assert found["hps"].features == "HPSv2.1 (100 cos)" and -100 <= found["hps"].value <= 100
