"""Attention by PyTorch's fused operator, as on a GPU, and by plain products."""

import torch

from decoders.models.nets.transformer import attend, attention_bias

RANDOM = torch.Generator().manual_seed(0)


def test_the_fused_operator_computes_what_plain_products_do():
    rows, heads, queries, slots, width = 2, 2, 5, 16, 8
    mask = torch.rand(rows, queries, slots, generator=RANDOM) < 0.5
    mask[..., 0] = True  # no query looks nowhere
    query = torch.randn(rows, heads, queries, width, generator=RANDOM)
    keys, values = torch.randn(2, rows, heads, slots, width, generator=RANDOM)
    bias = attention_bias(mask, query.dtype)
    plain = attend(query, keys, values, bias)
    fused = attend(query.requires_grad_(), keys, values, bias)  # on a CPU, where it trains
    assert fused.requires_grad
    torch.testing.assert_close(fused.detach(), plain)
    scores = query @ keys.transpose(-1, -2) * width**-0.5
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
    torch.testing.assert_close(plain, weights @ values)
