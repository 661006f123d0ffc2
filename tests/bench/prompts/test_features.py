"""Text features of a file in a study, in place of the model's encoder."""

import csv
import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.records.study import read_identity
from bench.run.runner import run_study
from decoders.api import DecoderError, ImageModel
from decoders.models.small import random_model
from decoders.models.text.t5 import T5Encoder
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


def features(words: list[str], out: Path) -> list[str]:
    """Writes the features of a study's prompts; returns the study's words with the file in use."""
    folder = next(w for w in words if w.startswith("+model.text")).split("=")[1]
    rows = list(csv.DictReader(CSV.splitlines()))
    text = T5Encoder(folder, length=PREFIX, dtype="float32").encode([r["prompt"] for r in rows])
    metadata = {key: json.dumps([row[key] for row in rows]) for key in rows[0]}
    save_file({"features": text.features, "mask": text.mask}, out, metadata)
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
    hashes = read_identity(cached.path)["weights"]
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert hashes["text/cache.safetensors"] == digest
    assert "text/model.safetensors" in read_identity(live.path)["weights"]


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
