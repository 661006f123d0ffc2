"""DuoDecoding: two threads have the codes of one, and at temperature 0 of AR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoders.api import CodeKind, DecoderError, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.loops import duo
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import CHAIN, DYNAMIC, EAGLE, EXACT, OWN

MODEL = random_model(vocab=24, grid=6, seed=1)
PROMPTS = ["a", "b c", "d"]
TEXT = MODEL.text.encode(PROMPTS)
SAMPLING = Sampling(cfg=2.0, top_k=20)
LAYERS = MODEL.target.cfg.layers
SAME = PartSpec("decoders.propose.drafters.free.Free", {"layers": LAYERS})
SHALLOW = PartSpec("decoders.propose.drafters.free.Free", {"layers": 1})
DRAFTERS = {"eagle": EAGLE, "itself": SAME, "shallow": SHALLOW, "hawk": OWN["hawk"].drafter}
DRAFTERS |= {"chimera": OWN["chimera"].drafter}
GREEDY = replace(SAMPLING, temperature=0.0)
LANTERN = PartSpec("decoders.verify.lantern.LanternPP", {"k": 3, "lam": 3.0})
COMPARED = ("kind", "step", "depth", "accepted", "target_calls", "drafter_calls", "expected")


def chain(depth: int) -> PartSpec:
    return PartSpec(CHAIN.target, {"depth": depth})


def built(
    drafter: Any = EAGLE,
    tree: Any = CHAIN,
    rule: Any = EXACT,
    sampling: Any = SAMPLING,
    **given: Any,
) -> Any:
    loop = PartSpec("decoders.loops.duo.Duo", given)
    return build_decoder(MODEL, DecoderSpec("duo", loop, drafter, tree, rule), sampling)


def made(decoder: Any, seed: int = 0, **given: Any) -> Any:
    return decoder.generate(TEXT, Noise.for_prompts(seed, PROMPTS, 36), **given)


def require_same(one: Any, other: Any) -> None:
    assert torch.equal(one.codes, other.codes)
    for name in COMPARED:
        assert torch.equal(getattr(one.trace, name), getattr(other.trace, name)), name


class Touched(TorchDispatchMode):
    """The memory that operators read and write, by address. What was seen is kept, so that no
    address is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Any] = {}
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for declared, value in zip(func._schema.arguments, args, strict=False):
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    self.seen[storage.data_ptr()] = storage
                    if declared.is_write:
                        self.written.add(storage.data_ptr())
        return out

    def watching(self, method: Any) -> Any:
        """The method, its operators seen."""

        def watched(*given: Any) -> Any:
            with self:
                return method(*given)

        return watched


def test_target_and_drafter_share_no_memory_that_either_writes(monkeypatch) -> None:
    """They run at the same time, on a GPU on two streams."""
    target, drafter = Touched(), Touched()
    for name, touched in (("forward", target), ("draft_ahead", drafter)):
        monkeypatch.setattr(duo.Duo, name, touched.watching(getattr(duo.Duo, name)))
    made(built())
    assert target.written and drafter.written
    assert not target.written & drafter.seen.keys() and not drafter.written & target.seen.keys()


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_two_threads_have_the_codes_of_one_and_of_ar(drafter: str, depth: int) -> None:
    ar = DecoderSpec("ar", PartSpec("decoders.loops.autoregressive.Autoregressive"))
    one, other = (
        made(built(DRAFTERS[drafter], chain(depth), parallel=both)) for both in (True, False)
    )
    require_same(one, other)
    greedy = made(built(DRAFTERS[drafter], chain(depth), sampling=GREEDY))
    assert torch.equal(greedy.codes, made(build_decoder(MODEL, ar, GREEDY)).codes)


def test_a_drafter_that_is_the_target_drafts_before_its_first_forward_alone() -> None:
    decoder, read = built(SAME), []
    session = duo.LookaheadSession.read

    def reading(self: Any, *given: Any) -> Any:
        read.append(torch.is_inference_mode_enabled())
        return session(self, *given)

    decoder.worker.submit(lambda: None).result()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duo.LookaheadSession, "read", reading)
        found = made(decoder).trace
    assert found.target_calls.tolist() == [12] * 3  # of 35 codes, three a step
    assert (found.kind[:, 1:] == CodeKind.DRAFT).all()
    assert (found.drafter_calls == 12 * 6 + 1).all()  # six a step, and the prefix
    assert all(read)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tree": DYNAMIC}, "expected tree=chain, found dynamic"),
        ({"tree": chain(1)}, "2 to 31 drafts in a step, found 1"),
        ({"drafter": OWN["glide"].drafter}, "reads the target's cache"),
    ],
)
def test_what_it_cannot_do_is_refused(given: Any, said: str) -> None:
    with pytest.raises(DecoderError, match=said):
        built(**given)
