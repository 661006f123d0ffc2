"""What the fused sampling must do, on whatever device it runs; see cases_attention.py."""

import pytest
import torch

from decoders.api import Sampling
from decoders.distribution import draw_distinct, probabilities
from decoders.kernels.runtime import missing
from decoders.kernels.sampling import sampled

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SETTINGS = [
    Sampling(),
    Sampling(temperature=0.7, top_k=7),
    Sampling(top_p=0.6),
    Sampling(temperature=1.5, top_k=20, top_p=0.9),
    Sampling(top_k=1),
]


def test_the_kernel_runs_here_for_sampling():
    assert missing(DEVICE) is None


@pytest.mark.parametrize("vocab", [30, 64, 3000])  # one tile, a full one, three
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_laws_and_draws_are_those_of_the_tensor_code(sampling, vocab):
    random = torch.Generator().manual_seed(vocab)
    logits = (3 * torch.randn(2, 5, vocab, generator=random)).to(DEVICE)
    for nodes, draws in ((5, 4), (1, 3), (1, 0)):
        u = torch.rand(2, nodes, draws, generator=random).to(DEVICE)
        p, codes = sampled(logits, u, sampling.temperature, sampling.top_k, sampling.top_p)
        right = probabilities(logits, sampling)
        torch.testing.assert_close(p, right, atol=1e-6, rtol=1e-5)
        assert torch.equal(p > 0, right > 0)
        assert codes.shape == (2, 5, draws) and codes.dtype == torch.int64
        enough = (right > 0).sum(-1) >= draws  # else later draws are of nothing
        if draws and enough.any():
            mine, wanted = codes[enough], draw_distinct(right, u)[enough]
            assert (mine == wanted).float().mean() >= (0.97 if DEVICE.type == "cuda" else 1)
            assert (mine.sort(-1).values.diff(dim=-1) > 0).all()
        if draws and sampling.top_k == 1:
            assert torch.equal(codes[..., 0], right.argmax(-1))


def test_ties_at_the_border_of_top_k_all_stay_and_infinity_is_told():
    logits = torch.tensor([[[2.0, 1.0, 1.0, 0.0, -0.0, -5.0]]], device=DEVICE)
    u = torch.full((1, 1, 1), 0.5, device=DEVICE)
    for top_k, kept in ((2, 3), (4, 5), (6, 6)):
        p, _ = sampled(logits, u, 1.0, top_k, 1.0)
        assert int((p > 0).sum()) == kept
    for bad in (float("nan"), float("inf")):
        logits[0, 0, 2] = bad
        assert not sampled(logits, u, 1.0, 3, 1.0)[0].isfinite().all()
