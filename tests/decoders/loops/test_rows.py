"""Rows in parallel (ZipAR) and groups of codes: what they equal at their limits, what they see. The
gate enumerates ZipAR's law (`tests.exact.test_exact_verdicts`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.models.small import random_model
from metrics.traces import from_trace
from tests.decoders.compositions import SPECS, images, part, require_same, with_targets

GRID = 6
MODEL = with_targets(random_model(vocab=24, grid=GRID, seed=1))
PROMPTS = [f"p{i}" for i in range(5)]
SETTINGS = {"sampled": Sampling(cfg=2.0), "greedy": Sampling(temperature=0.0, cfg=2.0)}
ROWS = {
    "zipar": part("loops.zipar.ZipAR", window=2),
    **{name: part("loops.grouped.Grouped", target=name) for name in ("par", "saic", "coral")},
}


def decoder_of(loop: PartSpec, how: str = "sampled") -> Any:
    return build_decoder(MODEL, DecoderSpec("x", loop), SETTINGS[how])


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize(
    "loop",
    [
        part("loops.zipar.ZipAR", window=GRID),
        part("loops.grouped.Grouped"),
        part("loops.grouped.Grouped", target="plain"),
    ],
    ids=["zipar", "grouped", "grouped, plain"],
)
def test_one_row_or_groups_of_one_are_ar_code_by_code(loop: PartSpec, how: str) -> None:
    one, ar = (images(decoder_of(each, how), PROMPTS) for each in (loop, SPECS["ar"].loop))
    require_same(one, ar, "target_calls", "step")


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("name", ROWS)
def test_the_trace_adds_up(name: str, how: str) -> None:
    trace = images(decoder_of(ROWS[name], how), PROMPTS).trace
    for one in from_trace(trace):
        assert one.committed == GRID * GRID - 1 and one.mal > 1
    assert not trace.accepted.clamp_min(0).any()


def test_rows_take_the_forwards_that_the_paper_counts() -> None:
    counts = [
        (part("loops.zipar.ZipAR", window=w), GRID + (GRID - 1) * w - 1) for w in (1, 2, 3)
    ]  # of 36 codes the others draw 4 at once
    for loop, forwards in (*counts, (ROWS["par"], 3 + 8), (ROWS["saic"], 9), (ROWS["coral"], 9)):
        assert images(decoder_of(loop), PROMPTS).trace.target_calls.tolist() == [forwards] * 5


@pytest.mark.parametrize("name", ["zipar", "par", "coral"])
def test_slots_that_are_not_decoded_are_not_seen(name: str) -> None:
    """Released ZipAR sees them, as keys of zeros. What a slot held before changes nothing."""
    decoder = decoder_of(ROWS[name])
    begin, codes = decoder.begin, []
    for content in (0.0, 3.0):

        def filled(*args: Any, content: float = content) -> Any:
            run = begin(*args)
            run.cache.data[..., MODEL.target.prefix :, :] = content
            return run

        decoder.begin = filled
        codes.append(images(decoder, PROMPTS).codes)
    assert torch.equal(codes[0], codes[1])
