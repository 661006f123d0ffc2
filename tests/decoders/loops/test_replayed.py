"""Replayed acceptance: steps accept what a recording says, are otherwise computed like any other,
and settings that cannot be replayed are refused."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from decoders.api import CodeKind, DecoderError, Generation, Sampling
from decoders.execution.eager import Eager
from decoders.loops.replayed import Replayed, even_lengths, recorded_lengths
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.grown import Grown
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.by_node import ByNode
from decoders.verify.lantern import LanternPP
from tests.decoders.execution.test_no_host_sync import Waits

GRID = 8
LENGTH = GRID * GRID
MODEL = random_model(vocab=24, grid=GRID, seed=1)
RULE = LanternPP(MODEL, k=4, lam=3.0)


def built(tree: Any, temperature: float = 1.0, **settings: Any) -> Replayed:
    sampling = Sampling(temperature=temperature, cfg=2.0)
    return Replayed(MODEL, sampling, Grown(Eagle(MODEL), tree), ByNode(RULE), **settings)


def images(decoder: Any, prompts: list[str]) -> Generation:
    text = MODEL.text.encode(["x"] * len(prompts))
    return decoder.generate(text, Noise.for_prompts(0, prompts, LENGTH))


def recording(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run's folder with these rows."""
    usual = {"protocol": "latency", "seed": 0, "decoder": "spec", "status": "ok"}
    whole = [{**usual, "prompt_index": i, "drafter_calls": 9, **row} for i, row in enumerate(rows)]
    schema = pa.schema(
        [("protocol", pa.string()), ("prompt_index", pa.int64()), ("seed", pa.int64()),
         ("decoder", pa.string()), ("status", pa.string()), ("drafter_calls", pa.int64()),
         ("accepted", pa.list_(pa.int16()))]
    )  # fmt: skip
    pq.write_table(pa.Table.from_pylist(whole, schema=schema), folder / "records.parquet")
    return folder


@pytest.mark.parametrize("mal", [1.0, 1.5, 2.25, 3.6, 4.0])
def test_a_stated_mean_is_met_by_lengths_as_even_as_can_be(mal: float) -> None:
    lengths = even_lengths(mal, depth=3)
    assert mean(lengths) + 1 == pytest.approx(mal)
    assert max(lengths) - min(lengths) <= 1
    assert even_lengths(3.6, 5) == [2, 3, 2, 3, 3]


@pytest.mark.parametrize("tree", [Chain(depth=4), Static(choices="eagle_25")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_step_accepts_what_was_asked_for(tree: Any, temperature: float) -> None:
    trace = images(built(tree, temperature, mal=3.6), ["a", "b"]).trace
    for row in trace.accepted.tolist():
        steps = [n for n in row if n >= 0]
        assert steps[:-1] == ([2, 3, 2, 3, 3] * LENGTH)[: len(steps) - 1]
    codes = trace.kind[:, 1:].numel() / int(trace.target_calls.sum())
    assert codes == pytest.approx(3.6, abs=0.15)
    assert not trace.moved.any() and not trace.bound.any()
    assert not (trace.kind == CodeKind.RELAXED).any()
    assert set(trace.seconds) == {"prefill", "draft", "forward", "accept"}


def test_a_tree_that_is_shallower_than_the_recording_caps_it(tmp_path: Path) -> None:
    folder = recording(tmp_path, [{"accepted": [5, 0, 4, 1, 5, 0]}])
    trace = images(built(Chain(depth=2), trace=str(folder), decoder="spec"), ["a"]).trace
    steps = [n for n in trace.accepted[0].tolist() if n >= 0]
    assert steps[:5] == [2, 0, 2, 1, 2]  # and the recording's last step, cut by its image, is not


def test_a_dynamic_tree_is_followed_to_its_deepest_node() -> None:
    trace = images(built(Dynamic(depth=3, top_k=2, nodes=6), mal=3.0), ["a", "b", "c"]).trace
    steps = trace.accepted[trace.accepted >= 0]
    assert int(steps.max()) == 2
    depths = trace.depth[trace.kind == CodeKind.DRAFT]
    assert set(depths.tolist()) == {1, 2}


def test_recorded_images_follow_one_another_and_rows_do_not_depend_on_their_batch(
    tmp_path: Path,
) -> None:
    folder = recording(
        tmp_path,
        [{"accepted": [1, 2, 0]}, {"accepted": [3, 3, 1]}, {"accepted": [9], "decoder": "other"},
         {"accepted": [], "status": "failed"}, {"accepted": [1, 2, 0], "prompt_index": 0}],
    )  # fmt: skip
    assert len(recorded_lengths(folder, "spec")) == 2, "one was timed again"
    decoder = built(Chain(depth=4), trace=str(folder), decoder="spec")
    prompts = [f"p{i}" for i in range(8)]
    whole = images(decoder, prompts)
    begins = set()
    for i, prompt in enumerate(prompts):
        alone = images(decoder, [prompt])
        assert torch.equal(alone.codes[0], whole.codes[i])
        steps = [n for n in alone.trace.accepted[0].tolist() if n >= 0]
        assert steps[:4] in ([1, 2, 3, 3], [3, 3, 1, 2])
        begins.add(tuple(steps[:2]))
    assert len(begins) == 2  # which image is followed is drawn with the prompt's noise


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_replayed_step_does_not_wait_for_the_device(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    waits, step = Waits(), Eager.step

    def counted(self: Eager, *args: Any) -> Any:
        with waits:
            return step(self, *args)

    monkeypatch.setattr(Eager, "step", counted)
    images(built(Static(choices="binary_8"), temperature, mal=2.5), ["a", "b"])
    assert waits.found == []


def test_the_rule_is_really_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    decide = ByNode.decide

    def counted(self: ByNode, *args: Any) -> Any:
        judged.append(1)
        return decide(self, *args)

    monkeypatch.setattr(ByNode, "decide", counted)
    trace = images(built(Chain(depth=3), mal=2.0), ["a"]).trace
    assert len(judged) == int(trace.target_calls[0])


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DecoderError, match="expected 1 to 4 with a tree of 3 levels, found 5"):
        built(Chain(depth=3), mal=5)
    with pytest.raises(DecoderError, match=r"needs loop\.mal .* or loop\.trace"):
        built(Chain(depth=3))
    with pytest.raises(DecoderError, match="not both"):
        built(Chain(depth=3), mal=2, trace="somewhere")
    with pytest.raises(DecoderError, match="no recording at"):
        built(Chain(depth=3), trace=str(tmp_path), decoder="spec")
    folder = recording(
        tmp_path, [{"accepted": [1, 1]}, {"accepted": [0, 0], "decoder": "ar", "drafter_calls": 0}]
    )
    with pytest.raises(DecoderError, match=r"'ar' to replay; .* those that draft: spec"):
        built(Chain(depth=3), trace=str(folder), decoder="ar")
    (folder / "records.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(DecoderError, match=r"is no records\.parquet of a run"):
        built(Chain(depth=3), trace=str(folder), decoder="spec")
