"""The kernels natively on a GPU: the interpreter's cases again, at full sizes, captured, and
without a wait for the device."""

from __future__ import annotations

import pytest
import torch

from decoders.kernels import reference
from decoders.kernels.candidates import AttentionShape, implementation, implementations
from decoders.kernels.choose import choose, inputs
from decoders.kernels.relaxed import bound_of, judge, space
from decoders.noise import sample
from decoders.verify.children import test_children as judged_by_tensors
from decoders.verify.lantern_pp import LanternPP
from tests.decoders import kernel_cases_relaxed as cases
from tests.decoders.kernel_cases_attention import *  # noqa: F403
from tests.decoders.kernel_cases_relaxed import *  # noqa: F403

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")


def captured(run):
    """The graph of `run`, which has run before."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@pytest.mark.parametrize("queries", [1, 58])
@pytest.mark.parametrize(("heads", "size"), [(20, 64), (32, 100), (32, 128)])
def test_official_shapes_captured_equal_the_reference(queries, heads, size):
    shape = AttentionShape(2, queries, heads, 448, size, torch.bfloat16, CUDA)
    given = inputs(shape, 1, 300)
    one = implementation("triton")
    keys, values = given.caches[0]
    prepared = one.prepare(shape, given.mask, given.slots)
    kept = []
    graph = captured(lambda: kept.append(one.attend(given.qkv, given.rope, prepared, keys, values)))
    for seed in (1, 2):  # replays read what the inputs hold now
        fresh = inputs(shape, 1, 300, seed=seed)
        given.qkv.copy_(fresh.qkv)
        keys.copy_(fresh.caches[0][0])
        values.copy_(fresh.caches[0][1])
        graph.replay()
        right = reference.tree_attention(
            fresh.qkv, given.rope, given.mask, given.slots, *fresh.caches[0]
        )
        torch.testing.assert_close(kept[-1], right, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(keys, fresh.caches[0][0], atol=2e-2, rtol=2e-2)


def test_many_launches_never_mix_up_their_splits():
    """The counters of arrived splits and the appended keys, under the load that a race would
    need."""
    shape = AttentionShape(2, 58, 20, 448, 64, torch.bfloat16, CUDA)
    given = inputs(shape, 1, 440)
    one = implementation("triton_8")
    prepared = one.prepare(shape, given.mask, given.slots)
    first = one.attend(given.qkv, given.rope, prepared, *given.caches[0])
    for _ in range(500):
        keys, values = (t.clone() for t in given.caches[0])
        keys.scatter_(2, given.slots[:, None, :, None].expand(-1, 20, -1, 64), 0.0)
        again = one.attend(given.qkv, given.rope, prepared, keys, values)
        assert torch.equal(again, first)


@pytest.mark.parametrize("vocab", [16384, 65536])
@pytest.mark.parametrize("drawn", [True, False])
def test_relaxed_acceptance_at_full_size_captured(vocab, drawn):
    k = 1000
    rule = LanternPP(cases.model(30), k=10, lam=3.0)
    shift = 1 + torch.randperm(vocab - 1, device=CUDA)[:k]
    table = (torch.arange(vocab, device=CUDA)[:, None] + shift) % vocab  # [V, k]
    rule.table, rule.k = table.int(), k
    p = cases.distributions(1, 58, vocab, top_k=1000, seed=1)
    q = cases.distributions(1, 58, vocab, top_k=1000, seed=2) if drawn else None
    codes, valid = cases.children(p if q is None else q, 4, seed=3)
    u = torch.rand(1, 58, device=CUDA)
    work = space(58, vocab, 4, drawn, CUDA)
    kept = []
    graph = captured(lambda: kept.append(judge(p, q, codes, valid, u, bound_of(rule), work)))
    work.buffers.fill_(float("nan"))
    graph.replay()
    found, code = kept[-1]
    cases.same(found, judged_by_tensors(rule, p, q, codes, valid), atol=2e-6)
    right = sample(found.residual, u)
    assert (code == right).float().mean() > 0.95
    assert (found.residual.gather(-1, code[..., None]) > 0).all()


def test_neither_kernel_waits_for_the_device():
    shape = AttentionShape(2, 26, 8, 256, 64, torch.bfloat16, CUDA)
    given = inputs(shape, 1, 200)
    one = implementation("triton")
    p = cases.distributions(1, 26, 1000, top_k=100, seed=1)
    codes, valid = cases.children(p, 3, seed=2)
    bound = bound_of(cases.rules(1000)["delta"])
    u = torch.rand(1, 26, device=CUDA)
    for mode in ("default", "error"):  # the first round compiles
        torch.cuda.set_sync_debug_mode(mode)
        try:
            prepared = one.prepare(shape, given.mask, given.slots)
            one.attend(given.qkv, given.rope, prepared, *given.caches[0])
            judge(p, None, codes, valid, u, bound)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_the_choice_measures_everything_that_runs(mode):
    shape = AttentionShape(2, 58, 20, 448, 64, torch.bfloat16, CUDA)
    found = choose(shape, layers=4, used=300, repeats=5, mode=mode)
    assert {"products", "sdpa", "triton"} <= set(found.milliseconds)
    every = {one.name for one in implementations()}
    assert set(found.milliseconds) | set(found.refused) == every
    assert found.milliseconds[found.name] == min(found.milliseconds.values())


def test_the_fused_acceptance_is_faster_than_the_tensor_code():
    p = cases.distributions(1, 58, 16384, top_k=1000, seed=1)
    q = cases.distributions(1, 58, 16384, top_k=1000, seed=2)
    codes, valid = cases.children(q, 4, seed=3)
    rule = LanternPP(cases.model(16384), k=10, lam=5.0)
    work = space(58, 16384, 4, True, CUDA)

    def milliseconds(run) -> float:
        graph = captured(run)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(20):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 20

    fused = milliseconds(lambda: judge(p, q, codes, valid, None, bound_of(rule), work))
    tensors = milliseconds(lambda: judged_by_tensors(rule, p, q, codes, valid))
    assert fused < tensors
