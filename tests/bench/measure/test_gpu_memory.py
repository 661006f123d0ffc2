"""Peak memory on a card that is not there: allocated where steps run operator by operator, and what
is reserved where they are captured."""

import pytest
import torch

from bench.measure.meter import Meter


class Memory:
    """Counts as torch.cuda does."""

    def __init__(self):
        self.allocated, self.most, self.reserved = 5e9, 0.0, 9e9  # bytes

    def allocate(self, size):
        self.allocated += size
        self.most = max(self.most, self.allocated)


@pytest.fixture
def memory(monkeypatch):
    memory = Memory()
    answers = {
        "reset_peak_memory_stats": lambda _: setattr(memory, "most", memory.allocated),
        "max_memory_allocated": lambda _: memory.most,
        "max_memory_reserved": lambda _: memory.reserved,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(f"torch.cuda.{name}", answer)
    return memory


def test_an_uncaptured_call_has_the_peak_of_its_own_allocations(memory):
    meter, peaks = Meter(torch.device("cuda")), []
    for size in (2e9, 1e9):
        with meter.call():
            memory.allocate(size)
            memory.allocated -= size
        peaks.append(meter.peak_mb)
    assert peaks == [7000.0, 6000.0]


def test_a_captured_call_has_what_graphs_reserve(memory):
    meter = Meter(torch.device("cuda"), captured=True)
    with meter.call():
        pass
    assert meter.peak_mb == 9000.0
