"""What a decoder does wrong becomes failed rows, or ends the run with a message that names it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import EXPLAINED, DeviceLostError
from bench.run.contender import SharedStateError
from bench.run.study import finish, run_study
from tests.bench import fakes


def bad(*words: str) -> str:
    """A decoder with these settings."""
    return f"{{decoder: fake_spec, name: bad, overrides: {[*words]}}}"


@pytest.mark.parametrize(
    ("words", "error", "timed", "quality"),
    [
        (["loop.fail_at=number 2"], "NumericalError: NaN logits at step 3", 3, 0),
        (["loop.fault_at=number 2", "loop.fault=out of memory"], "AcceleratorError: CUDA", 3, 0),
        (["loop.broken=build"], "DecoderError: it cannot be run: RuntimeError: this plug-in", 0, 0),
        (["loop.broken=codes"], "DecoderError: codes must lie in 0..31", 0, 0),
    ],
)
def test_what_a_decoder_raises_becomes_failed_rows_and_the_others_go_on(
    fake_study, words, error, timed, quality
):
    config = fake_study(f"decoders=[fake_ar,{bad(*words)}]")
    result = run_study(config)
    rows = result.rows
    failed = rows[rows.status == "failed"]
    assert (failed.decoder == "bad").all() and failed.error.str.startswith(error).all()
    assert len(rows[rows.decoder == "fake_ar"]) == 16 and len(failed) == 10 - timed - quality
    summary = finish(result).tables["summary"].set_index("decoder")
    assert summary.status["fake_ar"] == "ok"
    count = f"{len(failed)} of 10 images failed" if timed else "failed"
    assert summary.status["bad"].startswith(f"{count}: {error}")
    assert summary.loc["bad", ["n_latency", "n_quality"]].tolist() == [timed, quality]


@pytest.mark.parametrize(
    ("where", "before"),
    [("number 0", {}), ("number 2", {"bad": 2, "fake_ar": 3, "fake_spec": 3})],
    ids=["warming up", "third image"],
)
def test_a_decoder_that_stops_the_gpu_ends_the_run_and_a_resume_goes_on(fake_study, where, before):
    lost = bad(f"loop.fault_at={where}")
    config = fake_study(f"decoders=[fake_ar,{lost},fake_spec]", "latency.blocks=1")
    with pytest.raises(DeviceLostError, match=r"bad has stopped the GPU \(AcceleratorError: CUDA"):
        run_study(config)
    recorded = Counter(r["decoder"] for r in fakes.recorded(Path(config.run_dir)))
    assert recorded == before | {"bad": 10}, "nothing of others after that"
    rows = run_study(config).rows
    failed = rows[rows.status == "failed"]
    assert set(failed.decoder) == {"bad"} and len(failed) == 10 - before.get("bad", 0)
    assert failed.error.str.contains("an illegal memory access").all()
    assert len(rows) == 16 + 10 + 10


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["acceptance.k=33"], "k must be at most 32"),
        (["prompts.word='été'"], "cannot read prompt p0: not English"),
        (["loop._target_=tests.bench.fakes:FakeLop"], "FakeLop"),
        (["prompts=classes", "quality.images=1001"], "has 1,000 prompts, 1,001 are wanted"),
    ],
)
def test_impossible_settings_stop_before_anything_is_decoded(fake_study, words, expected):
    config = fake_study(*words)
    with pytest.raises(EXPLAINED) as error:
        run_study(config)
    assert expected in str(error.value)
    assert fakes.CALLS == [] and not Path(config.run_dir).exists(), "it binds nobody"


# ---- a plug-in that changes what all decoders share ---------------------------------------------

CHANGES = {
    "weights": ("text.net.weight", lambda net: net.weight.data.mul_(0.9)),
    "buffers": ("text.net.scale", lambda net: net.scale.data.add_(1e-3)),
    "dtype": ("torch's default dtype", lambda _: torch.set_default_dtype(torch.float64)),
    "device": ("torch's default device", lambda _: torch.set_default_device("meta")),
}


class Loop(fakes.FakeLoop):
    """`label` says what it changes."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.net = model.text.net

    def generate(self, *args: Any, **options: Any) -> Any:
        generation = super().generate(*args, **options)
        CHANGES[self.label][1](self.net)
        return generation


def load_model(device: str, dtype: str, seconds: float) -> Any:
    """The toy model with a net to change."""
    model = fakes.load_model(device, dtype, seconds)
    model.text.net = torch.nn.Linear(4, 4)
    model.text.net.register_buffer("scale", torch.ones(3))
    return model


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_all_share_is_named_and_no_row_is_kept(what, fake_study):
    here = "tests.bench.run.test_failures"
    changing = bad(f"loop._target_={here}.Loop", f"loop.label={what}")
    config = fake_study(f"model._target_={here}.load_model", f"decoders=[fake_ar,{changing}]")
    with pytest.raises(
        SharedStateError, match=rf"bad \({here}\.Loop.*\) has changed {CHANGES[what][0]}"
    ):
        run_study(config)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert not fakes.recorded(Path(config.run_dir)), "its warm-up came before every row"
