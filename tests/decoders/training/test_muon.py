"""Muon's updates, against their definition and against PyTorch's own."""

import pytest
import torch

from decoders.training.optimise import Muon, orthogonal


@pytest.mark.parametrize("shape", [(16, 16), (48, 12), (12, 48)])
def test_an_update_has_singular_values_of_about_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    found = torch.linalg.svdvals(orthogonal(matrix).float())
    assert 0.5 < float(found.min()) <= float(found.max()) < 1.3
    assert float((orthogonal(matrix).float() * matrix).sum()) > 0  # along it, not against


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_steps_are_those_of_torch(shape: tuple[int, int]) -> None:
    """But for the precision of the iteration, which is bfloat16 there."""
    torch.manual_seed(1)
    start = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
    optimisers = Muon([ours], **settings), torch.optim.Muon([theirs], **settings)
    for _ in range(4):
        gradient = torch.randn(shape)
        for parameter, optimiser in zip((ours, theirs), optimisers, strict=True):
            parameter.grad = gradient.clone()
            optimiser.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0.05, atol=0.02)
    assert float((ours.detach() - start).abs().mean()) > 0.02


def test_a_parameter_without_gradient_stays() -> None:
    still = torch.nn.Parameter(torch.ones(3, 3))
    Muon([still], lr=1.0).step()
    assert bool((still == 1).all())
