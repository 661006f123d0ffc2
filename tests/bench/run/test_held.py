"""What recorded steps hold, and when: the runner drops a state behind its last call."""

import gc
import weakref

import pytest

from bench.run.decoders import Decoders
from bench.run.runner import Runner, run_study
from bench.run.shards import Shard, run_shard
from tests.bench import fakes

UNTIMED = "latency.prompts=0"
UNFREEZE = gc.unfreeze  # which tests do without (tests/conftest.py)


def held() -> set[tuple[str, int]]:
    """(decoder, batch) of what is recorded at the moment."""
    return {(label, size) for label, size, kept in fakes.PREPARED if size in kept}


@pytest.fixture
def moments(monkeypatch) -> list[set[tuple[str, int]]]:
    """What is held behind every batch of a run, before any of it is dropped."""
    found: list[set[tuple[str, int]]] = []
    run = Runner.run_job

    def watched(self, job):
        run(self, job)
        found.append(held())

    monkeypatch.setattr(Runner, "run_job", watched)
    return found


def test_a_decoder_is_done_behind_its_last_batch_of_each_size(fake_study, moments):
    run_study(fake_study("decoders=[fake_ar,fake_spec]", "latency.blocks=1"))
    both = {("ar", 1), ("spec", 1)}
    assert moments[:7] == [both] * 7, "timed in turns, so both are kept to the last prompt"
    assert moments[7] in ({("ar", 1)}, {("spec", 1)})
    # AR is decoded again under another seed, behind the other decoder.
    assert moments[8:] == [
        {("ar", 4)},
        {("ar", 4), ("ar", 2)},
        {("ar", 4), ("ar", 2), ("spec", 4)},
        {("ar", 4), ("ar", 2), ("spec", 2)},
        {("ar", 4), ("ar", 2)},
        {("ar", 2)},
    ]


def test_a_shard_holds_one_decoder_at_a_time(fake_study, moments):
    config = fake_study("quality.reseeds=0", "decoders=[fake_ar,fake_spec]", UNTIMED)
    run_shard(config, Shard(0, 1))
    assert moments == [{("ar", 4)}, {("ar", 2)}, {("spec", 4)}, {("spec", 2)}]
    assert held() == set()


class Cyclic:
    """A state that refers to itself, as one that a compiler has seen."""

    def __init__(self) -> None:
        self.own = self


def test_a_dropped_state_is_freed_though_it_refers_to_itself(fake_study, monkeypatch):
    generate, done = fakes.FakeLoop.generate, Decoders.done
    made, alive = [], []

    def recording(self, text, noise, *, pairs=0):
        found = generate(self, text, noise, pairs=pairs)
        size = len(found.codes)
        if not isinstance(self.prepared[size], Cyclic):
            self.prepared[size] = Cyclic()
            made.append(weakref.ref(self.prepared[size]))
        return found

    def watched(self, job):
        done(self, job)
        alive.append(sum(one() is not None for one in made))

    monkeypatch.setattr(fakes.FakeLoop, "generate", recording)
    monkeypatch.setattr(Decoders, "done", watched)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)  # what is dropped is freed though it was frozen
    try:
        run_study(fake_study("decoders=[fake_ar,fake_spec]", "latency.blocks=1"))
    finally:
        gc.freeze()  # the tests after this one collect little again
    assert alive[:8] == [2] * 6 + [1, 0], "made by the warm-up, whose objects are frozen"
    assert alive[-1] == 0 and len(made) == 6
