"""What the contracts of `decoders.api` show to a part of one's own: a proposer the image so far, a
rule the depth and the position, and a drafter that its answer fits no tree. Whole methods as parts:
docs/adding.md (`tests.docs.test_adding`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, Draft, Sampling, Target, completed
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution import with_execution
from decoders.models.random_weights import random_model
from decoders.noise import DRAFT_SLOT, Noise, sample
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.corrected import Corrected
from decoders.verify.exact import Exact
from tests.decoders.compositions import LOOP, drafting, images
from tests.decoders.execution.cpu.cases import needs_kernel

HERE = "tests.decoders.test_contracts"
SAMPLING = Sampling(cfg=2.0)


def part(name: str, **options: Any) -> PartSpec:
    return PartSpec(f"{HERE}.{name}", options)


class Watching:
    """A proposer and its own session: chains of uniform drafts. Notes what it is shown without
    asking for laws."""

    reads_probs, branching, calls = False, 1, 0

    def __init__(self, model: Any, width: int = 3) -> None:
        self.model, self.nodes, self.depth = model, width, width
        self.met: list[tuple[torch.Tensor, ...]] = []

    def begin(self, prefill: Any) -> Any:
        return type(self)(self.model, self.nodes)

    def propose(self, output: Any, noise: Any, position: torch.Tensor) -> Draft:
        assert output.p is None and output.draft_codes is None and output.draft_q is None
        self.met.append((output.image.clone(), output.position.clone(), output.count.clone()))
        rows, size = len(position), self.model.target.vocab_size
        positions = position[:, None] + torch.arange(self.nodes)
        q = torch.full((rows, self.nodes, size), 1 / size)
        codes = sample(q, noise.at(positions, DRAFT_SLOT)[..., 0])  # [B, W]
        root = output.codes.gather(1, output.count[:, None] - 1)  # [B, 1]
        here = torch.arange(self.nodes + 1).expand(rows, -1)  # [B, W + 1]
        below = F.pad(here[:, 1:], (0, 1))[..., None]  # [B, W + 1, 1]
        every = torch.cat([root, codes], 1)
        return Draft(
            every, (here - 1).clamp_min(0), here, below, F.pad(q, (0, 0, 0, 1)), self.depth
        )


class Noting(Exact):
    """Notes the positions that it is told."""

    def __init__(self, model: Any) -> None:
        self.positions: list[torch.Tensor] = []

    def at(self, draft: Draft, position: torch.Tensor) -> Noting:
        self.positions.append(position.clone())
        return self


@pytest.mark.parametrize("how", ["eager", pytest.param("compile", marks=needs_kernel)])
def test_a_proposer_is_shown_the_image_so_far_and_a_rule_its_place(how):
    """Up to the root it is what is committed; a finished image is stepped on from its end."""
    model = with_execution(random_model(vocab=4, grid=3), how)
    size = model.target.length
    spec = DecoderSpec("x", LOOP, acceptance=part("Noting"), proposer=part("Watching"))
    loop: Any = build_decoder(model, spec, SAMPLING)
    sessions: list[Any] = []
    begins = loop.proposer.begin
    loop.proposer.begin = lambda prefill: sessions.append(begins(prefill)) or sessions[-1]
    names = [f"image {i}" for i in range(16)]
    generation = loop.generate(model.text.encode(names), Noise.for_prompts(1, names, size))
    met = max((s.met for s in sessions), key=len)
    assert len(met) == generation.trace.target_calls.max()
    positions = loop.verifier.rule.positions
    for (image, first, count), position in zip(met, positions, strict=True):
        ends = (first + count).clamp_max(size)
        assert torch.equal(position, ends)
        committed = torch.arange(size) < ends[:, None]
        assert torch.equal(image[:, :size][committed], generation.codes[committed])
    last_position, last_count = met[-1][1:]
    done = last_position + last_count >= size
    assert done.any() and not done.all()
    assert (last_position[generation.trace.target_calls < len(met) - 1] == size).all()


@pytest.mark.parametrize(
    "length, barred, grid", [(16, None, (4, 4)), (20, torch.ones(5, 3), (4, 5)), (5, None, (3, 2))]
)
def test_a_target_that_says_nothing_else_has_a_square_grid(length, barred, grid):
    bare = SimpleNamespace(length=length, barred=barred)
    assert completed(bare, Target).grid() == grid


# ---- a drafter or rule that answers with a wrong shape or dtype gets an error with its name ------

V = 24
MODEL = random_model(vocab=V, grid=4, seed=1)
TREES = {
    "chain": Chain(depth=2),
    "static": Static(choices=[[0], [1], [0, 0]]),
    "dynamic": Dynamic(depth=2, top_k=2, nodes=4),
}


@dataclass
class Answers:
    """A drafter and its session: what `advance`, `expand` and the root are, from B and w."""

    first: Any = lambda b: torch.zeros(b, V)
    next: Any = lambda b, w: torch.zeros(b, w, V)
    root: Any = lambda b: torch.zeros(b, dtype=torch.long)
    calls: int = 0
    root_code: Any = None

    def begin(self, *_: Any) -> Answers:
        return self

    def advance(self, hidden: Tensor, codes: Tensor, *_: Any) -> Any:
        self.root_code = self.root(len(codes))
        return self.first(len(codes))

    def expand(self, codes: Tensor, *_: Any) -> Any:
        return self.next(*codes.shape)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"first": lambda b: torch.zeros(b, V + 1)}, r"advance .* \[2, 24\] .* found \[2, 25\]"),
        ({"first": lambda b: torch.zeros(b, 1, V)}, r"\[B, V\] = \[2, 24\] .* found \[2, 1, 24\]"),
        ({"first": lambda b: torch.zeros(b, V).long()}, r"found \[2, 24\] torch\.int64"),
        ({"first": lambda b: [[0.0] * V] * b}, r"found builtins\.list"),
        ({"next": lambda b, w: torch.zeros(b, w, V - 1)}, r"expand .* \[B, w, V\] = .* 23\]"),
        ({"next": lambda b, w: torch.zeros(b, V)}, r"expand .* found \[2, 24\] torch\.float32"),
        ({"next": lambda b, w: None}, r"found builtins\.NoneType"),
        ({"root": lambda b: torch.zeros(b, 1)}, r"root_code must .* \[2\] int64, found \[2, 1\]"),
    ],
)
def test_an_answer_that_no_tree_can_read_is_refused(tree: str, wrong: Any, says: str) -> None:
    with pytest.raises(DecoderError, match=rf"the drafter \S+\.Answers: .*{says}"):
        images(drafting(MODEL, Answers(**wrong), TREES[tree]), ["a", "b"])


class Fewer(Corrected):
    """The mass of all codes but the last."""

    def mass(self, p: Tensor, q: Tensor | None) -> Tensor:
        return p[..., :-1]


class Judges(Exact):
    """The exact rule, with fields of what it finds replaced."""

    def __init__(self, **fields: Any) -> None:
        self.test = lambda *given: replace(Exact.test(self, *given), **fields)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Fewer(), r"Fewer\.mass .* \[\.\.\., V\] = \[2, 3, 24\] .* found \[2, 3, 23\]"),
        (Judges(accept=torch.ones(2)), r"Judges\.test .* accept .* = \[2, 3\] .* found \[2\] "),
        (Judges(bound=0.0), r"Judges\.test .* bound .* = \[2, 3\] .* found builtins\.float"),
        (Judges(residual=torch.ones(24)), r"residual \[\.\.\., V\] = \[2, 3, 24\] .* \[24\]"),
    ],
)
def test_a_judgement_that_no_verifier_can_read_is_refused(rule: Any, says: str) -> None:
    with pytest.raises(DecoderError, match=says):
        images(drafting(MODEL, Answers(), TREES["chain"], rule), ["a", "b"])
