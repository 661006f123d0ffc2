"""What the kernels that `torch.compile` writes for a card compute: run by test_kernels.py in
Triton's interpreter."""

from dataclasses import replace
from typing import Any

import pytest

from decoders.api import Sampling
from decoders.compose import build_decoder
from decoders.executed import execution
from decoders.kernels.selected import Kernels
from decoders.models.small import random_model
from decoders.noise import Noise
from tests.cuda.interpreted import Interpreted
from tests.decoders.compositions import SPECS
from tests.decoders.execution.test_backends import assert_same


def image(model: Any, how: str | Any, attention: Kernels) -> Any:
    """One image of LANTERN++, and laws of its first nodes."""
    model.target.kernels = attention
    execution_ = execution(how) if isinstance(how, str) else how
    sampling = Sampling(temperature=1.0, cfg=2.0)
    decoder = build_decoder(replace(model, execution=execution_), SPECS["lantern_pp"], sampling)
    noise = Noise.for_prompts(3, ["a b"], model.target.length)
    return decoder.generate(model.text.encode(["a b"]), noise, pairs=6)


def test_an_image_by_generated_kernels_is_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(vocab=16, grid=2)
    wanted = image(model, "eager", Kernels("products"))
    assert int(wanted.trace.target_calls.max()) >= 3 and len(wanted.trace.pairs.p) >= 3
    monkeypatch.setattr("decoders.distribution.fits", lambda device, vocab: True)
    attention = Kernels("triton")
    assert_same([image(model, "eager", attention)], [wanted])  # the project's own programs
    how = Interpreted()
    assert_same([image(model, how, attention)], [wanted])
    assert how.kernels >= 30
