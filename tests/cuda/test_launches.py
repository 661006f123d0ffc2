"""Launches of a step at LlamaGen-XL's size, LANTERN++ on its 57 nodes, batch 1 with guidance. No
GPU is needed: the tensors are fake. The bounds are on the kernels of the compiled pieces, which a
CUDA graph replays; the eager operators are compared with what they were."""

from __future__ import annotations

import pytest
import torch

from decoders.api import DecoderError, Sampling
from decoders.compose import DecoderSpec, PartSpec
from tests.cuda.pretend import Operators, Piece, fake, launches

pytest.importorskip("triton", reason="the kernels' own programs are Triton's")
SAMPLING = Sampling(cfg=7.5, top_k=1000)
AR = DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive"))


def lantern_pp(residual: str = "paper") -> DecoderSpec:
    return DecoderSpec(
        "lantern_pp",
        PartSpec("decoders.loops.speculative.Speculative"),
        PartSpec("decoders.propose.drafters.eagle.Eagle"),
        PartSpec("decoders.propose.trees.static.Static", {"choices": "naive_extend_57"}),
        PartSpec("decoders.verify.lantern_pp.LanternPP", {"residual": residual}),
    )


def by_phase(pieces: list[Piece]) -> dict[str, Piece]:
    return {piece.phase: piece for piece in pieces}


def test_views_and_allocations_launch_nothing() -> None:
    with fake():
        x = torch.empty(4, 6, device="cuda")
        with Operators() as operators:
            y = x.view(6, 4).transpose(0, 1)[1:].reshape(-1)  # a copy: it is not dense
            y.add_(1)
            x.topk(2)
    assert operators.found == {"clone": 1, "add_": 1, "topk": 2}


def test_eager_operators_of_a_step() -> None:
    ar = by_phase(launches(AR, SAMPLING))["forward"]
    assert ar.layers == 36 and ar.layer <= 11
    assert ar.rest <= 30  # 63 before sampling was one program
    found = by_phase(launches(lantern_pp(), SAMPLING))
    assert found["draft"].total <= 230  # 662
    assert found["forward"].layer <= 11 and found["forward"].rest <= 20
    assert found["draft"].layer == found["accept"].layer == 0


def test_kernels_of_an_ar_step() -> None:
    ar = by_phase(launches(AR, SAMPLING, compiled=True))["forward"]
    assert ar.layer <= 8 and ar.rest <= 10


def test_kernels_of_a_speculative_step() -> None:
    found = by_phase(launches(lantern_pp(), SAMPLING, compiled=True))
    assert found["draft"].total <= 80
    assert found["forward"].layer <= 8 and found["forward"].rest <= 10
    assert found["accept"].total <= 30


def test_kernels_of_a_greedy_step() -> None:
    greedy = Sampling(temperature=0, cfg=7.5)
    assert by_phase(launches(lantern_pp(), greedy))["accept"].total <= 138
    assert by_phase(launches(lantern_pp(), greedy, compiled=True))["accept"].total <= 15


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(DecoderError, match="unknown preset 'xl'; known: llamagen_xl_256"):
        launches(AR, SAMPLING, "xl")
