"""Token selection ambiguity of small distributions, by hand."""

import torch

from decoders.api import VerifiedPairs
from metrics.ambiguity import RANKS, ambiguity

P = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [0.5, 0.25, 0.125, 0.125, 0.0]])
Q = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])


def pairs(q: torch.Tensor | None) -> VerifiedPairs:
    children, valid = torch.tensor([[4, 1], [4, 0]]), torch.tensor([[False, True], [True, True]])
    zero = torch.zeros(2, dtype=torch.long)
    return VerifiedPairs(P, q, children, valid, zero, zero, 1, zero)


def test_mass_entropy_and_alpha_of_drawn_children():
    found = ambiguity(pairs(Q))
    assert RANKS[:4] == (1, 2, 5, 10) and RANKS[-1] == 500_000
    expected = torch.tensor([[0.25, 0.5, 1, 1], [0.5, 0.75, 1, 1]], dtype=torch.float64)
    assert torch.allclose(found["target_mass"][:, :4], expected)
    assert torch.allclose(found["target_entropy"], torch.tensor([2.0, 1.75]).double())
    assert torch.allclose(found["drafter_mass"][:, 0], torch.tensor([0.4, 1.0]).double())
    assert found["drafter_entropy"][1] == 0, "0 log 0 is 0"
    assert torch.allclose(found["alpha"], torch.tensor([0.8, 0.0], dtype=torch.float64))


def test_deterministic_children_are_accepted_by_p_of_the_first_valid_one():
    found = ambiguity(pairs(None))
    assert found["alpha"].tolist() == [0.25, 0.0], "children 1 and 4"
    assert len(found["drafter_mass"]) == len(found["drafter_entropy"]) == 0
