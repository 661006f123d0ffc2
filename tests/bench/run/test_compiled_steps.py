"""A compiled step that computes something else is told from one that rounds otherwise. Faults of a
compiler are planted: the decoder that stands in for the compiled one is changed in one place."""

import copy
import types
from dataclasses import replace

import pytest
import torch

from bench.run.compiled_steps import compiled_fault
from decoders.api import DecoderError, Sampling
from decoders.compose import build_decoder
from decoders.execution import with_execution
from decoders.models.random_weights import random_model
from tests.decoders.compositions import SPECS

HALF = torch.bfloat16
SHAPE = {"vocab": 64, "grid": 5, "width": 64, "layers": 6, "heads": 8}
SAMPLING = Sampling(cfg=3.0, top_k=24)


def swapped_buffers(decoder):
    """Keys are written where values belong, and values where keys do."""
    target = decoder.model.target
    new_cache = target.new_cache

    def swapping(rows, capacity):
        cache = new_cache(rows, capacity)
        write = cache.write
        cache.write = lambda layer, index, both: write(layer, index, both.flip(0))
        return cache

    target.new_cache = swapping


def swapped_guidance(decoder):
    """The rows with a caption are taken for those without."""
    logits = decoder.model.target.logits
    decoder.model.target.logits = lambda hidden: logits(hidden.roll(len(hidden) // 2, 0))


def stale_mask(decoder):
    """A forward reads the mask of the step before."""
    forward, last = decoder.model.target.forward_codes, []

    def stale(codes, positions, slots, mask, cache):
        last.append(mask.clone())
        return forward(codes, positions, slots, last[max(0, len(last) - 2)], cache)

    decoder.model.target.forward_codes = stale


def stale_mask_of_a_draft(decoder):
    """The mask is made once."""
    mask_of, first = decoder.mask_of, []

    def once(state, draft):
        first.append(mask_of(state, draft))
        return first[0]

    decoder.mask_of = once


def one_wrong_head(decoder):
    """One head of 8 in one layer of 6 is that of its neighbour."""
    weight = decoder.model.target.layers[4].attention.wo.weight
    size = weight.shape[1] // SHAPE["heads"]
    weight[:, :size] = weight[:, size : 2 * size]


def one_code_more(decoder):
    """The filter keeps a code more than it should."""
    decoder.sampling = replace(decoder.sampling, top_k=decoder.sampling.top_k + 1)


def no_path(decoder):
    """What a step accepted is not kept in the cache."""
    target = decoder.model.target
    new_cache = target.new_cache

    def forgetting(rows, capacity):
        cache = new_cache(rows, capacity)
        cache.commit = lambda source, destination: None
        return cache

    target.new_cache = forgetting


PLANTED = [
    ("ar", swapped_buffers), ("ar", swapped_guidance), ("ar", stale_mask), ("ar", one_wrong_head),
    ("eagle2", swapped_buffers), ("eagle2", stale_mask), ("eagle2", stale_mask_of_a_draft),
    ("eagle2", one_wrong_head), ("eagle2", one_code_more), ("lantern_pp", no_path),
    ("lantern_pp", stale_mask_of_a_draft), ("lantern_pp", one_wrong_head),
]  # fmt: skip


def pair(name, sampling=SAMPLING, dtype=HALF, change=None):
    """A decoder twice, each on weights of its own; the first is changed."""
    decoders = []
    for _ in range(2):
        model = random_model(**SHAPE, dtype=dtype)
        decoders.append(build_decoder(model, SPECS[name], sampling))
    if change is not None:
        with torch.inference_mode():
            change(decoders[0])
    return decoders


def rounded_otherwise(decoder):
    """Every layer adds up in another order, and rounds once less."""
    for layer in decoder.model.target.layers:
        module = layer.feed_forward
        plain = copy.deepcopy(module).float()
        module.forward = types.MethodType(
            lambda self, x, plain=plain: plain(x.float()).to(x.dtype), module
        )


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("change", [None, rounded_otherwise])
@pytest.mark.parametrize("name", ["ar", "eagle2", "lantern_pp"])
def test_rounding_is_no_fault(name, change, temperature):
    sampling = replace(SAMPLING, temperature=temperature)
    assert compiled_fault(*pair(name, sampling, change=change), "a b", 0) == ""


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize(("name", "change"), PLANTED)
def test_a_planted_fault_is_found(name, change, dtype):
    assert compiled_fault(*pair(name, dtype=dtype, change=change), "a b", 0)


@pytest.mark.parametrize("change", [swapped_buffers, stale_mask, one_wrong_head])
def test_a_planted_fault_is_found_at_temperature_0(change):
    greedy = replace(SAMPLING, temperature=0.0)
    assert compiled_fault(*pair("ar", greedy, change=change), "a b", 0)


def test_draws_with_other_numbers_are_found_behind_equal_logits():
    first, second = pair("ar")
    commit = first.commit

    def mirrored(state, logits):
        uniform = state.noise.uniform
        uniform.copy_(1 - uniform)
        commit(state, logits)
        uniform.copy_(1 - uniform)

    first.commit = mirrored
    assert "from equal logits" in compiled_fault(first, second, "a b", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar", "lantern_pp"])
def test_compiled_pieces_pass(name):
    fast = with_execution(random_model(vocab=24, grid=4, dtype=HALF), "compile", {1})
    models = fast, replace(fast, execution=fast.execution.uncompiled())
    decoders = [build_decoder(model, SPECS[name], SAMPLING) for model in models]
    assert compiled_fault(*decoders, "a b", 0) == ""
    assert decoders[0].prepared


def test_a_target_that_is_no_module_is_refused():
    decoders = pair("ar")
    decoders[1].model = replace(decoders[1].model, target=types.SimpleNamespace(vocab_size=4))
    with pytest.raises(DecoderError, match=r"make it an nn\.Module"):
        compiled_fault(*decoders, "a b", 0)
