"""FlashAR: its greedy codes are those of the paper's equations, written plainly; the released
layout, a gate of every kind, and the limit at which it is AR."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling
from decoders.execution import with_execution
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.flash import Flash
from decoders.loops.grouped import NEVER
from decoders.models.llamagen import load
from decoders.models.loading.checkpoint import cast
from decoders.models.nets.flash import FlashConfig, FlashTransformer
from decoders.models.random_weights import random_model
from tests import checkpoints as K
from tests.decoders.compositions import images
from tests.decoders.execution.cpu.cases import needs_kernel
from tests.decoders.models.test_llamagen import norm, through_layer

GREEDY, SAMPLED = Sampling(temperature=0.0, cfg=2.0), Sampling(cfg=2.0)
GRID, LAYERS, VERTICAL, CLASSES = K.LITTLE.grid, K.LITTLE.layers, K.FLASH[0], 10
CONFIG = {"medusa_attention_num": VERTICAL, "vertical_start_layer": 1}


def released(folder: Path, gate: str = "network", start: int = 1) -> Any:
    """A model of FlashAR's released layout."""
    settings = CONFIG | {"vertical_start_layer": start}
    content = {"model": K.flash(gate), "steps": 3}
    path = K.write_original(folder / "flash.pt", content, **settings)
    return load(dtype="float32", checkpoint=str(path), grid=GRID)


# ---- the equations (METHODS4, 1), without a cache: a whole forward for every anti-diagonal -------


def reference(tensors: dict[str, Tensor], start: int, label: int, cfg: float) -> Tensor:
    """The greedy codes [L] of a class."""
    w = {k: v.double() for k, v in (tensors | K.hub_names(tensors, LAYERS + VERTICAL)).items()}
    codes: dict[int, int] = {}
    for diagonal in range(2 * GRID - 1):
        cond, uncond = (diagonal_logits(w, start, row, codes, diagonal) for row in (label, CLASSES))
        codes |= {n: int((uncond[n] + cfg * (cond[n] - uncond[n])).argmax()) for n in cond}
    return torch.tensor([codes[n] for n in range(GRID**2)])


def diagonal_logits(
    w: dict[str, Tensor], start: int, label: int, codes: dict[int, int], diagonal: int
) -> dict[int, Tensor]:
    """The mixed logits of every code of an anti-diagonal, behind those of all earlier ones."""
    positions = list(codes)
    table = w["cls_embedding.embedding_table.weight"]
    x = torch.cat([table[[label]], w["tok_embeddings.weight"][[codes[n] for n in positions]]])
    order = torch.tensor([-1, *(n // GRID + n % GRID for n in positions)])
    seen = order[:, None] >= order
    for layer in range(LAYERS + VERTICAL):
        if layer == start:
            branch = x
        if layer == LAYERS:
            horizontal, x = x, branch
        x = through_layer(x, w, f"model.layers.{layer}.", [-1, *positions], seen)
    h = (norm(horizontal) * w["norm.weight"]) @ w["output.weight"].T
    v = (norm(x) * w["medusa_norm.weight"]) @ w["medusa_output.weight"].T
    if diagonal == 0:
        return {0: mixed(w, h[-1], v[-1])}
    state, logits = {n: i for i, n in enumerate(positions, 1)}, {}
    for r in range(GRID):
        c = diagonal - r
        if 0 <= c < GRID:
            left, above = state.get(r * GRID + c - 1), state.get((r - 1) * GRID + c)
            if r == 0:
                logits[c] = h[left]
            elif c == 0:
                logits[r * GRID] = v[above]
            else:
                logits[r * GRID + c] = mixed(w, h[left], v[above])
    return logits


def mixed(w: dict[str, Tensor], h: Tensor, v: Tensor) -> Tensor:
    if "hv_gate_mlp.0.weight" in w:
        z = torch.cat([h, v]) - torch.cat([h, v]).mean()
        z = w["hv_gate_mlp.0.weight"] @ (z / z.square().mean().sqrt()).clip(-6, 6)
        share = w["hv_gate_mlp.2.weight"] @ (z * z.sigmoid()) + w["hv_gate_mlp.2.bias"]
    else:
        share = w.get("hv_mix_logit", torch.zeros(()))
    return share.sigmoid() * h + (1 - share.sigmoid()) * v


# ---- against them -------------------------------------------------------------------------------


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
    layer = LAYERS if start < 0 else start
    wanted = [reference(K.flash(gate), layer, label, 2.0) for label in (3, 9)]
    assert torch.equal(codes, torch.stack(wanted)) and len(codes.unique()) > 5
    assert not torch.equal(codes[0], codes[1])


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
    ar = K.write_original(tmp_path / "ar" / "c2i.pt", K.llamagen(classes=CLASSES))
    own, flash = released(tmp_path), str(tmp_path / "flash.pt")
    model = load(dtype="float32", checkpoint=str(ar), grid=GRID, flash=flash)
    alone = load(dtype="float32", checkpoint=str(ar), grid=GRID)
    one, other = (images(Autoregressive(each, SAMPLED), ["3"]).codes for each in (model, alone))
    assert torch.equal(one, other)
    assert torch.equal(*(images(Flash(each, SAMPLED), ["3"]).codes for each in (model, own)))
    assert model.weights_sha256["flash/flash.pt"] == own.weights_sha256["flash.pt"]


def test_what_does_not_say_how_it_was_made_or_is_of_another_model_is_refused(
    tmp_path: Path,
) -> None:
    tensors = K.flash("network")
    path = K.write_original(tmp_path / "flash.pt", tensors, medusa_attention_num=2)
    with pytest.raises(DecoderError, match=r"config.json with medusa_attention_num and vertical"):
        load(checkpoint=str(path), grid=GRID)
    K.write_original(path, tensors, **CONFIG)
    captions = K.write_llamagen(tmp_path / "captions")
    with pytest.raises(DecoderError, match="found another conditioning, prefix"):
        load(checkpoint=str(captions), flash=str(path))
    with pytest.raises(DecoderError, match=r"another model; set model\.flash"):
        load(checkpoint=str(captions), flash=str(captions))
    K.write_original(path, tensors, **(CONFIG | {"vertical_start_layer": 3}))
    with pytest.raises(DecoderError, match="begin at layer 3 of 2"):
        load(checkpoint=str(path), grid=GRID)
