"""The CPU kernel's acceptance and drafting beside the tensor code that they replace."""

from types import SimpleNamespace

import pytest
import torch

from decoders.api import DecoderError
from decoders.executed import executed
from decoders.execution.cpu.library import missing
from decoders.execution.cpu.rules import native_test_children, rule_of
from decoders.models.small import random_model
from decoders.verify.children import test_children as judged_by_tensors
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern, LanternPP

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.usefixtures("two_threads"),
]
FIELDS = ("accept", "strict", "moved", "bound", "residual")
CPU = torch.device("cpu")
VOCAB = 70
TOKENIZER = SimpleNamespace(raw_codebook=None)


def rules():
    book = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(1))
    model = SimpleNamespace(tokenizer=TOKENIZER, codebook=book, device=CPU)
    return {
        "exact": Exact(),
        "delta": Lantern(model, k=20, delta=0.3),
        "nothing": Lantern(model, k=20, delta=0.0),
        "all": Lantern(model, k=69, delta=1.0),
        "lambda": LanternPP(model, k=20, lam=4.0),
        "released": Lantern(model, k=20, delta=0.3, residual="released"),
        "released lambda": LanternPP(model, k=20, lam=4.0, residual="released"),
    }


def nodes(*shape: int, seed: int, top_k: int = VOCAB) -> torch.Tensor:
    logits = 2 * torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed))
    kth = logits.topk(top_k, -1).values[..., -1:]
    return logits.masked_fill(logits < kth, float("-inf")).softmax(-1)


@pytest.mark.parametrize("name", rules())
@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("top_k", [5, VOCAB])
def test_every_verdict_is_that_of_the_tensor_code(name: str, drawn: bool, top_k: int):
    rule = rules()[name]
    p, q = nodes(2, 9, seed=2, top_k=top_k), nodes(2, 9, seed=3, top_k=top_k)
    random = torch.Generator().manual_seed(4)
    codes = torch.stack([torch.multinomial(row, 4, generator=random) for row in q.flatten(0, 1)])
    codes = codes.view(2, 9, 4)
    valid = torch.rand(2, 9, 4, generator=random) < 0.8
    kept = (p.clone(), q.clone())
    found = native_test_children(rule_of(rule), p, q if drawn else None, codes, valid)
    right = judged_by_tensors(rule, p, q if drawn else None, codes, valid)
    for field in FIELDS:
        have, want = getattr(found, field), getattr(right, field)
        assert have.shape == want.shape
        torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-6, msg=f"{field} of {name}")
    assert torch.equal(p, kept[0]) and torch.equal(q, kept[1])  # inputs are left as they were
    assert (right.accept[valid] > 0).any() and (found.accept[~valid] == 0).all()


class Doubled(Lantern):
    """Somebody's own rule."""

    def bound_of(self, p, x):
        return 2 * super().bound_of(p, x)


def test_an_index_outside_its_table_is_refused_before_anything_is_written():
    model = random_model(vocab=50, grid=4, width=32)
    target = executed(model, "cpu").target
    with torch.inference_mode():
        cache = target.new_cache(1, 6)
        before = cache.data.clone()
        mask = torch.ones(1, 1, 6, dtype=torch.bool)
        one = torch.tensor([[1]])
        for codes, place, slot in ((50, 0, 4), (-1, 0, 4), (3, -9, 4), (3, 0, 6), (3, 0, -1)):
            with pytest.raises((DecoderError, IndexError), match=r"table|out of range"):
                target.forward_codes(one * codes, one * place, one * slot, mask, cache)
        assert torch.equal(cache.data, before)
        p, codes = nodes(1, 1, seed=5), torch.tensor([[[VOCAB]]])
        with pytest.raises(DecoderError, match="lies outside its table"):
            native_test_children(rule_of(Exact()), p, None, codes, torch.ones_like(codes).bool())
