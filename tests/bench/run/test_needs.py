"""Before it starts, a run says what it needs, and one that the disk has no room for is refused."""

import shutil
from types import SimpleNamespace

import pytest

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.run import needs
from bench.run.needs import disk_need, memory_need
from bench.store.run_folder import read_folder
from tests.bench.fakes import SEARCHPATH

GB = 1e9


def study(*words):
    return compose_study([*words])


def free(monkeypatch, size):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=int(size)))


def test_lanterns_table_needs_what_119000_pictures_and_rows_take(tmp_path):
    """19 rows of 1,000 timed and 5,000 drawn images, and the baseline's reseed."""
    need = disk_need(study("study=lantern_table", "backend=cpu", f"run_dir={tmp_path}"))
    assert need.rows == need.pictures == 19 * 6_000 + 5_000
    assert 17 * GB < need.size < 20 * GB


def test_what_a_folder_holds_is_not_needed_again(tmp_path):
    words = "study=smoke", f"run_dir={tmp_path}"
    before = disk_need(study(*words)).size
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").write_bytes(bytes(50_000))
    assert before - disk_need(study(*words)).size == 50_000


def test_pictures_that_are_not_kept_need_no_disk(tmp_path):
    words = "study=lantern_table", "backend=cpu", f"run_dir={tmp_path}"
    assert disk_need(study(*words, "keep_images=false")).size < 4 * GB


def test_a_disk_that_is_too_small_is_refused_before_anything_is_loaded(
    tmp_path, monkeypatch, capsys
):
    free(monkeypatch, 1e8)
    monkeypatch.setattr("bench.run.study.load_model", lambda *_: pytest.fail("it was loaded"))
    run = tmp_path / "run"
    assert main(["run", "study=smoke", f"run_dir={run}"]) == 2
    error = capsys.readouterr().err
    assert "0.1 GB are free" in error and "run_dir=DIR" in error and not run.exists()


def test_a_dry_run_prints_disk_memory_and_hours_and_keeps_nothing(tmp_path, monkeypatch, capsys):
    """Hours are those of all images, an image for what one of its batch size takes now."""
    seconds = {1: 360.0, 6: 600.0}  # of a call

    def timed(_model, _decoder, prompts, _seed, meter):
        meter.seconds = {"total": seconds[len(prompts)] - 60, "vq": 60.0}

    monkeypatch.setattr(needs, "generate", timed)
    run = tmp_path / "run"
    words = "study=smoke", "latency.prompts=2", "quality.images=6", "quality.batch=6"
    assert main(["run", *words, f"run_dir={run}", "dry=true"]) == 0
    *_, disk, memory, hours = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in (disk, memory)] == ["disk", "memory"]
    jobs = needs.jobs_of(study(*words))
    alone = sum(len(job.indices) for job in jobs if job.size == 1)
    batched = sum(len(job.indices) for job in jobs if job.size == 6)
    assert alone >= 2 and batched >= 6
    assert hours.startswith(f"hours: about {(alone * 360 + batched * 100) / 3600:.1f} for")
    assert not run.exists()


def test_a_dry_run_times_images_of_the_first_decoder(tmp_path, capsys):
    words = "study=smoke", "decoders=[ar]", "latency.prompts=1", "quality.images=0"
    assert main(["run", *words, f"run_dir={tmp_path / 'run'}", "dry=true"]) == 0
    hours = capsys.readouterr().out.splitlines()[-1]
    assert "for 1 image, if each takes as long as one of ar" in hours
    assert float(hours.split("(")[1].split()[0]) > 0


WITHOUT_INPUTS = {  # words of a run, and what is missing
    "prompts": (["prompts=coco", "prompts.path={tmp}/none.json"], "none.json does not exist"),
    "too few prompts": (["prompts=file", "prompts.path={tmp}/few.txt"], "1 prompt, "),
    "a prompt for another model": (
        ["prompts=file", "prompts.path={tmp}/other.txt"], "cannot read prompt"
    ),
    "the drafter": (["decoders=[ar,sd_chain]", "drafter.checkpoint={tmp}/none"], "{tmp}/none"),
    "the metric's pictures": (["metric=coco", "metric.reference={tmp}/none"], "{tmp}/none"),
    "the folder": (["run_dir={tmp}/few.txt"], "is a file"),
    "quality images of a shard": (["shard=0/2", "quality.images=0"], "shards time nothing"),
}  # fmt: skip


@pytest.mark.parametrize("what", WITHOUT_INPUTS)
def test_a_dry_run_refuses_what_the_run_would_refuse(what, tmp_path, capsys):
    words, says = WITHOUT_INPUTS[what]
    (tmp_path / "few.txt").write_text("a red ring\n")
    (tmp_path / "other.txt").write_text("".join(f"{n} zebras in the rain\n" for n in "abcdefgh"))
    words = [
        "run", "study=smoke", "decoders=[ar]", "latency.prompts=1", "quality.images=2",
        "quality.batch=2", f"run_dir={tmp_path / 'run'}", *words,
    ]  # fmt: skip
    errors = []
    for more in (["dry=true"], []):
        assert main([word.replace("{tmp}", str(tmp_path)) for word in words] + more) == 2
        out, error = capsys.readouterr()
        errors.append(error.splitlines()[-1])
        answered_first = what not in ("the drafter", "the metric's pictures")
        assert "memory" not in out or not answered_first, "what is known without the model"
        assert says.replace("{tmp}", str(tmp_path)) in errors[-1]
    assert errors[0] == errors[1]


def test_hours_are_of_the_images_that_have_no_row(fake_run):
    _, study = fake_run("decoders=[fake_ar]", "latency.prompts=2", "quality.images=2")
    decoder, rows = study.contenders[0].decoder, read_folder(study.path).rows
    assert needs.first_hours(study, decoder, rows) == "hours: none, every image has its row"
    for count in (1, len(rows)):
        left = needs.first_hours(study, decoder, [*rows][count:])
        assert f"for {count} image" in left and "as long as one of fake_ar" in left


def test_a_dry_run_tells_of_a_decoder_that_cannot_be_built(fake_study, tmp_path, caplog):
    broken = "{decoder: fake_ar, name: other, overrides: ['loop.broken=build']}"
    words = SEARCHPATH, "study=fake", f"decoders=[fake_ar,{broken}]", f"run_dir={tmp_path / 'run'}"
    assert main(["run", *words, "dry=true"]) == 1
    assert "other cannot be built: RuntimeError: this plug-in" in caplog.text


def test_a_dry_run_without_the_weights_prints_the_disk_all_the_same(tmp_path, monkeypatch, capsys):
    free(monkeypatch, 1e9)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = "study=lantern_table", "backend=cpu", f"run_dir={tmp_path / 'run'}", "dry=true"
    assert main(["run", *words]) == 2
    out, error = capsys.readouterr()
    assert "captions_val2017.json does not exist" in error and not out
    (tmp_path / "p.txt").write_text("".join(f"ring {n}\n" for n in range(6000)))
    assert main(["run", *words, "prompts=file", f"prompts.path={tmp_path / 'p.txt'}"]) == 1
    out = capsys.readouterr().out
    assert "119,000 pictures" in out and "hours: known once the model can be loaded here" in out
    assert "HF_HUB_OFFLINE is set" in out and "`python -m bench fetch`" in out


def test_memory_counts_weights_caches_and_logits_of_the_largest_batch():
    from decoders.models.random_weights import random_model

    model = random_model(vocab=64, grid=4)
    sizes = [
        memory_need(study("study=smoke", f"quality.batch={size}"), model) for size in (8, 16, 24)
    ]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0
    weights = sum(p.nbytes for p in needs.parameters(model))
    assert sizes[0] > weights
