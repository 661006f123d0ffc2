"""Rows in parallel (ZipAR) and groups of codes: what they equal at their limits, what they see. The
gate enumerates ZipAR's law (`tests.exact.test_exact_verdicts`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.models.small import random_model
from decoders.noise import Noise
from metrics.traces import from_trace
from tests.decoders.compositions import EXACT, with_targets

GRID = 6
MODEL = with_targets(random_model(vocab=24, grid=GRID, seed=1))
PROMPTS = [f"p{i}" for i in range(5)]
SETTINGS = {"sampled": Sampling(cfg=2.0), "greedy": Sampling(temperature=0.0, cfg=2.0)}


def loop(name: str, **options: Any) -> DecoderSpec:
    return DecoderSpec("x", PartSpec(f"decoders.loops.{name}", options))


AR = loop("autoregressive.Autoregressive")
ROWS = {
    "zipar": loop("zipar.ZipAR", window=2),
    **{name: loop("grouped.Grouped", target=name) for name in ("par", "saic", "coral")},
}


def made(
    spec: DecoderSpec, how: str = "sampled", prompts: list[str] = PROMPTS, model: Any = MODEL
) -> Any:
    noise = Noise.for_prompts(3, prompts, GRID * GRID)
    text = MODEL.text.encode(["x"] * len(prompts))
    return build_decoder(model, spec, SETTINGS[how]).generate(text, noise)


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize(
    "spec",
    [
        loop("zipar.ZipAR", window=GRID),
        loop("grouped.Grouped"),
        loop("grouped.Grouped", target="plain"),
    ],
    ids=["zipar", "grouped", "grouped, plain"],
)
def test_one_row_or_groups_of_one_are_ar_code_by_code(spec: DecoderSpec, how: str) -> None:
    found, wanted = made(spec, how), made(AR, how)
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.trace.target_calls, wanted.trace.target_calls)
    assert torch.equal(found.trace.step, wanted.trace.step)


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("name", ROWS)
def test_the_trace_adds_up(name: str, how: str) -> None:
    whole = made(ROWS[name], how)
    for one in from_trace(whole.trace):
        assert int(one.committed.sum()) == GRID * GRID - 1 and one.mal > 1
    assert not whole.trace.accepted.clamp_min(0).any()


def test_rows_take_the_forwards_that_the_paper_counts() -> None:
    for window in (1, 2, 3):
        trace = made(loop("zipar.ZipAR", window=window)).trace
        assert trace.target_calls.tolist() == [GRID + (GRID - 1) * window - 1] * 5
    for name, forwards in (("par", 3 + 8), ("saic", 9), ("coral", 9)):  # of 36 codes, 4 at once
        assert made(ROWS[name]).trace.target_calls.tolist() == [forwards] * 5


@pytest.mark.parametrize("name", ["zipar", "par", "coral"])
def test_slots_that_are_not_decoded_are_not_seen(name: str) -> None:
    """Released ZipAR sees them, as keys of zeros. What a slot held before changes nothing."""
    decoder: Any = build_decoder(MODEL, ROWS[name], SETTINGS["sampled"])
    begin, codes = decoder.begin, []
    for noise in (0.0, 3.0):

        def begun(*args: Any, scale: float = noise) -> Any:
            run = begin(*args)
            run.cache.data[..., MODEL.target.prefix :, :] = scale
            return run

        decoder.begin = begun
        text = MODEL.text.encode(["x"] * 5)
        codes.append(decoder.generate(text, Noise.for_prompts(3, PROMPTS, GRID * GRID)).codes)
    assert torch.equal(codes[0], codes[1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="set all to none"):
        build_decoder(MODEL, replace(loop("zipar.ZipAR"), acceptance=EXACT), Sampling())
