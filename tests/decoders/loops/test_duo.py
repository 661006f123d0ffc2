"""DuoDecoding: two threads have the codes of one, and at temperature 0 of AR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoders.api import CodeKind, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.loops import duo
from decoders.models.random_weights import random_model
from tests.decoders.compositions import (
    CHAIN,
    DRAFTER_SPECS,
    EAGLE,
    EXACT,
    SPECS,
    images,
    part,
    require_same,
)

MODEL = random_model(vocab=24, grid=6, seed=1)
PROMPTS = ["a", "b c", "d"]
SAMPLING = Sampling(cfg=2.0, top_k=20)
GREEDY = replace(SAMPLING, temperature=0.0)
ITSELF = part("propose.drafters.free.Free", layers=MODEL.target.config.layers)
DRAFTERS = {
    "eagle": EAGLE, "itself": ITSELF, "shallow": part("propose.drafters.free.Free", layers=1),
    "hawk": DRAFTER_SPECS["hawk"].drafter, "chimera": DRAFTER_SPECS["chimera"].drafter,
}  # fmt: skip
TRACE = ("kind", "step", "depth", "accepted", "target_calls", "drafter_calls")


def built(drafter: Any, depth: int = 3, sampling: Sampling = SAMPLING, **options: Any) -> Any:
    tree = PartSpec(CHAIN.target, {"depth": depth})
    spec = DecoderSpec("duo", part("loops.duo.Duo", **options), drafter, tree, EXACT)
    return build_decoder(MODEL, spec, sampling)


class Touched(TorchDispatchMode):
    """The memory that operators read and write, by address. All of it is held, so that no address
    is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, Any] = {}
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for declared, value in zip(func._schema.arguments, args, strict=False):
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    self.held[storage.data_ptr()] = storage
                    if declared.is_write:
                        self.written.add(storage.data_ptr())
        return out

    def around(self, method: Any) -> Any:
        """The method, its operators looked at."""

        def looked_at(*args: Any) -> Any:
            with self:
                return method(*args)

        return looked_at


def test_target_and_drafter_share_no_memory_that_either_writes(monkeypatch) -> None:
    """They run at the same time, on a GPU on two streams."""
    target, drafter = Touched(), Touched()
    for name, touched in (("forward", target), ("draft_ahead", drafter)):
        monkeypatch.setattr(duo.Duo, name, touched.around(getattr(duo.Duo, name)))
    images(built(EAGLE), PROMPTS)
    assert target.written and drafter.written
    assert not target.written & drafter.held.keys() and not drafter.written & target.held.keys()


@pytest.fixture(scope="module")
def ar() -> Any:
    return images(build_decoder(MODEL, SPECS["ar"], GREEDY), PROMPTS)


@pytest.mark.parametrize(
    ("name", "depth"), [("eagle", 2), ("shallow", 2), *((name, 3) for name in DRAFTERS)]
)
def test_two_threads_have_the_codes_of_one_and_of_ar(name: str, depth: int, ar: Any) -> None:
    one, other = (
        images(built(DRAFTERS[name], depth, parallel=both), PROMPTS) for both in (True, False)
    )
    require_same(one, other, *TRACE)
    require_same(images(built(DRAFTERS[name], depth, GREEDY), PROMPTS), ar)


def test_a_drafter_that_is_the_target_drafts_before_its_first_forward_alone() -> None:
    trace = images(built(ITSELF), PROMPTS).trace
    assert trace.target_calls.tolist() == [12] * 3  # of 35 codes, three a step
    assert (trace.kind[:, 1:] == CodeKind.DRAFT).all()
    assert (trace.drafter_calls == 12 * 6).all()  # six per step
