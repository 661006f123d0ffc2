"""A plug-in's drafter that returns a wrong shape or dtype gets an error with its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.small import random_model
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from tests.decoders.compositions import drafting, images

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
