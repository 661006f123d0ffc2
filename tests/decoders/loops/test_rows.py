"""Rows in parallel (ZipAR, PJD), blocks in rounds (SSD), chains side by side (PathSpec) and groups
of codes: what they equal at their limits, what they see, and their laws by enumeration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.judge.gate.branching import Outcome, Scripted, explore
from bench.judge.gate.whole_law import table_model, whole_law
from decoders.api import CodeKind, Law, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.executed import execution
from decoders.models.small import random_model
from decoders.noise import DRAFT_SLOT, Noise, sample
from decoders.propose.pathspec import Chains, Paths, PathSpec
from metrics.traces import from_trace
from tests.decoders.compositions import EXACT, LOOP, with_targets
from tests.decoders.execution.test_backends import Replayed

GRID = 6
MODEL = with_targets(random_model(vocab=24, grid=GRID, seed=1))
PROMPTS = [f"p{i}" for i in range(5)]
SETTINGS = {"sampled": Sampling(cfg=2.0), "greedy": Sampling(temperature=0.0, cfg=2.0)}


def loop(name: str, **options: Any) -> DecoderSpec:
    return DecoderSpec("x", PartSpec(f"decoders.loops.{name}", options))


def chains(longest: bool = False, **options: Any) -> DecoderSpec:
    verifier = PartSpec("decoders.propose.pathspec.Paths", {"longest": longest})
    proposer = PartSpec("decoders.propose.pathspec.PathSpec", options)
    return DecoderSpec("x", LOOP, acceptance=verifier, proposer=proposer)


AR = loop("autoregressive.Autoregressive")
SJD = DecoderSpec(
    "sjd", LOOP, acceptance=EXACT,
    proposer=PartSpec("decoders.propose.jacobi.Jacobi", {"window": 5}),
)  # fmt: skip
ROWS = {
    "zipar": loop("zipar.ZipAR", window=2),
    "zipar, above": loop("zipar.ZipAR", window=2, first="above"),
    "zipar, adaptive": loop("zipar.ZipAR", window=2, adaptive=True),
    "pjd": loop("pjd.Pjd", window=5, threshold=2),
    "ssd": loop("ssd.Ssd", rows=2, rounds=2),
    "pathspec": chains(chains=3, depth=4),
    "pathspec, longest": chains(True, chains=3, depth=4),
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
    ("spec", "limit"),
    [
        (loop("zipar.ZipAR", window=GRID), AR),
        (loop("zipar.ZipAR", window=99, adaptive=True, first="above"), AR),
        (loop("pjd.Pjd", window=5, threshold=GRID), SJD),
        (chains(chains=1, depth=4), SJD),
        (loop("grouped.Grouped"), AR),
        (loop("grouped.Grouped", target="plain"), AR),
    ],
    ids=["zipar", "zipar adaptive", "pjd", "pathspec", "grouped", "grouped, plain"],
)
def test_one_row_or_one_chain_is_the_plain_decoder_code_by_code(
    spec: DecoderSpec, limit: DecoderSpec, how: str
) -> None:
    found, wanted = made(spec, how), made(limit, how)
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.trace.target_calls, wanted.trace.target_calls)
    assert torch.equal(found.trace.step, wanted.trace.step)


@pytest.mark.parametrize("name", ["ssd", "pathspec"])
def test_greedy_ones_that_are_exact_give_the_tokens_of_greedy_ar(name: str) -> None:
    spec = loop("ssd.Ssd", rounds=0, rows=2) if name == "ssd" else ROWS[name]
    assert torch.equal(made(spec, "greedy").codes, made(AR, "greedy").codes)


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("name", ROWS)
def test_the_trace_adds_up(name: str, how: str) -> None:
    whole = made(ROWS[name], how)
    for one in from_trace(whole.trace):  # a step commits its drafts, and at least a code
        assert int(one.committed.sum()) == GRID * GRID - 1 and one.mal > 1
    drafted = whole.trace.kind == int(CodeKind.DRAFT)
    assert torch.equal(drafted.sum(1), whole.trace.accepted.clamp_min(0).sum(1))


@pytest.mark.parametrize("name", ROWS)
def test_a_recorded_step_is_the_eager_one(name: str) -> None:
    found = []
    for how in (execution("eager"), Replayed()):
        model = replace(MODEL, execution=how)
        for prompt in ("a", "b"):
            found.append(made(ROWS[name], prompts=[prompt], model=model).codes.clone())
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


def test_rows_take_the_forwards_that_the_paper_counts() -> None:
    for window in (1, 2, 3):
        trace = made(loop("zipar.ZipAR", window=window)).trace
        assert trace.target_calls.tolist() == [GRID + (GRID - 1) * window - 1] * 5
    rounds = made(loop("ssd.Ssd", rows=1, rounds=2)).trace.target_calls
    assert rounds.tolist() == [GRID + (GRID - 1) * 3 - 1] * 5
    for name, forwards in (("par", 3 + 8), ("saic", 9), ("coral", 9)):  # of 36 codes, 4 at once
        assert made(ROWS[name]).trace.target_calls.tolist() == [forwards] * 5


@pytest.mark.parametrize("name", ["zipar", "zipar, adaptive", "pjd", "ssd", "par", "coral"])
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


LAWS: dict[str, Any] = {  # codes, places, TV on this table
    "zipar": (loop("zipar.ZipAR", window=1), 2, 4, 0.1380),
    "zipar, one row": (loop("zipar.ZipAR", window=2), 2, 4, 0.0),
    "zipar, adaptive": (loop("zipar.ZipAR", window=1, adaptive=True), 2, 4, 0.0),  # 2 columns
    "pjd": (loop("pjd.Pjd", window=3, threshold=1), 2, 4, 0.1083),
    "pjd, one row": (loop("pjd.Pjd", window=3, threshold=2), 2, 4, 0.0),
    "groups of one": (loop("grouped.Grouped"), 2, 4, 0.0),
    "ssd, 1 round": (loop("ssd.Ssd", rows=2, rounds=1), 2, 6, 0.0658),
    "ssd, 2 rounds": (loop("ssd.Ssd", rows=2, rounds=2), 2, 6, 0.0082),
    "ssd, all rounds": (loop("ssd.Ssd", rows=2, rounds=0), 2, 6, 0.0),
    "ssd, of 3 codes": (loop("ssd.Ssd", rows=2, rounds=0), 3, 4, 0.0),
    "pathspec": (chains(chains=2, depth=2), 3, 3, 0.0),
    "pathspec, 4 places": (chains(chains=2, depth=2), 2, 4, 0.0),
    "pathspec, 3 chains": (chains(chains=3, depth=1), 3, 3, 0.0),
    "pathspec, longest": (chains(True, chains=2, depth=2), 3, 3, 0.088),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_law_of_whole_images(name: str) -> None:
    spec, codes, places, tv = LAWS[name]
    model, plain = table_model(codes, places, 7), Sampling()
    found = whole_law(build_decoder(model, spec, plain), model, plain)
    assert found.rest < 0.005
    if tv:
        assert found.tv == pytest.approx(tv, rel=0.02)
    else:
        assert found.rest == 0 and found.tv < 1e-12


def law_of_a_code(p: Tensor, q: Tensor, count: int, longest: bool) -> Tensor:
    """The law of the code behind a root, over drafts of `count` chains of one level from q, [V]."""
    vocab = len(p)

    def run(noise: Scripted) -> Outcome:
        batch = len(noise.uniform)
        place = torch.ones(batch, dtype=torch.long)
        own = q.expand(batch, count, -1)
        x = sample(own, noise.at(place, DRAFT_SLOT, count))  # [B, K]
        root = torch.zeros(batch, 1, dtype=torch.long)
        level = torch.cat([root, root + torch.ones(count, dtype=torch.long)], 1)
        blank = level[..., None] * 0
        draft = Chains(
            torch.cat([root, x], 1), level * 0, level, blank, None, levels=1, laws=own[:, :, None]
        )
        laws = p.expand(batch, count + 1, -1)
        found = Paths(longest=longest).decide(Law(laws, laws, False), draft, noise, place, None)
        code = torch.where(
            found.count > 0,
            x.gather(1, (found.nodes[:, -1:] - 1).clamp_min(0))[:, 0],
            found.last_code,
        )
        return Outcome(code[:, None], place)

    found = explore(run, 3, 100_000)
    assert found.rest == 0
    return torch.zeros(vocab, dtype=p.dtype).index_add_(0, found.value[:, 0], found.weight)


@pytest.mark.parametrize("count", [2, 3])
def test_the_longest_of_several_chains_is_away_by_the_closed_form(count: int) -> None:
    """A min(p, q) / b + (1 - A) norm((p - q)+), A = 1 - (1 - b)^K: the paper calls it lossless."""
    random = torch.Generator().manual_seed(71)
    p, q = torch.randn(2, 5, generator=random, dtype=torch.float64).softmax(-1)
    both = torch.minimum(p, q)
    b = both.sum()
    hit = 1 - (1 - b) ** count
    wanted = hit * both / b + (1 - hit) * (p - both) / (1 - b)
    found = law_of_a_code(p, q, count, longest=True)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    away = 0.5 * float((found - p).abs().sum())
    assert away == pytest.approx({2: 0.131, 3: 0.165}[count], abs=5e-4)
    assert away <= float((1 - b) - (1 - b) ** count)
    exact = law_of_a_code(p, q, count, longest=False)
    torch.testing.assert_close(exact, p, atol=1e-12, rtol=0)


def test_what_does_not_fit_is_refused() -> None:
    for spec, words in (
        (replace(loop("zipar.ZipAR"), acceptance=EXACT), "set all to none"),
        (replace(loop("ssd.Ssd"), acceptance=EXACT), "set all to none"),
        (loop("zipar.ZipAR", first="left"), "first must be one of newest, above"),
    ):
        with pytest.raises(ValueError, match=words):
            build_decoder(MODEL, spec, Sampling())
    wrong = DecoderSpec("x", LOOP, acceptance=chains().acceptance, proposer=SJD.proposer)
    with pytest.raises(ValueError, match="use proposer=pathspec"):
        made(wrong)
    assert str(PathSpec(MODEL)) == "pathspec(chains=2, depth=12)"
