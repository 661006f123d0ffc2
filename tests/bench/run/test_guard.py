"""A plug-in that changes what all decoders share ends the run, with a message that names it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.run.guard import SharedStateError
from bench.run.runner import run_study
from tests.bench import fakes

CHANGES = {
    "weights": lambda net: net.weight.data.mul_(0.9),
    "buffers": lambda net: net.scale.data.add_(1e-3),
    "dtype": lambda _: torch.set_default_dtype(torch.float64),
    "device": lambda _: torch.set_default_device("meta"),
}
SAYS = {
    "weights": "text.net.weight",
    "buffers": "text.net.scale",
    "dtype": "torch's default dtype",
    "device": "torch's default device",
}


class Loop(fakes.FakeLoop):
    """`label` says what it changes."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.net = model.text.net

    def generate(self, *args: Any, **options: Any) -> Any:
        found = super().generate(*args, **options)
        CHANGES[self.label](self.net)
        return found


def load_model(device: str, dtype: str, seconds: float) -> Any:
    """The toy model with a net of its own to change."""
    model = fakes.load_model(device, dtype, seconds)
    model.text.net = torch.nn.Linear(4, 4)
    model.text.net.register_buffer("scale", torch.ones(3))
    return model


@pytest.mark.parametrize("what", CHANGES)
def test_it_is_named_and_no_row_is_kept(what, fake_study):
    here = "tests.bench.run.test_guard"
    words = f"['loop._target_={here}.Loop', 'loop.label={what}']"
    own = f"{{decoder: fake_spec, name: mine, overrides: {words}}}"
    config = fake_study(f"model._target_={here}.load_model", f"decoders=[fake_ar,{own}]")
    with pytest.raises(SharedStateError, match=rf"mine \({here}\.Loop.*\) has changed") as error:
        run_study(config)
    assert SAYS[what] in str(error.value)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert not fakes.recorded(Path(config.run_dir)), "its warm-up came before every row"
