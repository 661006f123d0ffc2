"""FlashAR: its greedy codes are those of the paper's equations, written plainly; the released
layout, a gate of every kind, and the limit at which it is AR."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.execution import with_execution
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.flash import Flash
from decoders.loops.grouped import NEVER
from decoders.models.llamagen import load
from decoders.models.loading.checkpoint import cast
from decoders.models.nets.flash import FlashConfig, FlashTransformer
from decoders.models.random_weights import random_model
from tests.decoders.compositions import images
from tests.decoders.execution.cpu.cases import needs_kernel
from tests.decoders.models import released as R

GREEDY, SAMPLED = Sampling(temperature=0.0, cfg=2.0), Sampling(cfg=2.0)
CONFIG = {"medusa_attention_num": R.VERTICAL, "vertical_start_layer": 1}


def released(folder: Path, gate: str = "network", start: int = 1) -> Any:
    """A model of FlashAR's released layout."""
    settings = CONFIG | {"vertical_start_layer": start}
    content = {"model": R.original_flash(gate), "steps": 3}
    path = R.write_original(folder / "flash.pt", content, **settings)
    return load(dtype="float32", checkpoint=str(path), grid=R.GRID)


def with_flash(model: Any, **settings: int) -> Any:
    """A model with a target of anti-diagonals that begins as its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        target = FlashTransformer(FlashConfig(**asdict(model.target.config) | settings))
    target.begin_as(model.target)
    cast(target.eval().requires_grad_(False), model.device, model.dtype)
    return replace(model, targets={"flash": target})


@pytest.mark.parametrize(
    ("gate", "start"), [("network", 1), ("network", 0), ("number", -1), ("none", 1)]
)
def test_greedy_codes_are_those_of_the_equations(tmp_path: Path, gate: str, start: int) -> None:
    model = released(tmp_path, gate, start)
    codes = images(Flash(model, GREEDY), ["3", "9"]).codes
    layer = R.LAYERS if start < 0 else start
    wanted = [R.reference_flash(R.original_flash(gate), layer, label, 2.0) for label in (3, 9)]
    assert torch.equal(codes, torch.stack(wanted)) and len(codes.unique()) > 5
    assert not torch.equal(codes[0], codes[1])


def test_codes_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    decoder = Flash(released(tmp_path), SAMPLED)
    together = images(decoder, ["3", "9", "1"])
    for i, prompt in enumerate(("3", "9", "1")):
        assert torch.equal(images(decoder, [prompt]).codes[0], together.codes[i])
    assert together.trace.target_calls.tolist() == [2 * R.GRID - 2] * 3


def test_with_horizontal_predictions_alone_row_0_is_ars_behind_the_causal_mask() -> None:
    """The mask alone makes the first row another: there a query sees codes of rows below."""
    grid, model = 5, random_model(vocab=24, grid=5, seed=1, dtype=torch.float64)
    model = with_flash(model, start=1, extra=1, gate=0)
    target = model.targets["flash"]
    target.mix.fill_(100.0)  # g = 1
    loop, prompts = Flash(model, SAMPLED), ["x", "yy"]
    ar = images(Autoregressive(model, SAMPLED), prompts).codes
    usual = images(loop, prompts).codes
    positions = [n for group in target.schedule.groups[:-1] for n in group]
    slots = torch.tensor([*positions, *[NEVER] * grid])
    loop.tables = replace(loop.tables, turn=loop.tables.position, slots=slots)
    causal = images(loop, prompts).codes
    assert torch.equal(causal[:, :grid], ar[:, :grid])
    assert torch.equal(usual[:, :2], ar[:, :2]) and not torch.equal(usual[:, :grid], ar[:, :grid])


@needs_kernel
@pytest.mark.parametrize("start", [0, 1, 3])
def test_the_cpu_kernel_runs_every_stack_of_layers(start: int) -> None:
    model = with_flash(random_model(vocab=64, grid=5, width=32, layers=3), start=start, extra=2)
    wanted = images(Flash(model, SAMPLED), ["x", "yy"])
    loop = Flash(with_execution(model, "compile"), SAMPLED)
    assert len([run for run in loop.model.target.runs if run]) == 2 + (start == 1)
    assert torch.equal(wanted.codes, images(loop, ["x", "yy"]).codes)
    assert len(wanted.codes.unique()) > 5


def test_ar_keeps_its_own_target_beside_flashars(tmp_path: Path) -> None:
    (tmp_path / "ar").mkdir()
    ar = R.write_original(tmp_path / "ar" / "c2i.pt", R.original_llamagen(R.CLASSES))
    own, flash = released(tmp_path), str(tmp_path / "flash.pt")
    model = load(dtype="float32", checkpoint=str(ar), grid=R.GRID, flash=flash)
    alone = load(dtype="float32", checkpoint=str(ar), grid=R.GRID)
    one, other = (images(Autoregressive(each, SAMPLED), ["3"]).codes for each in (model, alone))
    assert torch.equal(one, other)
    assert torch.equal(*(images(Flash(each, SAMPLED), ["3"]).codes for each in (model, own)))
    assert model.weights_sha256["flash/flash.pt"] == own.weights_sha256["flash.pt"]
    with pytest.raises(DecoderError, match=r"has Diagonals.*decoder=flash"):
        Autoregressive(own, SAMPLED)


def test_what_does_not_say_how_it_was_made_or_is_of_another_model_is_refused(
    tmp_path: Path,
) -> None:
    tensors = R.original_flash("network")
    path = R.write_original(tmp_path / "flash.pt", tensors, medusa_attention_num=2)
    with pytest.raises(DecoderError, match=r"config.json with medusa_attention_num and vertical"):
        load(checkpoint=str(path), grid=R.GRID)
    R.write_original(path, tensors, **CONFIG)
    captions = R.write_hub(tmp_path / "captions")
    with pytest.raises(DecoderError, match="found another conditioning, prefix"):
        load(checkpoint=str(captions), flash=str(path))
    with pytest.raises(DecoderError, match=r"another model; set model\.flash"):
        load(checkpoint=str(captions), flash=str(captions))
    R.write_original(path, tensors, **(CONFIG | {"vertical_start_layer": 3}))
    with pytest.raises(DecoderError, match="begin at layer 3 of 2"):
        load(checkpoint=str(path), grid=R.GRID)
