"""An empty subclass of any part runs as the part does: the same codes by the same calls of the
kernel. A plug-in that changes nothing must cost nothing, or else new methods are compared with
built-in ones on unequal terms: tensor code takes about twice as long."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from decoders.api import ImageModel, Sampling
from decoders.executed import executed
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle, EagleSession
from decoders.propose.grown import Grown, GrownSession
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP
from tests.decoders.execution.cpu.cases import needs_kernel

SAMPLING = Sampling(cfg=2.0, top_k=100)


def empty(kind: type) -> type:
    return type(f"Empty{kind.__name__}", (kind,), {})


class OwnSession(Eagle):
    """A drafter whose session is an empty subclass."""

    def begin(self, *given: Any) -> Any:
        return empty(EagleSession)(self.net, self.model, *given)


class OwnGrown(Grown):
    """A proposer whose session is an empty subclass."""

    def begin(self, start: Any) -> Any:
        return empty(GrownSession)(self, start)


def speculative(
    loop: type = Speculative,
    drafter: type = Eagle,
    tree: Any = None,
    grown: type = Grown,
    verifier: type = ByNode,
    rule: Any = Exact,
) -> Callable[[ImageModel], Any]:
    grow = tree or tree_of(Static, choices="binary_8")
    return lambda model: loop(
        model, SAMPLING, grown(drafter(model), grow(model)), verifier(rule(model))
    )


def autoregressive(loop: type = Autoregressive) -> Callable[[ImageModel], Any]:
    return lambda model: loop(model, SAMPLING)


def tree_of(kind: type, **options: Any) -> Callable[[Any], Any]:
    return lambda model: kind(model, **options)


DYNAMIC = {"depth": 3, "top_k": 4, "nodes": 10}
PARTS: dict[str, tuple[Callable[[ImageModel], Any], Callable[[ImageModel], Any]]] = {
    "ar": (autoregressive(), autoregressive(empty(Autoregressive))),
    "loop": (speculative(), speculative(loop=empty(Speculative))),
    "drafter": (speculative(), speculative(drafter=empty(Eagle))),
    "session": (speculative(), speculative(drafter=OwnSession)),
    "static tree": (speculative(), speculative(tree=tree_of(empty(Static), choices="binary_8"))),
    "chain": (speculative(tree=Chain), speculative(tree=empty(Chain))),
    "dynamic tree": (
        speculative(tree=tree_of(Dynamic, **DYNAMIC)),
        speculative(tree=tree_of(empty(Dynamic), **DYNAMIC)),
    ),
    "proposer": (speculative(), speculative(grown=empty(Grown))),
    "proposer's session": (speculative(), speculative(grown=OwnGrown)),
    "verifier": (speculative(), speculative(verifier=empty(ByNode))),
    "exact": (speculative(), speculative(rule=empty(Exact))),
    "lantern": (speculative(rule=Lantern), speculative(rule=empty(Lantern))),
    "lantern++": (speculative(rule=LanternPP), speculative(rule=empty(LanternPP))),
}


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return executed(random_model(vocab=1024, grid=6, width=32), "cpu")


@needs_kernel
@pytest.mark.parametrize("name", PARTS)
def test_an_empty_subclass_runs_as_the_part_does(name: str, model: ImageModel) -> None:
    text, noise = model.text.encode(["a b"]), Noise.for_prompts(3, ["a b"], model.target.length)
    part, own = (make(model).generate(text, noise) for make in PARTS[name])
    assert torch.equal(own.codes, part.codes)
    assert own.trace.path == part.trace.path and {*own.trace.path.values()} == {"kernel"}
