"""Rows in parallel (ZipAR, PJD) and targets that predict groups of codes: what they equal at their
limits, what they see, and that decoding draws from the laws that training sees. Laws of rows are
enumerated in `tests.exact.test_exact_whole_law`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import CodeKind, DecoderError, Sampling
from decoders.cache import GrowingCache
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.distribution import guided, probabilities
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.flash import Flash
from decoders.loops.grouped import Grouped as Loop
from decoders.models.nets.grouped import Schedule
from decoders.models.random_weights import random_model
from decoders.noise import TARGET_SLOT, Noise, sample
from decoders.tiny.bundle import TARGETS
from metrics.traces import from_trace
from tests.decoders.compositions import (
    EXACT,
    LOOP,
    SPECS,
    images,
    part,
    require_adds_up,
    require_same,
    with_targets,
)

GRID = 6
MODEL = with_targets(random_model(vocab=24, grid=GRID, seed=1, dtype=torch.float64))
TEXT = MODEL.text.encode(["x", "y"])
NOISE = Noise.for_prompts(3, ["x", "y"], GRID * GRID)
SAMPLED = Sampling(cfg=2.0)
SETTINGS = {"sampled": SAMPLED, "greedy": replace(SAMPLED, temperature=0.0)}
GROUPS = [name for name in TARGETS if name != "plain"]


def changed(before: Tensor, after: Tensor) -> set[int]:
    """Where states [B, n, D] differ, of any image."""
    return set((before != after).any(-1).any(0).nonzero().flatten().tolist())


def behind(schedule: Schedule, group: int) -> set[int]:
    return {position for later in schedule.groups[group + 1 :] for position in later}


def test_a_schedule_has_every_place_once() -> None:
    found = {name: MODEL.targets[name].schedule for name in GROUPS}
    for schedule in found.values():
        positions = [position for group in schedule.groups for position in group]
        assert sorted(positions) == [*range(GRID * GRID)] and schedule.groups[0] == (0,)
    assert found["par"].groups[:5] == ((0,), (3,), (18,), (21,), (1, 4, 19, 22))
    assert found["saic"].groups[1] == (1, 2, 3, 4) and found["saic"].groups[-1] == (33, 34, 35)
    assert found["flash"].groups[2] == (2, 7, 12) and found["flash"].groups[-2] == (29, 34)
    assert found["par"].forwards[3] == [(36, 1), (37, 4), (38, 19), (21, 21)]


@pytest.mark.parametrize("name", GROUPS)
def test_a_code_changes_the_states_of_later_groups_alone(name: str) -> None:
    target, drop = MODEL.targets[name], torch.tensor([False, True])
    codes = torch.randint(24, (2, GRID * GRID))
    before = target(TEXT, codes, drop)
    for group, positions in enumerate(target.schedule.groups):
        other = codes.clone()
        other[:, list(positions)] += 1
        assert changed(before, target(TEXT, other % 24, drop)) == behind(target.schedule, group)


def test_a_draft_is_seen_by_its_own_group_alone_and_sees_codes_of_earlier_ones() -> None:
    target, drop = MODEL.targets["coral"], torch.tensor([False, True])

    def states(codes: Tensor, drafts: Tensor) -> Tensor:
        kept = GrowingCache()
        target(TEXT, codes, drop, kept)
        return target.drafted(TEXT, drafts, drop, kept)

    codes, drafts = torch.randint(24, (2, GRID * GRID)), torch.randint(24, (2, GRID * GRID - 1))
    before = states(codes, drafts)
    for group, positions in enumerate(target.schedule.groups[1:], 1):
        other, own = (
            codes.clone(),
            [position - 1 for position in positions],
        )  # drafts have no first code
        other[:, list(positions)] += 1
        later = {position - 1 for position in behind(target.schedule, group)}
        assert changed(before, states(other % 24, drafts)) == later
        other = drafts.clone()
        other[:, own] += 1
        assert changed(before, states(codes, other % 24)) == {*own}


def drawn(target: Any, states: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
    """The codes at positions [n] that a decoder draws from paired states [2 B, n, D], [B, n]."""
    logits = guided(target.logits(states), sampling.cfg)
    if sampling.greedy:
        return logits.argmax(-1)
    u = NOISE.at(positions.expand(len(logits), -1), TARGET_SLOT)[..., 0]
    return sample(probabilities(logits, sampling), u)


@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", GROUPS)
def test_codes_are_drawn_from_the_laws_that_training_sees(name: str, sampling: Sampling) -> None:
    text, drop = TEXT.paired(2)
    loop: Any = (Flash if name == "flash" else Loop)(MODEL, sampling, target=name)
    target, drafts = MODEL.targets[name], []
    verify_and_commit, kept = loop.verify_and_commit, GrowingCache()

    def watched(state: Any, positions: Tensor, logits: Tensor) -> Any:
        found = verify_and_commit(state, positions, logits)
        size = target.schedule.wide
        drafts.append(state.trace.codes[:, positions[-size:]])  # of the next group
        return found

    loop.verify_and_commit = watched
    codes = loop.generate(TEXT, NOISE).codes
    caches = [kept] if name == "coral" else []
    hidden = target(text, codes.repeat(2, 1), drop, *caches)
    positions = torch.arange(GRID * GRID)
    if name != "coral":
        assert torch.equal(drawn(target, hidden, positions, sampling), codes)
        return
    first, last = torch.cat(drafts, 1)[:, : GRID * GRID - 1], GRID * GRID - 3
    hidden = target.drafted(text, first.repeat(2, 1), drop, kept)
    again = drawn(target, target.refined(hidden), positions[1:], sampling)
    assert torch.equal(again[:, :-3], codes[:, 1:last])
    assert torch.equal(first[:, -3:], codes[:, last:])  # nothing reads the last group
    assert torch.equal(drawn(target, hidden[:, :-4], positions[5:], sampling), first[:, 4:])
    assert not torch.equal(first, codes[:, 1:])  # some codes were drawn again


def test_a_target_of_groups_is_for_loops_over_groups() -> None:
    with pytest.raises(DecoderError, match=r"predicts groups of codes.*decoder=par"):
        Autoregressive(replace(MODEL, target=MODEL.targets["saic"]), SAMPLED)
    with pytest.raises(DecoderError, match=r"has Diagonals.*decoder=flash"):
        Loop(MODEL, SAMPLED, target="flash")
    with pytest.raises(DecoderError, match=r"has Schedule.*decoder=par"):
        Flash(MODEL, SAMPLED, target="saic")
    with pytest.raises(DecoderError, match=r"'par', found no other targets; use model=tiny_targ"):
        Loop(random_model(), SAMPLED, target="par")


# ---- loops over rows and groups, against AR -----------------------------------------------------

PROMPTS = [f"p{i}" for i in range(5)]
WINDOWS = 1, 2, 3
ROWS = {
    **{f"zipar {w}": part("loops.zipar.ZipAR", window=w) for w in WINDOWS},
    "pjd": part("loops.pjd.Pjd", window=4, threshold=2),
    **{name: part("loops.grouped.Grouped", target=name) for name in ("par", "saic", "coral")},
    "flash": part("loops.flash.Flash"),
}


SJD = DecoderSpec("sjd", LOOP, acceptance=EXACT, proposer=part("propose.jacobi.Jacobi", window=5))


def decoder_of(loop: PartSpec, how: str = "sampled") -> Any:
    return build_decoder(MODEL, DecoderSpec("x", loop), SETTINGS[how])


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize(
    "loop",
    [
        part("loops.zipar.ZipAR", window=GRID),
        part("loops.grouped.Grouped"),
        part("loops.grouped.Grouped", target="plain"),
        part("loops.flash.Flash", target=""),
    ],
    ids=["zipar", "grouped", "grouped, plain", "flash"],
)
def test_one_row_or_groups_of_one_are_ar_code_by_code(loop: PartSpec, how: str) -> None:
    one, ar = (images(decoder_of(each, how), PROMPTS) for each in (loop, SPECS["ar"].loop))
    require_same(one, ar, "target_calls", "step")


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("threshold", [GRID, 99])
def test_pjd_of_one_row_is_sjd_code_by_code(threshold: int, how: str) -> None:
    one = decoder_of(part("loops.pjd.Pjd", window=5, threshold=threshold), how)
    sjd = build_decoder(MODEL, SJD, SETTINGS[how])
    fields = "target_calls", "step", "kind", "depth", "accepted", "tv_shift", "bound"
    require_same(images(one, PROMPTS), images(sjd, PROMPTS), *fields)


# Of 36 codes the others draw 4 at once, or an anti-diagonal.
FORWARDS = {"par": 3 + 8, "saic": 9, "coral": 9, "flash": 2 * GRID - 2}
FORWARDS |= {f"zipar {w}": GRID + (GRID - 1) * w - 1 for w in WINDOWS}


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("name", ROWS)
def test_rows_in_parallel_take_the_forwards_that_the_paper_counts(name: str, how: str) -> None:
    trace = images(decoder_of(ROWS[name], how), PROMPTS).trace
    require_adds_up(trace)
    forwards = trace.target_calls.tolist()
    assert forwards == [FORWARDS[name]] * 5 if name in FORWARDS else max(forwards) < GRID**2 - 1
    for one in from_trace(trace):
        assert one["mal"] * one["nfe"] == pytest.approx(GRID**2 - 1) and one["mal"] > 1
    assert bool((trace.kind == int(CodeKind.DRAFT)).any()) == (name == "pjd")


def test_what_pjd_records_of_lower_rows_is_bounded() -> None:
    trace = images(decoder_of(ROWS["pjd"]), PROMPTS).trace
    assert bool((trace.tv_shift <= trace.bound + 1e-6).all()) and float(trace.bound.max()) <= 0.25
    assert float(trace.tv_shift[:, GRID:].mean()) > 0 and not trace.bound[:, :GRID].any()
    assert trace.tree_depth == 0, "what rows accept in a step adds up, and is no depth"
    greedy = images(decoder_of(ROWS["pjd"], "greedy"), PROMPTS).trace
    assert not greedy.tv_shift.any() and not greedy.bound.any()


@pytest.mark.parametrize("name", ["zipar 2", "pjd", "par", "coral", "flash"])
def test_slots_that_are_not_decoded_are_not_seen(name: str) -> None:
    """Released ZipAR sees them, as keys of zeros. What a slot held before changes nothing."""
    decoder = decoder_of(ROWS[name])
    begin, codes = decoder.begin, []
    for content in (0.0, 3.0):

        def filled(*args: Any, content: float = content) -> Any:
            state = begin(*args)
            state.cache.data[..., MODEL.target.prefix :, :] = content
            return state

        decoder.begin = filled
        codes.append(images(decoder, PROMPTS).codes)
    assert torch.equal(codes[0], codes[1])
