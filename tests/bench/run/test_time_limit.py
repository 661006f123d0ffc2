"""A decoder that hangs is stopped by `time_limit`, tried once more and then no longer."""

import signal
import time

import pytest

from bench.data.errors import TimeLimitError
from bench.run.finish import finish
from bench.run.limit import within
from bench.run.runner import run_study
from tests.bench import fakes

SLOW = "{decoder: fake_spec, name: slow, overrides: ['loop.seconds=30', 'loop.label=slow']}"


def test_what_is_in_time_is_returned_and_what_is_late_says_where_it_was_stopped() -> None:
    before = signal.getsignal(signal.SIGALRM)
    assert within(5.0, 1, lambda: 7) == within(None, 1, lambda: 7) == 7
    began = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"time_limit=0\.1, 2 images\) at .*time_limit\.py:"):
        within(0.1, 2, lambda: time.sleep(30))
    assert time.monotonic() - began < 20
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_hanging_decoder_is_tried_twice_and_the_others_go_on(fake_study) -> None:
    words = ["quality.reseeds=0", f"decoders=[fake_ar,{SLOW},fake_spec]", "time_limit=1"]
    config = fake_study(*words)
    result = run_study(config)
    rows = result.rows
    mine = rows[rows.decoder == "slow"]
    assert (mine.status == "failed").all() and len(mine) == 10
    assert sum(label == "slow" for label, *_ in fakes.CALLS) == 2
    late = mine.error.str.contains(r"stopped after 1 s \(time_limit=1\)")
    assert late.sum() == 1, "the warm-up is the other call"
    assert mine.error[~late].str.contains("not tried: 2 calls ran into time_limit=1").all()
    assert (rows[rows.decoder != "slow"].status == "ok").all()
    assert config.hash == fake_study(*words[:-1]).hash, "the limit may be changed in a folder"


def test_the_gate_does_not_wait_for_a_decoder_that_hangs(fake_study) -> None:
    words = ["quality.images=0", "latency.prompts=1", f"decoders=[{SLOW}]", "time_limit=0.2"]
    config = fake_study(*words, "gate=true")
    summary = finish(config, run_study(config))
    assert summary.exactness.tolist() == ["not checked"]
