"""Every execution decodes what eager steps decode: executions x decoders, one table."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch

from decoders.api import Execution, Generation, Sampling
from decoders.compose import DecoderSpec, PartSpec, build_decoder
from decoders.execution.cpu.execution import Kernel
from decoders.execution.cuda_graphs import Graphed
from decoders.execution.eager import Eager
from decoders.models.random_weights import random_model
from decoders.propose.drafters.common.sessions import EagleSession
from decoders.propose.drafters.eagle import Eagle
from tests.decoders.compositions import (
    CHAIN,
    DECODERS,
    EAGLE,
    EVERY,
    EXACT,
    LOOP,
    STATIC,
    WITH,
    TracedKernel,
    images,
    part,
    small_spec,
    with_targets,
)
from tests.decoders.execution.cpu.cases import needs_kernel
from tests.decoders.execution.pretended_card import pretended
from tests.decoders.execution.test_backends import PAIRS, CompiledReplay, assert_same


class Rebinding(EagleSession):
    """Binds its root code anew in every step."""

    def advance(self, *arguments: torch.Tensor) -> torch.Tensor:
        logits = super().advance(*arguments)
        self.root_code = self.root_code.clone()
        return logits


class Rebinder(Eagle):
    session = Rebinding


REBINDER = PartSpec(f"{__name__}.Rebinder")
OTHERS = {  # which conf/decoder does not have
    "a drafter that binds anew": DecoderSpec("anew", LOOP, REBINDER, CHAIN, EXACT),
    "synthetic": DecoderSpec("s", LOOP, EAGLE, STATIC, part("verify.synthetic.Synthetic", mal=2.0)),
}
OF_SAME_PARTS = ("eagle1", "eagle2", "lantern", "lantern_chain", "sd_chain")  # as other ones
DRAFTERS = [*WITH[0::4], *WITH[3::4]]  # each on a chain or on a tree
NAMES = [*OTHERS, *DRAFTERS, *(name for name in DECODERS if name not in OF_SAME_PARTS)]
CAPTURED = [name for name in NAMES if not name.startswith(("duo", "vvs"))]  # `Loop.capturable`
ONE, OTHER = ["a b"], ["c d e"]


class Uncompiled(Graphed):
    """On a real card a compiler takes longer than all these images."""

    def _compiles(self, device: torch.device) -> bool:
        return False


def card_or_pretended() -> AbstractContextManager[Any]:
    return nullcontext() if torch.cuda.is_available() else pretended()


@dataclass(frozen=True)
class Column:
    """An execution, that which it must equal, and the decoders that are tried; shape: of the random
    model; filters: of its sampling; greedy: every second decoder decodes at temperature 0."""

    how: Callable[[], Execution]
    reference: Callable[[], Execution]
    names: list[str]
    shape: dict[str, Any]
    filters: dict[str, Any] = field(default_factory=dict)
    greedy: bool = True


COLUMNS = {
    # The CPU kernel's operators against PyTorch's.
    "kernel": Column(Kernel, Eager, [*WITH[0::2], "ar"], {"vocab": 64, "grid": 4}),
    "compiled": Column(
        partial(TracedKernel, EVERY), Kernel, NAMES, {"grid": 5}, {"top_k": 40}, greedy=False
    ),
    "captured": Column(
        partial(Uncompiled, EVERY), Eager, CAPTURED, {"grid": 3, "device": "cuda"}, {"top_k": 40}
    ),
    "captures of compiled pieces": Column(CompiledReplay, Eager, ["ar"], {"grid": 4}),
}
CASES = [
    pytest.param(how, name, marks=needs_kernel if how in ("kernel", "compiled") else ())
    for how, column in COLUMNS.items()
    for name in column.names
]


def decoded(how: str, name: str, execution: Execution) -> tuple[Any, list[Generation]]:
    """A decoder, and copies of what it decodes: later images with what was made for the first."""
    column = COLUMNS[how]
    model = with_targets(random_model(**({"vocab": 128, "width": 32} | column.shape)))
    model = replace(execution.prepare(model), execution=execution)
    temperature = float(column.names.index(name) % 2) if column.greedy else 1.0
    sampling = Sampling(temperature, cfg=2.0, **column.filters)
    decoder = build_decoder(model, OTHERS.get(name) or small_spec(name), sampling)
    pairs = PAIRS if how == "captured" else 0
    return decoder, [copy.deepcopy(images(decoder, each, pairs=pairs)) for each in (ONE, OTHER)]


@pytest.mark.parametrize(("how", "name"), CASES)
def test_codes_are_those_of_eager_steps(how: str, name: str) -> None:
    torch._dynamo.reset()
    with card_or_pretended() if how == "captured" else nullcontext():
        decoder, some = decoded(how, name, COLUMNS[how].how())
        assert_same(some, decoded(how, name, COLUMNS[how].reference())[1])
        paths = [one.trace.path | {"products": ""} for one in some]  # a library's, or measured
        ways = {way for path in paths for way in path.values() if way}
        if "compiled" in how:
            assert ways == {"compiled"}
        elif how == "captured":
            steps = sum(int(one.trace.target_calls.max()) for one in some)
            assert decoder.execution.replays == steps and len(decoder.prepared) == 1
