"""The pretended card keeps the rules of CUDA graphs that tests of recorded steps rely on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.kernels.runtime import capturing
from tests.decoders.execution.pretended_card import Graph, pretended


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    with pretended() as found:
        yield found


def recorded(step: Callable[[], Any]) -> tuple[Graph, Any]:
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def test_tensors_say_that_they_are_on_the_card() -> None:
    x = torch.zeros(3, device="cuda")
    assert x.device.type == "cuda" and (x + 1).is_cuda
    there = x.cpu()
    x.add_(1)
    assert there.tolist() == [0, 0, 0]  # a copy


def test_recording_leaves_what_was_there_and_replays_read_what_is_there() -> None:
    x = torch.zeros(2, device="cuda")
    graph, out = recorded(lambda: x.add_(1) * 2)
    assert x.tolist() == [0, 0] and out.isnan().all()
    for count in (1, 2):
        graph.replay()
        assert x.tolist() == [count] * 2 and out.tolist() == [2 * count] * 2
    x.fill_(5)
    graph.replay()
    assert out.tolist() == [12, 12]


def test_python_is_not_replayed_and_a_tensor_bound_anew_stays_behind():
    """A step that counts in Python counts once."""
    x, count, kept = torch.zeros(1, device="cuda"), [0], {"y": torch.zeros(1, device="cuda")}
    first = kept["y"]

    def step() -> None:
        count[0] += 1
        x.add_(count[0])
        kept["y"] = kept["y"] + 1

    graph, _ = recorded(step)
    graph.replay()
    graph.replay()
    assert x.tolist() == [2] and first.tolist() == [0] and kept["y"].tolist() == [1]


def test_memory_of_the_recording_belongs_to_others_between_replays() -> None:
    """What one replay leaves in memory that nobody holds, the next one does not find."""
    x, out = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")
    scratch: list[Tensor] = []

    def step() -> None:
        if not scratch:
            scratch.append(torch.empty(2, device="cuda"))
        out.copy_(scratch[0])
        scratch[0].copy_(x)

    graph, _ = recorded(step)
    graph.replay()
    graph.replay()
    assert out.tolist() == [1, 1]
    scratch.clear()
    graph.replay()
    graph.replay()
    assert out.isnan().all()


def test_memory_that_is_freed_may_not_be_replayed() -> None:
    held = [torch.ones(2, device="cuda")]
    graph, out = recorded(lambda: held[0] + 1)
    graph.replay()
    assert out.tolist() == [2, 2]
    held.clear()
    with pytest.raises(AssertionError, match="memory that was freed"):
        graph.replay()


WAITS: list[Callable[[Tensor], Any]] = [
    lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: bool(x[0] > 0), lambda x: x.cpu(),
    lambda x: x.to("cpu"), lambda x: x.tolist(), lambda x: x[x > 0], lambda x: x.nonzero(),
]  # fmt: skip


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_is_refused(wait: Callable[[Tensor], Any], inference: bool) -> None:
    before = torch.cuda.current_stream()
    with torch.inference_mode(inference):
        x = torch.ones(2, device="cuda")
        wait(x)
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="synchronizing"):
            wait(x)
        torch.cuda.set_sync_debug_mode("default")
        with pytest.raises(RuntimeError, match="previous error during capture"):
            recorded(lambda: wait(x))
        assert torch.cuda.current_stream() is not before
        torch.cuda.set_stream(before)
        with pytest.raises(RuntimeError), capturing(torch.cuda.CUDAGraph()):
            torch.cuda.synchronize()
        assert torch.cuda.current_stream() is before
        graph, out = recorded(lambda: x + 1)
        graph.replay()
        assert out.tolist() == [2, 2]
