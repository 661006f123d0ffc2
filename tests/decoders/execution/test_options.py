"""What `torch.compile` is asked for on a GPU, as far as it shows without one."""

from __future__ import annotations

import torch

from decoders.execution.compiled import CUDA_OPTIONS
from decoders.models.transformer import INTO_PRODUCT, swiglu


def test_the_options_of_a_card_are_known_here():
    """An unknown name, or a value of another type, is an error of torch.compile."""
    torch.compile(torch.nn.Identity(), options=CUDA_OPTIONS)


def test_swiglu_for_a_product_computes_the_same_compiled():
    both = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))

    def product(both, weight):
        return INTO_PRODUCT(swiglu, both) @ weight

    right = (torch.nn.functional.silu(both[..., :32]) * both[..., 32:]) @ weight
    torch.testing.assert_close(product(both, weight), right)
    compiled = torch.compile(product, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(both, weight), right)
