"""Attention on a card runs the operator that was chosen by its name: also in a later process that
finds compiled graphs of another choice, in training, and as a row's `path` says."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.api import Sampling
from decoders.compose import build_decoder
from decoders.execution import compiled
from decoders.execution.cuda_graphs import Graphed
from decoders.models.nets import attention
from decoders.models.nets.attention import OPERATORS, attend, attending
from decoders.models.random_weights import random_model
from tests.decoders.compositions import EVERY, SPECS, images
from tests.decoders.execution.pretended_card import pretended

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
ON_CPU = {
    "cudnn": torch.ops.aten._scaled_dot_product_attention_math.default, "efficient": FLASH,
}  # fmt: skip


class Net:
    def mixed(self, query, keys, values, bias):
        name, _ = attention.chosen
        return (attention.attend_by(name, query, keys, values, bias),)


def ran(*choices):
    """For each choice, the operator that a compiled piece ran, and how many of its graphs the
    compiler had kept."""
    query, keys, values = torch.randn(3, 2, 4, 64, 32)
    given, found = (query, keys, values, torch.zeros(2, 1, 64, 64)), []
    hits = torch._dynamo.utils.counters["aot_autograd"]
    with pytest.MonkeyPatch.context() as patch:
        # The profiler sees no operator that C++ calls.
        patch.setitem(compiled.CPU_OPTIONS, "cpp_wrapper", False)
        for name, operator in ON_CPU.items():
            patch.setitem(OPERATORS, name, partial(masked, operator))
        for name in choices:
            torch._dynamo.reset()
            before = hits["autograd_cache_hit"]
            with torch.inference_mode(), attending(name, 32):
                piece = compiled.Compiled((1,)).piece(Net().mixed, torch.device("cpu"))
                piece(*given)
                with torch.profiler.profile() as watched:
                    piece(*given)
            flash = any("flash_attention_for_cpu" in e.key for e in watched.key_averages())
            found.append(("efficient" if flash else "cudnn", hits["autograd_cache_hit"] - before))
    return found


def masked(operator, query, keys, values, bias, keep, scale):
    return operator(query, keys, values, attn_mask=bias, scale=scale)


@pytest.mark.slow
def test_a_later_process_runs_the_attention_that_it_chose(tmp_path, monkeypatch):
    """Both keep compiled graphs in one folder, and the second finds those of the first there."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = [
        subprocess.run(
            [sys.executable, "-c", f"from {__name__} import ran; print(ran({choices}))"],
            cwd=Path(attention.__file__).parents[3], text=True, capture_output=True, check=True,
        ).stdout.splitlines()[-1]
        for choices in ("'cudnn'", "'efficient', 'cudnn'")
    ]  # fmt: skip
    assert found == ["[('cudnn', 0)]", "[('efficient', 0), ('cudnn', 1)]"]


class Called(TorchDispatchMode):
    """Notes attention's operators and the masks that they were given."""

    def __init__(self):
        super().__init__()
        self.names, self.masks = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(func):
            self.names.append(next((n for n, o in OPERATORS.items() if o is func), str(func)))
            self.masks.append(args[3])
        return func(*args, **(kwargs or {}))


def operators_of(slots, head_dim=64, trains=False):
    """What attention calls on a card that is not there."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), Called() as called:
        query, keys, values = (
            torch.empty(2, 4, n, head_dim, device="cuda", dtype=torch.bfloat16)
            for n in (3, slots, slots)
        )
        bias = torch.empty(2, 1, 3, slots, device="cuda", dtype=torch.bfloat16)
        attend(query.requires_grad_(trains), keys, values, bias)
    return called


@pytest.mark.parametrize("name", OPERATORS)
def test_the_chosen_operator_is_called_for_heads_of_the_size_that_was_measured(name):
    with attending(name, 64):
        assert operators_of(16).names == [name]
        assert name not in operators_of(16, head_dim=32).names
    assert name not in operators_of(16).names


def test_training_never_takes_cudnns_gradients():
    """They are NaN at lengths of 64 modulo 128."""
    with attending("cudnn", 64):
        assert operators_of(192, trains=True).names == ["efficient"]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("slots", [16, 65])
def test_a_mask_of_any_width_has_aligned_rows(name, slots):
    with attending(name, 64):
        (mask,) = operators_of(slots).masks
    assert mask.shape == (2, 4, 3, slots)
    assert all(step % 8 == 0 for step in mask.stride()[:-1]) and mask.stride(-1) == 1


def test_the_path_of_a_captured_step_names_the_operator_that_ran(monkeypatch):
    calls = []

    def named(name):
        def operator(query, keys, values, bias, keep, *, scale):
            calls.append(name)
            return FLASH(query, keys, values, attn_mask=bias.contiguous(), scale=scale)

        return operator

    for name in OPERATORS:
        monkeypatch.setitem(OPERATORS, name, named(name))
    with pretended():
        model = random_model(vocab=16, grid=3, device="cuda")
        graphed = Graphed(EVERY)
        model = replace(graphed.prepare(model), execution=graphed)
        assert {*calls} == {*OPERATORS}  # each was timed
        calls.clear()
        trace = images(build_decoder(model, SPECS["ar"], Sampling(cfg=2.0)), ["a b"]).trace
    assert [*{*calls}] == [trace.path["attention"]]


class Pretending(Graphed):
    """Its pieces are said to be compiled."""

    def _compiles(self, device):
        return True

    def _compile_pieces(self, loop, state):
        state.path = dict.fromkeys(state.path, "compiled")
        return loop.pieces()

    def compile_prefill(self, target, text, copies, cache):
        return target.prefill


@pytest.mark.parametrize(("big", "ran"), [(True, "measured"), (False, "library")])
def test_the_path_says_whether_the_card_is_too_small_for_the_compilers_products(
    monkeypatch, big, ran
):
    monkeypatch.setattr("torch._inductor.utils.is_big_gpu", lambda _: big)
    with pretended():
        model = replace(random_model(vocab=16, grid=3, device="cuda"), execution=Pretending(EVERY))
        trace = images(build_decoder(model, SPECS["ar"], Sampling(cfg=2.0)), ["a b"]).trace
    assert trace.path == {"forward": "compiled", "products": ran}
