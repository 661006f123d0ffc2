"""The five checks that the contracts of `decoders.api` are right: methods of other papers as parts
of a few lines, built by `build_decoder` from their dotted paths, on small random models. (4), ZipAR
as a loop, is in docs/plug_ins.md (`tests.docs.test_plug_ins`)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bench.judge.gate.reference import image_law
from bench.judge.gate.small import fresh_noise, same_prompt
from bench.judge.gate.statistics import prefix_pvalues
from decoders.api import (
    CodeKind,
    Draft,
    Generation,
    ImageModel,
    Sampling,
    Settled,
    Target,
    Test,
    completed,
)
from decoders.capability import Capability, knows
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.distribution import normalised
from decoders.executed import executed, execution
from decoders.execution.cpu.library import missing
from decoders.models.small import random_model
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, TARGET_SLOT, Noise, sample
from decoders.verify.exact import Exact
from tests.decoders.execution.test_backends import Replayed

HERE = "tests.decoders.test_contracts"
LOOP = PartSpec("decoders.loops.speculative.Speculative")
EAGLE = PartSpec("decoders.propose.drafters.eagle.Eagle", {"checkpoint": "eagle"})
CHAIN = PartSpec("decoders.propose.trees.chain.Chain", {"depth": 3})
EXACT = PartSpec("decoders.verify.exact.Exact")
SAMPLING = Sampling(cfg=2.0)
IMAGES = 2048  # of four codes; of longer ones FEW
FEW = 192
NATIVE = pytest.param("cpu", marks=pytest.mark.skipif(missing() is not None, reason="no kernel"))


def chain(root: torch.Tensor, codes: torch.Tensor, q: torch.Tensor) -> Draft:
    """A chain under root [B]: codes [B, W] drawn from q [B, W, V]."""
    here = torch.arange(codes.shape[1] + 1).expand(len(codes), -1)  # [B, W + 1]
    below = F.pad(here[:, 1:], (0, 1))[..., None]  # [B, W + 1, 1]
    every = torch.cat([root[:, None], codes], 1)
    return Draft(every, (here - 1).clamp_min(0), here, below, F.pad(q, (0, 0, 0, 1)))


class Window:
    """What the two proposers below share: a chain whose codes are drawn place by place from laws
    [B, W, V]. It is its own session."""

    reads_laws, branching, calls = False, 1, 0

    def __init__(self, model: Any, width: int = 3) -> None:
        self.model, self.nodes, self.depth = model, width, width

    def begin(self, start: Any) -> Any:
        return type(self)(self.model, self.nodes)

    def propose(self, seen: Any, noise: Any, place: torch.Tensor) -> Draft:
        q = self.laws(seen)
        places = place[:, None] + torch.arange(self.nodes)
        root = seen.codes.gather(1, seen.count[:, None] - 1)[:, 0]
        return chain(root, sample(q, noise.at(places, DRAFT_SLOT)[..., 0]), q)


class Jacobi(Window):
    """(1) Speculative Jacobi decoding: every code of the window is redrawn from the law that the
    target gave at its place in the last step; where there was none, from the uniform one."""

    reads_laws = True

    def laws(self, seen: Any) -> torch.Tensor:
        old = F.pad(seen.p, (0, 0, 0, self.nodes))  # [B, N + 1 + W, V], old[:, k]: k places on
        index = seen.count[:, None] + torch.arange(self.nodes)  # [B, W]
        q = old.gather(1, index[..., None].expand(-1, -1, old.shape[-1]))
        return torch.where(q.sum(-1, keepdim=True) > 0, q, 1 / q.shape[-1])


class Block(Window):
    """(5) A drafter that fills a block at once: a head per place on the target's last state."""

    def laws(self, seen: Any) -> torch.Tensor:
        self.calls += 1
        random = torch.Generator().manual_seed(1)
        target = self.model.target
        heads = torch.randn(self.nodes, target.width, target.vocab_size, generator=random)
        last = (seen.count - 1)[:, None, None].expand(-1, -1, target.width)
        state = seen.hidden[: len(seen.count)].gather(1, last)[:, 0].float()  # [B, D]
        return torch.einsum("bd,wdv->bwv", state, heads / target.width**0.5).softmax(-1)


class BlockVerification:
    """(2) Block verification (2403.10444) of a chain."""

    looks_ahead = True

    def __init__(self, model: Any) -> None:
        del model

    def begin(self, start: Any) -> None:
        """Nothing is kept."""

    def decide(self, law: Any, draft: Draft, noise: Any, place: torch.Tensor, state: Any) -> Any:
        p, q, size = law.p, draft.q, draft.levels
        shares = [torch.ones_like(place, dtype=torch.float32)]  # s_i
        for i in range(size):
            x = draft.codes[:, i + 1, None]
            ratio = p[:, i].gather(1, x) / q[:, i].gather(1, x).clamp_min(1e-30)
            shares.append((shares[-1] * ratio[:, 0]).clamp_max(1))
        s = torch.stack(shares, 1)  # [B, g + 1]
        left = (s[..., None] * p - q).clamp_min(0)  # [B, g + 1, V]
        left[:, size] = p[:, size]
        mass = left.sum(-1)
        h = torch.where(mass + 1 - s > 0, mass / (mass + 1 - s).clamp_min(1e-30), 1.0)
        h[:, size] = s[:, size]
        u = noise.at(place[:, None] + torch.arange(size), ACCEPT_SLOT)[..., 0]  # [B, g]
        level = torch.arange(1, size + 1)
        count = torch.where(u < h[:, 1:], level, 0).amax(1)  # [B], the largest accepted
        after = normalised(left, p).gather(1, count[:, None, None].expand(-1, 1, p.shape[-1]))
        last = sample(after[:, 0], noise.at(place + count, TARGET_SLOT)[:, 0])
        nodes = torch.minimum(torch.arange(size + 1), count[:, None])
        none = torch.zeros_like(s)
        return Settled(nodes, count, last, count == size, none, none, none[:, 1:].bool())


class RowWise(Exact):
    """(3) Exact, but it takes any draft of depth 1 in the upper rows of the image."""

    def __init__(self, model: Any, rows: int = 0) -> None:
        self.upto, self.free = rows * model.target.grid()[1], None

    def at(self, draft: Draft, place: torch.Tensor) -> RowWise:
        made = object.__new__(type(self))
        made.free = (draft.depth == 0) & (place[:, None] + draft.depth < self.upto)  # [B, N + 1]
        return made

    def test(self, p: Any, q: Any, x: Any) -> Test:
        made = super().test(p, q, x)
        accept = torch.where(self.free, 1.0, made.accept)
        moved = torch.where(self.free, 1 - p.gather(-1, x[..., None])[..., 0], 0.0)
        return Test(accept, made.strict, made.residual, moved, self.free.float())


def part(name: str, **options: Any) -> PartSpec:
    return PartSpec(f"{HERE}.{name}", options)


JACOBI = DecoderSpec("jacobi", LOOP, acceptance=EXACT, proposer=part("Jacobi", width=3))
BLOCK = DecoderSpec("block", LOOP, acceptance=EXACT, proposer=part("Block", width=3))
VERIFIED = DecoderSpec("verified", LOOP, EAGLE, CHAIN, part("BlockVerification"))


def images(model: ImageModel, spec: DecoderSpec, seed: int = 5) -> Generation:
    """Many images of one prompt."""
    count = IMAGES if model.target.length == 4 else FEW
    rows = same_prompt(model.text.encode(["x"]), count)
    noise = fresh_noise(count, model.target.length, torch.Generator().manual_seed(seed))
    return build_decoder(model, spec, SAMPLING).generate(rows, noise)


def follows_the_law(model: ImageModel, codes: torch.Tensor) -> float:
    """The least p-value of the images against the enumerated law of AR, times the tests."""
    found = prefix_pvalues(image_law(model, model.text.encode(["x"]), SAMPLING), codes)
    return min(found) * len(found)


@pytest.mark.parametrize("how", ["eager", NATIVE])
@pytest.mark.parametrize("spec", [JACOBI, BLOCK, VERIFIED], ids=lambda spec: spec.name)
def test_images_follow_the_law_of_ar(spec, how):
    model = executed(random_model(vocab=4, grid=2, seed=12), how)
    made = images(model, spec)
    assert follows_the_law(model, made.codes) > 1e-4
    assert int(made.trace.accepted.max()) == 3
    assert float(made.trace.target_calls.float().mean()) < model.target.length - 1
    shuffled = made.codes[:, [1, 0, 2, 3]]
    assert follows_the_law(model, shuffled) < 1e-6  # the test would see it


def test_jacobi_reads_what_the_last_step_showed_and_asks_no_drafter():
    """Uniform drafts would be accepted less often than those of the target's own laws."""
    model = random_model(vocab=24, grid=5, seed=1)
    target: Any = model.target
    with torch.no_grad():
        target.output.weight.mul_(4)  # laws that are far from uniform
    made = images(model, JACOBI)
    blind = images(model, DecoderSpec("b", LOOP, acceptance=EXACT, proposer=part("Blind")))
    steps = [float(x.trace.target_calls.float().mean()) for x in (made, blind)]
    assert steps[0] < 0.9 * steps[1]
    assert not made.trace.drafter_calls.any()


BLOCKED = replace(BLOCK, acceptance=VERIFIED.acceptance)


@pytest.mark.parametrize("spec", [JACOBI, BLOCKED, VERIFIED], ids=lambda spec: spec.name)
def test_a_recorded_step_shows_a_part_what_an_eager_one_does(spec):
    """A graph's replay reads and writes the tensors that it was recorded on; so do rounds."""
    made = []
    for how in (execution("eager"), Replayed()):
        model = replace(random_model(vocab=16, grid=4), execution=how)
        decoder = build_decoder(model, spec, SAMPLING)
        for prompt in ("a", "b"):
            noise = Noise.for_prompts(3, [prompt], model.target.length)
            made.append(decoder.generate(model.text.encode([prompt]), noise).codes.clone())
    assert torch.equal(made[0], made[2]) and torch.equal(made[1], made[3])


class Likeliest(Jacobi):
    """Deterministic drafts: the likeliest code of every law."""

    def propose(self, seen: Any, noise: Any, place: torch.Tensor) -> Draft:
        self.met = [*getattr(self, "met", []), seen.draft.q]
        made = super().propose(seen, noise, place)
        codes = torch.cat([made.codes[:, :1], made.q[:, :-1].argmax(-1)], 1)
        return replace(made, codes=codes, q=None)


@pytest.mark.parametrize("kind", ["eager", "recorded"])
def test_a_proposer_with_deterministic_drafts_is_shown_no_law_of_them(kind):
    how = execution("eager") if kind == "eager" else Replayed()
    model = replace(random_model(vocab=4, grid=2, seed=12), execution=how)
    spec = DecoderSpec("x", LOOP, acceptance=EXACT, proposer=part("Likeliest", width=3))
    loop: Any = build_decoder(model, spec, SAMPLING)
    sessions: list[Any] = []
    begins = loop.proposer.begin
    loop.proposer.begin = lambda start: sessions.append(begins(start)) or sessions[-1]
    loop.generate(model.text.encode(["x"]), Noise.for_prompts(1, ["x"], 4))
    met = next(s.met for s in sessions if len(s.met) > 1)
    assert all(q is None for q in met)


class Watching(Window):
    """Uniform drafts; notes what it is shown without asking for laws."""

    def laws(self, seen: Any) -> torch.Tensor:
        assert seen.p is None and seen.draft is None
        now = (seen.image.clone(), seen.start.clone(), seen.count.clone())
        self.met = [*getattr(self, "met", []), now]
        size = self.model.target.vocab_size
        return torch.full((len(seen.count), self.nodes, size), 1 / size)


@pytest.mark.parametrize("how", ["eager", NATIVE])
def test_every_proposer_is_shown_the_image_so_far(how):
    """Up to the root it is what is committed; a finished image is stepped on from its end."""
    model = executed(random_model(vocab=4, grid=3), how)
    size = model.target.length
    spec = DecoderSpec("x", LOOP, acceptance=EXACT, proposer=part("Watching", width=3))
    loop: Any = build_decoder(model, spec, SAMPLING)
    sessions: list[Any] = []
    begins = loop.proposer.begin
    loop.proposer.begin = lambda start: sessions.append(begins(start)) or sessions[-1]
    names = [f"image {i}" for i in range(16)]
    made = loop.generate(model.text.encode(names), Noise.for_prompts(1, names, size))
    met = max((s.met for s in sessions), key=len)
    assert len(met) == made.trace.target_calls.max()
    for image, start, count in met:
        ends = (start + count).clamp_max(size)
        known = torch.arange(size) < ends[:, None]
        assert torch.equal(image[:, :size][known], made.codes[known])
    last_start, last_count = met[-1][1:]
    done = last_start + last_count >= size
    assert done.any() and not done.all()
    assert (last_start[made.trace.target_calls < len(met) - 1] == size).all()


@pytest.mark.parametrize(
    "length, barred, grid", [(16, None, (4, 4)), (20, torch.ones(5, 3), (4, 5)), (5, None, (3, 2))]
)
def test_a_target_that_says_nothing_else_has_a_square_grid(length, barred, grid):
    bare = SimpleNamespace(length=length, barred=barred)
    assert completed(bare, Target).grid() == grid


class Blind(Jacobi):
    """Never sees a law."""

    def laws(self, seen: Any) -> torch.Tensor:
        return torch.full_like(seen.p[:, : self.nodes], 1 / seen.p.shape[-1])


@pytest.mark.parametrize("how", ["eager", NATIVE])
def test_a_rule_may_read_the_depth_and_the_place(how):
    model = executed(random_model(vocab=12, grid=5, seed=1), how)
    spec = DecoderSpec("rows", LOOP, EAGLE, CHAIN, part("RowWise", rows=2))
    trace = images(model, spec).trace
    relaxed = trace.kind == CodeKind.RELAXED
    assert relaxed[:, 1:10].any() and not relaxed[:, 10:].any()
    assert (trace.depth[relaxed] == 1).all()
    assert (trace.bound[:, 10:] == 0).all() and (trace.bound[relaxed] == 1).all()


class Placed(Exact):
    """Adds what it knows of the place, and overrides nothing else."""

    def at(self, draft: Draft, place: torch.Tensor) -> Exact:
        return Exact()


def test_a_rule_that_reads_the_place_is_not_taken_for_the_one_it_comes_from():
    assert knows(Exact(), Capability.EXACT) and not knows(Placed(), Capability.EXACT)
