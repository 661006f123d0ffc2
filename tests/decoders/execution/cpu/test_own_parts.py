"""Somebody's own parts beside the CPU kernel's whole calls: run as they are written, or refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoders.api import ImageModel, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.speculative import Speculative
from decoders.models.eagle_net import EagleNet
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.grown import Grown
from decoders.propose.trees.static import Static
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact
from tests.decoders.execution.cpu.cases import model_of, needs_kernel

pytestmark = [needs_kernel, pytest.mark.usefixtures("two_threads")]
SAMPLING = Sampling(cfg=2.0)


def codes(model: ImageModel, loop: Any, noise: Noise | None = None) -> torch.Tensor:
    prompts = ["a b", "c d e"]
    noise = noise or Noise.for_prompts(3, prompts, model.target.length)
    return loop.generate(model.text.encode(prompts), noise).codes


def loop_of(model: ImageModel, rule: Any = None, tree: Any = None) -> Speculative:
    rule, tree = rule or Exact(), tree or Static(choices="binary_8")
    return Speculative(model, SAMPLING, Grown(Eagle(model), tree), ByNode(rule))


class Shifted(Autoregressive):
    """Takes the code after the one that was drawn."""

    def next(self, run: Any) -> tuple[int]:
        super().next(run)
        run.codes = (run.codes + 1) % self.model.target.vocab_size
        return (1,)


class LouderNet(EagleNet):
    def mix(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return 2 * super().mix(ids, features)


class Padded:
    """A tree with a node that is nobody's child, and a q that is not contiguous."""

    def __init__(self) -> None:
        self.inner = Static(choices="binary_8")
        self.nodes, self.depth = self.inner.nodes + 1, self.inner.depth
        self.branching, self.session_nodes = self.inner.branching, self.inner.session_nodes

    def grow(self, *given: Any) -> Any:
        made = self.inner.grow(*given)
        batch = len(made.codes)
        none = made.codes.new_zeros(batch, 1)
        q = torch.cat([made.q, made.q[:, :1]], 1).transpose(0, 1).contiguous().transpose(0, 1)
        return replace(
            made,
            codes=torch.cat([made.codes, none], 1),
            parents=torch.cat([made.parents, none], 1),
            depth=torch.cat([made.depth, none], 1),
            children=torch.cat([made.children, torch.zeros_like(made.children[:, :1])], 1),
            q=q,
            ancestry=None,
        )


def louder(model: ImageModel) -> ImageModel:
    net = model.drafters["eagle"]
    own = LouderNet(net.cfg).eval().requires_grad_(False)
    own.load_state_dict(net.state_dict())
    return replace(model, drafters={"eagle": own})


@pytest.mark.parametrize(
    "make",
    [
        lambda model: Shifted(model, SAMPLING),
        lambda model: loop_of(louder(model)),
        lambda model: loop_of(model, tree=Padded()),
    ],
    ids=["loop", "net", "tree"],
)
def test_own_parts_decode_as_with_pytorchs_operators(make: Any) -> None:
    wanted = codes(model_of(False), make(model_of(False)))
    assert torch.equal(codes(model_of(True), make(model_of(True))), wanted)
