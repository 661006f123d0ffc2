"""A decoding step never waits for the device: no `item`, `nonzero`, mask index or implicit bool.

On a GPU each of these would stall the queue; on the CPU they reach the dispatcher as the same
operators, which is how they are counted here.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.api import Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution.eager import Eager
from decoders.loops import start
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.decoders.compositions import EAGLE, EXACT, LOOP, SPECS, TREES
from tests.decoders.execution.pretended_card import must_wait


class Waits(TorchDispatchMode):
    """Counts operators whose result the host must read before it can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if must_wait(func, args):
            self.found.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inference", [False, True])
def test_the_counter_counts(inference):
    with torch.inference_mode(inference), Waits() as waits:
        x = torch.arange(4)
        assert x[1].item() == 1
        assert len(x.nonzero()) == 3
        assert len(x[x > 1]) == 2
        assert x[0] != 1  # an implicit bool
    assert len(waits.found) == 4


RULES = {
    "exact": EXACT,
    "lantern": PartSpec("decoders.verify.lantern.Lantern", {"k": 3, "delta": 0.3}),
    "released": PartSpec(
        "decoders.verify.lantern.LanternPP", {"k": 3, "lam": 3.0, "residual": "released"}
    ),
}
PAIRS = [(r, t, float((i + j) % 2)) for i, r in enumerate(RULES) for j, t in enumerate(TREES)]
PAIRS += [("block", "chain", 1.0), ("traversal", "static", 1.0), ("traversal", "static", 0.0)]
RULES |= {
    "block": PartSpec("decoders.verify.block.Block"),
    "traversal": PartSpec("decoders.verify.traversal.Traversal"),
}


@pytest.mark.parametrize(("rule", "tree", "temperature"), PAIRS)
def test_a_speculative_step_does_not_wait(monkeypatch, rule, tree, temperature):
    model = random_model(vocab=8, grid=3)
    sampling = Sampling(temperature=temperature, cfg=2.0, top_k=6, top_p=0.9)
    spec = DecoderSpec("d", LOOP, EAGLE, TREES[tree], RULES[rule])
    waits, steps = Waits(), []
    step = Eager.step

    def counted(self, *args):
        with waits:
            steps.append(1)
            return step(self, *args)

    monkeypatch.setattr(Eager, "step", counted)
    text = model.text.encode(["a b", "c d"])
    build_decoder(model, spec, sampling).generate(text, Noise.for_prompts(0, ["a", "b"], 9))
    assert steps and waits.found == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_autoregressive_decoding_waits_once_at_the_end(monkeypatch, temperature):
    model = random_model(vocab=8, grid=3)
    decoder = build_decoder(model, SPECS["ar"], Sampling(temperature=temperature, cfg=2.0, top_k=4))
    text, noise = model.text.encode(["a"]), Noise.for_prompts(0, ["a"], 9)
    seen = []
    check = start.require_finite
    with Waits() as waits:
        monkeypatch.setattr(
            start, "require_finite", lambda *args: (seen.append(len(waits.found)), check(*args))
        )
        decoder.generate(text, noise)
    assert seen == [0]
