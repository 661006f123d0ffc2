"""What the contracts of `decoders.api` show to a part of one's own: a proposer the image so far, a
rule the depth and the place. Whole methods as parts: docs/adding.md (`tests.docs.test_adding`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from decoders.api import Draft, Sampling, Target, completed
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution import with_execution
from decoders.models.small import random_model
from decoders.noise import DRAFT_SLOT, Noise, sample
from decoders.verify.exact import Exact
from tests.decoders.compositions import LOOP
from tests.decoders.execution.cpu.cases import needs_kernel

HERE = "tests.decoders.test_contracts"
SAMPLING = Sampling(cfg=2.0)


def part(name: str, **options: Any) -> PartSpec:
    return PartSpec(f"{HERE}.{name}", options)


class Watching:
    """A proposer and its own session: chains of uniform drafts. Notes what it is shown without
    asking for laws."""

    reads_laws, branching, calls = False, 1, 0

    def __init__(self, model: Any, width: int = 3) -> None:
        self.model, self.nodes, self.depth = model, width, width
        self.met: list[tuple[torch.Tensor, ...]] = []

    def begin(self, start: Any) -> Any:
        return type(self)(self.model, self.nodes)

    def propose(self, output: Any, noise: Any, place: torch.Tensor) -> Draft:
        assert output.p is None and output.draft is None
        self.met.append((output.image.clone(), output.start.clone(), output.count.clone()))
        rows, size = len(place), self.model.target.vocab_size
        places = place[:, None] + torch.arange(self.nodes)
        q = torch.full((rows, self.nodes, size), 1 / size)
        codes = sample(q, noise.at(places, DRAFT_SLOT)[..., 0])  # [B, W]
        root = output.codes.gather(1, output.count[:, None] - 1)  # [B, 1]
        here = torch.arange(self.nodes + 1).expand(rows, -1)  # [B, W + 1]
        below = F.pad(here[:, 1:], (0, 1))[..., None]  # [B, W + 1, 1]
        every = torch.cat([root, codes], 1)
        return Draft(
            every, (here - 1).clamp_min(0), here, below, F.pad(q, (0, 0, 0, 1)), self.depth
        )


class Noting(Exact):
    """Notes the places that it is told."""

    def __init__(self, model: Any) -> None:
        self.places: list[torch.Tensor] = []

    def at(self, draft: Draft, place: torch.Tensor) -> Noting:
        self.places.append(place.clone())
        return self


@pytest.mark.parametrize("how", ["eager", pytest.param("cpu", marks=needs_kernel)])
def test_a_proposer_is_shown_the_image_so_far_and_a_rule_its_place(how):
    """Up to the root it is what is committed; a finished image is stepped on from its end."""
    model = with_execution(random_model(vocab=4, grid=3), how)
    size = model.target.length
    spec = DecoderSpec("x", LOOP, acceptance=part("Noting"), proposer=part("Watching"))
    loop: Any = build_decoder(model, spec, SAMPLING)
    sessions: list[Any] = []
    begins = loop.proposer.begin
    loop.proposer.begin = lambda start: sessions.append(begins(start)) or sessions[-1]
    names = [f"image {i}" for i in range(16)]
    generation = loop.generate(model.text.encode(names), Noise.for_prompts(1, names, size))
    met = max((s.met for s in sessions), key=len)
    assert len(met) == generation.trace.target_calls.max()
    places = loop.verifier.rule.places
    for (image, start, count), place in zip(met, places, strict=True):
        ends = (start + count).clamp_max(size)
        assert torch.equal(place, ends)
        committed = torch.arange(size) < ends[:, None]
        assert torch.equal(image[:, :size][committed], generation.codes[committed])
    last_start, last_count = met[-1][1:]
    done = last_start + last_count >= size
    assert done.any() and not done.all()
    assert (last_start[generation.trace.target_calls < len(met) - 1] == size).all()


@pytest.mark.parametrize(
    "length, barred, grid", [(16, None, (4, 4)), (20, torch.ones(5, 3), (4, 5)), (5, None, (3, 2))]
)
def test_a_target_that_says_nothing_else_has_a_square_grid(length, barred, grid):
    bare = SimpleNamespace(length=length, barred=barred)
    assert completed(bare, Target).grid() == grid
