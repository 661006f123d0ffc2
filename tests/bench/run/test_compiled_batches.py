"""A backend that compiles: few sizes of batches, and a bar that says how long it takes."""

import dataclasses
from types import SimpleNamespace
from typing import Any

from bench.config.schema import variants
from bench.run.decoders import Decoders
from bench.run.runner import run_study
from bench.run.schedule import latency_jobs, quality_jobs
from decoders.api import Sampling
from decoders.execution.eager import Eager
from tests.bench import fakes

KEY = ["decoder", "protocol", "prompt_index"]


def test_a_last_batch_is_filled_up_where_another_size_would_be_compiled(fake_study, tmp_path):
    eager = run_study(fake_study(f"run_dir={tmp_path / 'eager'}")).rows
    assert {size for _, _, size in fakes.CALLS} == {1, 2, 4}
    fakes.CALLS.clear()
    compiled = run_study(fake_study("backend.execution=compile")).rows
    assert {size for _, _, size in fakes.CALLS} == {1, 4}
    assert len(compiled) == len(eager)
    each = [rows.sort_values(KEY).reset_index(drop=True) for rows in (eager, compiled)]
    for column in (*KEY, "prompt", "image", "image_hash"):
        assert each[0][column].equals(each[1][column]), column
    for one, other in zip(each[0].codes, each[1].codes, strict=True):
        assert one.tolist() == other.tolist()


class Slow(Eager):
    """Says that it has compiled for so many seconds."""

    seconds = 0.0

    def compiles(self, size: int) -> bool:
        return size == 1

    def compiling(self) -> float:
        return self.seconds

    def announce(self, tell: Any) -> None:
        self.tell = tell


def test_the_bar_says_how_much_is_left_to_compile(fake_study):
    config, how, said = fake_study(), Slow(), list[str]()
    every = variants(config, Sampling())
    decoders = Decoders(dataclasses.replace(fakes.load_model(), execution=how), every)
    jobs = latency_jobs(config, every)
    decoders.expect([*jobs, *quality_jobs(config, every)])
    decoders.announce(how, SimpleNamespace(set_postfix_str=said.append))
    for job in jobs[:2]:
        decoders.of(job, None)
        for phase in ("draft", "forward", ""):
            how.tell(phase)
        how.seconds += 90
    assert said == [
        "compiling fake_ar (drafting), 3 to go",
        "compiling fake_ar (forward), 3 to go",
        "fake_ar",
        "compiling fake_spec (drafting), 2 to go, about 3 min",
        "compiling fake_spec (forward), 2 to go, about 3 min",
        "fake_spec",
    ]
