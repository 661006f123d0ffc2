"""The kernels natively on a GPU: the interpreter's cases again, at full sizes, captured, and
without a wait for the device; and those of the pretended card, 100,000 launches each."""

from contextlib import nullcontext

import pytest
import torch

from decoders.kernels import reference
from decoders.kernels.candidates import AttentionShape, implementation, implementations
from decoders.kernels.choose import choose, inputs
from decoders.kernels.runtime import without_waits
from tests.decoders.kernels.cases_attention import *  # noqa: F403
from tests.decoders.kernels.cases_recorded import *  # noqa: F403
from tests.decoders.kernels.cases_sampling import *  # noqa: F403

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
@pytest.mark.parametrize(
    ("heads", "size", "group"), [(20, 64, 1), (32, 100, 1), (32, 128, 1), (32, 128, 4)]
)
def test_official_shapes_captured_equal_the_reference(queries, heads, size, group):
    shape = AttentionShape(2, queries, heads, 448, size, torch.bfloat16, CUDA, group)
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


def test_the_kernel_does_not_wait_for_the_device():
    shape = AttentionShape(2, 26, 8, 256, 64, torch.bfloat16, CUDA)
    given = inputs(shape, 1, 200)
    one = implementation("triton")
    for context in (nullcontext(), without_waits()):  # the first round compiles
        with context:
            prepared = one.prepare(shape, given.mask, given.slots)
            one.attend(given.qkv, given.rope, prepared, *given.caches[0])


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_the_choice_measures_everything_that_runs(mode):
    shape = AttentionShape(2, 58, 20, 448, 64, torch.bfloat16, CUDA)
    found = choose(shape, layers=4, used=300, repeats=5, mode=mode)
    assert {"products", "sdpa", "triton"} <= set(found["milliseconds"])
    every = {one.name for one in implementations()}
    assert set(found["milliseconds"]) | set(found["refused"]) == every
    assert found["milliseconds"][found["name"]] == min(found["milliseconds"].values())
