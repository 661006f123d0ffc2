"""Cached text features in a study: written by the command, used in place of the model's encoder."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bench.commands.features import cmd_features
from bench.data.errors import ConfigError
from bench.run.runner import run_study
from decoders.api import DecoderError, ImageModel
from decoders.models.small import random_model
from decoders.models.text.t5 import T5Encoder
from tests.bench import fakes
from tests.decoders.models.made.t5 import save_t5

PREFIX, WIDTH = 4, 8  # those of the random model
CSV = "id,prompt,category\n7,a red cube,cubes\n3,A blue ring.,rings\n9,a cat on a cube,cubes\n"


def load_model(device: str, dtype: str, text: str = "", seconds: float = 0.0) -> ImageModel:
    """A small random target behind a T5 encoder."""
    model = random_model(vocab=64, grid=4, dtype=getattr(torch, dtype), device=device)
    return dataclasses.replace(model, text=T5Encoder(text, length=PREFIX, dtype="float32"))


@pytest.fixture
def words(tmp_path) -> list[str]:
    """A study of two decoders on three prompts of a file, with a live T5."""
    (tmp_path / "p.csv").write_text(CSV)
    folder = save_t5(tmp_path / "t5", WIDTH)
    return [
        "decoders=[ar,{decoder: ar, name: greedy, overrides: ['sampling.temperature=0']}]",
        f"model._target_={__name__}:load_model", f"+model.text={folder}",
        "prompts=file", f"prompts.path={tmp_path / 'p.csv'}",
        "latency.prompts=1", "latency.warmup_max=1", "quality.images=3", "quality.batch=2",
    ]  # fmt: skip


def features(words: list[str], out: Path, *more: str) -> list[str]:
    """Writes the cache of a study's prompts; returns the study's words with the cache in use."""
    assert cmd_features([fakes.SEARCHPATH, "study=fake", *words, f"out={out}", *more]) == 0
    rest = [w for w in words if not w.startswith(("prompts", "+model.text"))]
    return [*rest, "prompts=features", f"prompts.path={out}"]


def test_a_run_on_cached_features_is_the_live_run(fake_study, words, tmp_path):
    live = run_study(fake_study(*words, f"run_dir={tmp_path / 'live'}"))
    out = tmp_path / "cache.safetensors"
    cached = run_study(fake_study(*features(words, out), f"run_dir={tmp_path / 'cached'}"))
    assert (live.rows.status == "ok").all() and len(live.rows) == 11
    for column in ("decoder", "protocol", "prompt_id", "prompt", "category", "status"):
        assert cached.rows[column].tolist() == live.rows[column].tolist()
    assert [c.tolist() for c in cached.rows.codes] == [c.tolist() for c in live.rows.codes]
    assert set(zip(live.rows.prompt_id, live.rows.category, strict=True)) == {
        ("7", "cubes"), ("3", "rings"), ("9", "cubes"),
    }  # fmt: skip
    hashes = json.loads(cached.rows.weights_hash[0])
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert hashes["text/cache.safetensors"] == digest
    assert "text/model.safetensors" in json.loads(live.rows.weights_hash[0])


def test_a_file_without_prompts_runs_under_its_own_names(fake_study, words, tmp_path, caplog):
    out = tmp_path / "cache.safetensors"
    cached = features(words, out)
    named = run_study(fake_study(*cached, f"run_dir={tmp_path / 'named'}")).rows
    save_file(load_file(out), out)  # drops the metadata
    rows = run_study(fake_study(*cached, f"run_dir={tmp_path / 'unnamed'}")).rows
    assert sorted(set(rows.prompt_id)) == [f"features:{n:05d}" for n in range(3)]
    assert "holds no prompts" in caplog.text
    greedy, same = (r[(r.decoder == "greedy") & (r.protocol == "quality")] for r in (rows, named))
    assert [c.tolist() for c in greedy.codes] == [c.tolist() for c in same.codes]


def test_a_run_says_once_that_rows_are_padded_on_the_right(fake_study, words, tmp_path, caplog):
    out = tmp_path / "cache.safetensors"
    cached = features(words, out)
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(out)
    for tensor in tensors.values():
        tensor[1, 0] = 0  # one place of padding
    save_file(tensors, out, metadata)
    left = run_study(fake_study(*cached, f"run_dir={tmp_path / 'left'}")).rows
    for tensor in tensors.values():
        tensor[1] = tensor[1].roll(-1, 0)
    save_file(tensors, out, metadata)
    right = run_study(fake_study(*cached, f"run_dir={tmp_path / 'right'}")).rows
    assert caplog.text.count("are padded on the right") == 1
    assert [c.tolist() for c in right.codes] == [c.tolist() for c in left.codes]


def test_the_encoder_alone_is_enough_to_write_features(words, tmp_path, capsys):
    folder = next(w for w in words if w.startswith("+model.text")).split("=")[1]
    broken = [w for w in words if not w.startswith(("model.", "+model."))]
    broken += ["model._target_=tests.bench.fakes:cannot_be_loaded"]
    own = [f"text.checkpoint={folder}", "text.length=6", "text.dtype=bfloat16", "prompts.limit=2"]
    out = tmp_path / "bf16.safetensors"
    features(broken, out, *own)
    tensors = load_file(out)
    assert tensors["features"].shape == (2, 6, WIDTH)
    assert tensors["features"].dtype == torch.bfloat16
    assert "2 x 6 x 8 bfloat16" in capsys.readouterr().out


def test_features_that_do_not_fit_the_model_stop_the_run(fake_study, words, tmp_path):
    out = tmp_path / "cache.safetensors"
    cached = features(words, out)
    tensors = load_file(out)
    for change, expected in (
        ({"features": tensors["features"][..., :6].contiguous()}, r"\(P, F\) = \(4, 8\)"),
        ({k: v[:, 1:].contiguous() for k, v in tensors.items()}, "3 positions.* prefix has 4"),
    ):
        save_file({**tensors, **change}, out)
        with pytest.raises(DecoderError, match=expected):
            run_study(fake_study(*cached))


def test_what_the_command_refuses(words, tmp_path):
    study = [fakes.SEARCHPATH, "study=fake", *words]
    taken = tmp_path / "taken.safetensors"
    taken.touch()
    fresh = f"out={tmp_path / 'x.safetensors'}"
    for more, expected in (
        ([], "out=FILE.safetensors"),
        (["out=x.pt"], "out=FILE.safetensors"),
        ([f"out={taken}"], "is there already"),
        ([fresh, "text.checkpont=x"], "text.checkpoint"),
        ([fresh, "text.dtype=float32"], "text.dtype needs text.checkpoint="),
        ([fresh, "text.checkpoint=x", "text.length=long"], "text.length must be"),
    ):
        with pytest.raises(ConfigError, match=expected):
            cmd_features([*study, *more])
    with pytest.raises(ConfigError, match=r"no end.*prompts\.limit"):
        cmd_features(["decoders=[ar]", "prompts=scenes", fresh])
    assert list(tmp_path.glob("*.safetensors")) == [taken]
