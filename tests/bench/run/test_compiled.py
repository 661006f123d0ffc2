"""A backend that compiles or captures steps: few sizes of batches, and a state that is dropped
behind its last call."""

import gc
import weakref
from collections import Counter

import pytest
import torch

from bench.run.session import Session
from bench.run.study import run_study
from tests.bench import fakes
from tests.decoders.execution.test_backends import Replayed

KEY = ["decoder", "protocol", "prompt_index"]
UNFREEZE = gc.unfreeze  # which tests do without (tests/conftest.py)


def test_a_batch_that_does_not_fit_is_halved_once_and_keeps_what_was_captured(
    fake_study, monkeypatch, caplog
):
    """Both decoders keep a captured step for the second block while quality images are decoded."""
    generate, sizes = fakes.FakeLoop.generate, []

    def small(self, text, noise, *, pairs=0):
        sizes.append(len(text.mask))
        if len(text.mask) > 2:
            raise RuntimeError("CUDA out of memory")
        return generate(self, text, noise, pairs=pairs)

    monkeypatch.setattr(fakes.FakeLoop, "generate", small)
    monkeypatch.setattr(fakes.FakeLoop, "refills", False)
    words = ["decoders=[fake_ar,fake_spec]", "latency.blocks=2", "quality.reseeds=0"]
    rows = run_study(fake_study(*words)).rows
    assert set(rows.status) == {"ok"}
    assert {*rows[rows.protocol == "quality"].batch} == {2}
    assert sizes.count(4) == 2, "once for each decoder"
    assert caplog.text.count("4 images at once are too many") == 2


class Cyclic:
    """A state that refers to itself, as one that a compiler has seen."""

    def __init__(self) -> None:
        self.itself = self


def test_a_state_is_freed_behind_the_last_call_of_its_size(fake_study, monkeypatch):
    """Though it refers to itself, and was frozen when the warm-up made it."""
    generate, run_job = fakes.FakeLoop.generate, Session.run_job
    states, alive = {}, []

    def recording(self, text, noise, *, pairs=0):
        generation = generate(self, text, noise, pairs=pairs)
        size = len(generation.codes)
        if not isinstance(self.prepared[size], Cyclic):
            self.prepared[size] = Cyclic()
            states[self.label, size] = weakref.ref(self.prepared[size])
        return generation

    def watched(self, job):
        run_job(self, job)
        alive.append({key for key, state in states.items() if state() is not None})

    monkeypatch.setattr(fakes.FakeLoop, "generate", recording)
    monkeypatch.setattr(fakes.FakeLoop, "refills", False)
    monkeypatch.setattr(Session, "run_job", watched)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    try:
        few = "latency.blocks=1", "latency.prompts=2"
        run_study(fake_study("decoders=[fake_ar,fake_spec]", *few))
    finally:
        gc.freeze()  # the tests after this one collect little again
    timed = {("ar", 1), ("spec", 1)}
    assert alive[:2] == [timed] * 2, "timed in turns, so both are kept to the last prompt"
    assert alive[2] < timed and len(alive[2]) == 1 and not alive[3]
    # AR is decoded again under another seed, before the other decoder.
    assert alive[4:] == [{("ar", 4), ("ar", 2)}, set(), set()]


class Stale(Replayed):
    """Replays that read the noise of the image that was captured."""

    def begin(self, loop, state):
        if state.shape in loop.prepared:
            state.noise = loop.prepared[state.shape].state.noise
        return super().begin(loop, state)


@pytest.mark.parametrize(("how", "fails"), [(Replayed, False), (Stale, True)])
def test_a_captured_step_that_reads_another_image_fails_its_decoder(
    how, fails, fake_study, monkeypatch
):
    execution = how()
    monkeypatch.setattr("decoders.execution.execution", lambda *_: execution)
    few = "quality.images=0", "latency.prompts=2", "latency.blocks=1", "latency.busy=1"
    rows = run_study(fake_study("model=gpt", "decoders=[ar,sjd]", *few)).rows
    assert [("random numbers of another image" in error) for error in rows.error] == [fails] * 4


class Noting(Replayed):
    """Notes what is captured; with `full`, memory holds no graph of more than three images."""

    full = False

    def _capture_step(self, loop, state, *given, **options):
        self.captures[type(loop).__name__, state.shape] += 1
        if self.full and state.shape > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")
        return super()._capture_step(loop, state, *given, **options)


class Full(Noting):
    full = True


def test_quality_batches_are_captured_once_or_else_run_eagerly_and_rows_say_which(
    fake_study, monkeypatch, caplog, tmp_path
):
    """A decoder has four of them in two blocks, the last one smaller."""
    monkeypatch.setattr("bench.run.schedule.BATCHES_PER_CALL", 1)
    few = "latency.prompts=2", "latency.blocks=2", "latency.busy=1", "latency.warmup_max=1"
    words = "model=gpt", "decoders=[ar,sjd]", "quality.images=14", "quality.reseeds=0", *few
    codes = []
    for kind in (Noting, Full):
        how = kind((1,))
        how.captures = Counter()

        def execution(mode, timed, device, untimed, how=how):
            how.sizes, how.uncompiled_sizes = timed, untimed
            return how

        monkeypatch.setattr("decoders.execution.execution", execution)
        rows = run_study(fake_study(*words, f"run_dir={tmp_path / kind.__name__}")).rows
        assert set(rows.status) == {"ok"}
        assert {*how.captures.values()} == {1} and len(how.captures) == 6
        quality = rows[rows.protocol == "quality"]
        ways = quality.groupby("batch").path.agg(lambda x: {p.split("=")[-1] for p in x})
        assert ways.to_dict() == {2: {"captured"}, 4: {"eager" if how.full else "captured"}}
        codes.append(rows.sort_values(KEY).codes.map(list).tolist())
        said = caplog.text.count("goes on operator by operator in batches of 4")
        assert said == 2 * how.full, "once for each decoder"
    assert "4 images cannot be captured: CUDA out of memory." in caplog.text
    assert codes[0] == codes[1]
