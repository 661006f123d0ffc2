"""The measured choice of attention: every implementation computes the reference, what cannot run
says why, what is wrong is refused."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from decoders.api import DecoderError
from decoders.kernels import candidates, runtime
from decoders.kernels.candidates import AttentionShape, Flex, Products, Sdpa, Triton
from decoders.kernels.choose import choose, inputs
from decoders.kernels.reference import rotate_and_append, tree_attention
from decoders.models.transformer import attend

CPU = torch.device("cpu")
SHAPE = AttentionShape(2, 5, 3, 64, 16, torch.float32, CPU)
GROUPED = AttentionShape(2, 5, 8, 64, 16, torch.float32, CPU, group=4)


def test_the_reference_is_the_transformer_s_attention_and_rotation():
    given = inputs(SHAPE, 1, 50)
    keys, values = (t.clone() for t in given.caches[0])
    found = tree_attention(given.qkv, given.rope, given.mask, given.slots, keys, values)
    both = given.qkv.unflatten(2, (3, -1)).permute(2, 0, 3, 1, 4)  # [3, R, H, T, d]
    pairs = torch.view_as_complex(both[:2].unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * given.rope[:, None]).flatten(-2)  # [2, R, H, T, d]
    k, v = (t.clone() for t in given.caches[0])
    for row, slots in enumerate(given.slots):
        k[row, :, slots], v[row, :, slots] = turned[1, row], both[2, row]
    bias = torch.where(given.mask, 0.0, float("-inf"))[:, None]
    right = attend(turned[0], k, v, bias).transpose(1, 2)
    torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(keys, k)
    torch.testing.assert_close(values, v)


@pytest.mark.parametrize("shape", [SHAPE, GROUPED], ids=["apart", "grouped"])
@pytest.mark.parametrize("one", [Products(), Sdpa(), Flex(compiled=False)], ids=lambda o: o.name)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_implementations_compute_the_reference(one, shape):
    given = inputs(shape, 1, 50)
    caches = [tuple(t.clone() for t in given.caches[0]) for _ in range(2)]
    prepared = one.prepare(shape, given.mask, given.slots)
    found = one.attend(given.qkv, given.rope, prepared, *caches[0])
    right = tree_attention(given.qkv, given.rope, given.mask, given.slots, *caches[1])
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(caches[0][0], caches[1][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fastest_that_runs_is_chosen_and_the_others_say_why(dtype):
    shape = AttentionShape(2, 5, 3, 64, 16, dtype, CPU)
    found = choose(shape, layers=2, used=40, repeats=5)
    assert set(found["milliseconds"]) == {"products", "sdpa"}
    assert found["name"] == min(found["milliseconds"], key=found["milliseconds"].__getitem__)
    assert all(spent > 0 for spent in found["milliseconds"].values())
    every = {one.name for one in candidates.implementations()}
    assert set(found["refused"]) == every - set(found["milliseconds"])
    assert "found cpu" in found["refused"]["flex"]
    assert all(
        "found cpu" in why or "not installed" in why
        for name, why in found["refused"].items()
        if name.startswith("triton")
    )
    record = json.loads(json.dumps(found))
    assert record["shape"]["device"] == "cpu"
    assert record["shape"]["dtype"] == str(dtype).removeprefix("torch.")
    assert record["name"] == found["name"] and record["used"] == 40


class Blind(Products):
    """Sees every slot, whatever the mask says."""

    name = "blind"

    def prepare(self, shape, mask, slots):
        return super().prepare(shape, torch.ones_like(mask), slots)


class Forgetful(Products):
    """Attends rightly, and leaves the cache as it was."""

    name = "forgetful"

    def attend(self, qkv, rope, prepared, keys, values):
        return super().attend(qkv, rope, prepared, keys.clone(), values.clone())


def tf32(x):
    """Rounded to the 10 bits of fraction that a tensor core reads."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def one_part(a, b):
    return tf32(a) @ tf32(b)


def three_parts(a, b):
    high, other = tf32(a), tf32(b)
    return tf32(a - high) @ other + high @ tf32(b - other) + high @ other


class TensorCores(Products):
    """Float32 as the units of a GPU multiply it."""

    def __init__(self, product):
        self.name, self.product = product.__name__, product

    def attend(self, qkv, rope, prepared, keys, values):
        bias, slots = prepared
        query = rotate_and_append(qkv, rope, slots, keys, values)
        scores = self.product(query, keys.transpose(-1, -2)) * query.shape[-1] ** -0.5
        return self.product((scores + bias).softmax(-1), values).transpose(1, 2)


@pytest.mark.parametrize(("queries", "slots"), [(5, 64), (58, 448), (1, 2480)])
def test_float32_in_three_parts_passes_and_in_one_does_not(queries, slots):
    shape = AttentionShape(1, queries, 4, slots, 64, torch.float32, CPU)
    ways = [TensorCores(one_part), TensorCores(three_parts)]
    found = choose(shape, layers=1, repeats=1, used=slots, among=ways)
    assert found["name"] == "three_parts" and found["deviation"]["three_parts"] < 4e-6
    assert "allowed 1e-05" in found["refused"]["one_part"]


class Broken(Products):
    name = "broken"

    def attend(self, qkv, rope, prepared, keys, values):
        raise RuntimeError("no kernel image for this device")


def test_a_wrong_or_failing_implementation_is_refused_with_its_error():
    ways = [Blind(), Forgetful(), Broken(), Sdpa()]
    found = choose(SHAPE, layers=1, repeats=2, used=50, among=ways)
    assert found["name"] == "sdpa" and set(found["milliseconds"]) == {"sdpa"}
    assert "differs from the reference by" in found["refused"]["blind"]
    assert "differs from the reference by" in found["refused"]["forgetful"]
    assert found["refused"]["broken"] == "RuntimeError: no kernel image for this device"
    with pytest.raises(DecoderError, match=r"no attention runs.*no kernel image"):
        choose(SHAPE, layers=1, among=[Broken()])


def test_without_triton_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "decoders.kernels.tree_attention_programs", raising=False)
    assert "not installed" in (runtime.missing(torch.device("cuda")) or "")
    with pytest.raises(DecoderError, match=r"kernels\.tree_attention_programs: .*not installed"):
        runtime.programs("tree_attention_programs", torch.device("cuda"))
    shape = SimpleNamespace(device=torch.device("cuda"), queries=3)
    assert "not installed" in Triton().reason(shape)
