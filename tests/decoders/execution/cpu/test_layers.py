"""The CPU kernel computes what PyTorch's operators compute, and a row the same in any company."""

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from decoders.api import DecoderError
from decoders.cache import additive_mask
from decoders.distribution import take
from decoders.execution.cpu.layers import KernelLinear, swap_layers, swap_matrices
from tests.decoders.execution.cpu.cases import (
    Step,
    error,
    needs_kernel,
    network,
    prefill,
    threads,
    tree,
)

pytestmark = needs_kernel
CLOSE = 1e-5  # float32
CASES: dict[str, tuple[dict[str, Any], Callable[[Any], Step], float]] = {
    "prefill": ({}, prefill, CLOSE),
    "a full cache": ({}, partial(prefill, capacity=4), CLOSE),
    "one code": ({}, partial(tree, rows=2, nodes=1), CLOSE),
    "a tree": ({}, partial(tree, rows=2, nodes=9), CLOSE),
    "four queries": ({}, partial(tree, rows=1, nodes=4, capacity=16), CLOSE),
    "one row": ({}, partial(tree, rows=1, nodes=2), CLOSE),
    "a large tree": ({}, partial(tree, rows=6, nodes=26, capacity=51), CLOSE),
    "many rows": ({}, partial(tree, rows=19, nodes=3), CLOSE),
}  # shape of the network, the step, and how near it must be
for _nodes in (1, 5, 9):
    _step = partial(tree, rows=3, nodes=_nodes)
    for _dim in (16, 32, 64, 128):
        CASES[f"{_nodes} codes, heads of {_dim}"] = {"dim": _dim, "heads": 3}, _step, CLOSE
    CASES[f"{_nodes} codes, bfloat16"] = {"dim": 64, "dtype": torch.bfloat16}, _step, 0.03


def both(net, step):
    """(kernel's, PyTorch's) states and caches."""
    wanted = step.run(net)
    swap_layers(net)
    return *step.run(net), *wanted


@pytest.mark.parametrize("name", CASES)
def test_a_forward_is_pytorchs(name):
    shape, step, close = CASES[name]
    net = network(**shape)
    out, cache, wanted, wanted_cache = both(net, step(net))
    assert out.shape == wanted.shape and out.dtype == wanted.dtype
    assert error(out, wanted) < close and error(cache, wanted_cache) < close


@pytest.mark.parametrize("rows", [3, 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_both_kinds_and_wanted_queries_give_the_same_bits(rows, dtype):
    net = network(dim=16, heads=2, dtype=dtype)
    swap_layers(net)
    step = tree(net, rows, 5)
    wanted = torch.arange(rows)[:, None] % 5  # [R, 1]
    results = []
    for mask, queries in ((step.mask, None), (additive_mask(step.mask), None), (step.mask, wanted)):
        cache = copy.deepcopy(step.cache)
        out = net.stack(step.x, step.positions, step.slots, mask, cache, queries)
        results.append((out, cache.data))
    (whole, cache), (masked, masked_cache), (few, few_cache) = results
    assert torch.equal(masked, whole) and torch.equal(masked_cache, cache)
    assert torch.equal(few, take(whole, wanted)) and torch.equal(few_cache, cache)
    with pytest.raises(RuntimeError, match="wanted queries that there are"):
        net.stack(step.x, step.positions, step.slots, step.mask, step.cache, wanted + 5)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("rows", [2, 16, 19])
@pytest.mark.parametrize(("heads", "ffn"), [(2, 64), (1, 16), (3, 80)])
def test_threads_share_the_work_without_a_trace(rows, count, heads, ffn):
    """Halves of the inputs are one's own, or nobody's; from 8 rows a thread on every thread has
    rows of its own."""
    net = network(32, heads, ffn=ffn)
    swap_layers(net)
    step = tree(net, rows, 5)
    with threads(1):
        wanted, wanted_cache = step.run(net)
    with threads(count):
        out, cache = step.run(net)
    assert torch.equal(out, wanted) and torch.equal(cache, wanted_cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "nodes"), [(2, 9), (17, 1), (3, 26)])
def test_a_row_alone_has_the_bits_it_has_in_a_batch(dtype, rows, nodes):
    """So a code verified alone and in a tree meets one distribution."""
    net = network(32, dtype=dtype)
    swap_layers(net)
    step = tree(net, rows, nodes, capacity=61)
    out, written = step.run(net)
    for row in range(rows):
        for query in {0, nodes // 2, nodes - 1}:
            alone, cache = step.alone(row, query, written).run(net)
            assert torch.equal(alone[0, 0], out[row, query])
            assert torch.equal(cache[:, :, 0], written[:, :, row])


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 30.0, 1e3])
def test_scores_and_gates_far_from_one(scale):
    """The kernel's own exponential, from flat distributions to single slots."""
    net = network(16, layers=1)
    net.layers[0].attention.wqkv.weight.mul_(scale**0.5)
    net.layers[0].feed_forward.w13.weight.mul_(scale)
    out, _, wanted, _ = both(net, tree(net, 3, 9))
    assert torch.isfinite(out).all()
    # A score of 1e3 has an error of 1e-4 in float32, and e to it the same relative one.
    assert error(out, wanted) < max(CLOSE, 1e-6 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [16, 24, 1, 130])
@pytest.mark.parametrize("rows", [1, 7, 37])
def test_a_product_alone(rows, outputs, dtype):
    """A head's, which is `wide`, is not rounded to bfloat16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(outputs)
        x = torch.randn(rows, 2, 34).to(dtype)
        linears = [torch.nn.Linear(34, outputs, bias).to(dtype) for bias in (True, False)]
    for linear in linears:
        linear.requires_grad_(False)
    for linear, wide in itertools.product(linears, (False, True)):
        product = KernelLinear(linear, dtype, wide)(x)
        assert product.shape == (rows, 2, outputs)
        assert product.dtype == (torch.float32 if wide else dtype)
        exact = linear.double()(x.double())
        linear.to(dtype)
        assert error(product, exact) < (CLOSE if wide or dtype == torch.float32 else 0.01)
    with pytest.raises(DecoderError, match=r"even number of inputs, found weights \[16, 15\]"):
        KernelLinear(torch.nn.Linear(15, 16), dtype)
    with pytest.raises(DecoderError, match=r"expected \[\.\.\., 34\] .* found \[1, 36\]"):
        KernelLinear(linears[0], dtype)(torch.zeros(1, 36))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_the_matrices_of_a_drafters_net_are_the_kernels(dtype, close, bias):
    """States in float32 come out in float32, also of weights that are kept in bfloat16."""
    net = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=bias), torch.nn.Linear(40, 7, bias=bias))
    net.append(torch.nn.Linear(7, 5)).requires_grad_(False)  # odd: PyTorch's
    x = torch.randn(3, 4, 24)
    wanted, names = net(x), [*net.state_dict()]
    swap_matrices(net, dtype)
    assert [type(module) for module in net] == [KernelLinear, KernelLinear, torch.nn.Linear]
    assert [*net.state_dict()] == names
    out = net(x)
    assert out.dtype == torch.float32 and out.shape == wanted.shape
    assert error(out, wanted) < close
    assert torch.equal(net[:2](x)[:1, :1], net[:2](x[:1, :1]))  # alone as in company
