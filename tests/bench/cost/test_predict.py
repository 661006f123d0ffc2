"""`bench predict`: a run's speed-ups beside what its acceptance and separately measured costs give,
and runs that it cannot explain."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from bench.__main__ import main
from bench.cost.speed import SpeedError, codes_a_step, reach
from bench.predict.here import piece_by_piece
from bench.records import rows as records
from decoders.api import ImageModel, Sampling
from decoders.executed import executed
from decoders.execution.cpu.speculation import NativeStep
from decoders.loops.speculative import Speculative
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.pieces import speculative_step
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.grown import Grown
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.static import Static
from decoders.verify.by_node import ByNode
from decoders.verify.exact import Exact
from tests.bench.fakes import SEARCHPATH
from tests.decoders.execution.cpu.cases import needs_kernel

DECODERS = (
    'decoders=[ar,{decoder: sd_chain, overrides: ["tree.depth=3"]},'
    '{decoder: eagle2, overrides: ["tree=dynamic_small"]}]'
)
WORDS = [
    SEARCHPATH, "study=smoke", "model=random24", "prompts=fake", "metric=none", "backend.threads=1",
    "backend.dtype=float32", "latency.prompts=3", "quality.images=0", "gate=false", "report=false",
    "backend.layers=torch", DECODERS,  # steps that are longer than the prefill
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    assert main(["run", *WORDS, f"run_dir={folder}"]) == 0
    return folder


@pytest.mark.parametrize("costs", ["steps", "images"])
def test_every_drafting_decoder_is_predicted_from_its_recorded_acceptance(run, capsys, costs):
    assert main(["predict", *WORDS, f"run_dir={run}", f"predict.costs={costs}"]) == 0
    rows = pd.read_csv(run / "predict" / "predicted.csv")
    ran = rows[rows.measured.notna()]
    assert list(ran.decoder) == ["sd_chain", "eagle2"]
    records = pd.read_parquet(run / "records.parquet")
    summary = pd.read_csv(run / "summary.csv").set_index("decoder")
    for row in ran.itertuples():
        mine = records[records.decoder == row.decoder]
        reached = reach(mine.accepted, int(mine.tree_depth.max()))
        assert row.codes_a_step == pytest.approx(codes_a_step(reached))
        assert row.measured == pytest.approx(summary.speedup[row.decoder])
        assert row.error == pytest.approx(row.predicted / row.measured - 1)
        assert 0 < row.predicted < 20
        parts = [row.predicted_draft, row.predicted_forward, row.predicted_accept]
        assert all(np.isfinite(parts)) and min(parts) > 0
        assert row.baseline == "ar" and row.predicted_ar > 0
        ar = records[records.decoder == "ar"]
        after = (ar.seconds_total - ar.seconds_prefill).sum() / ar.nfe.sum()
        assert row.recorded_ar == pytest.approx(after)
        if costs == "steps":  # by hand: image of AR over image of the decoder, prefills left out
            step = row.predicted_draft + row.predicted_forward + row.predicted_accept
            assert row.predicted_step == pytest.approx(step)
            length = len(ar.codes.iloc[0])
            rough = (length - 1) * row.predicted_ar / (row.steps * row.predicted_step)
            assert row.predicted == pytest.approx(rough, rel=0.5)
    assert ("not run" in " ".join(rows.tree)) is (costs == "steps")  # a chain of fewer levels
    out = capsys.readouterr().out
    assert "step pred." in out and "mean size of the error" in out
    assert [line.split()[0] for line in out.split("ms a step")[1].splitlines()[2:5]] == [
        "ar", "sd_chain", "eagle2"
    ]  # fmt: skip
    for ending in ("svg", "png"):
        assert (run / "predict" / f"predicted.{ending}").stat().st_size > 1000


def test_a_round_that_only_ar_finished_is_compared_with_nothing(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    rows = pd.read_parquet(run / "records.parquet")
    again = rows[rows.decoder == "ar"].assign(repeat=1)
    again["seconds_total"] /= 2
    both = pa.Table.from_pandas(pd.concat([rows, again]), records.SCHEMA, preserve_index=False)
    records.write(copy / "records.parquet", both)
    assert main(["predict", *WORDS, f"run_dir={copy}", "predict.costs=images"]) == 0
    found = pd.read_csv(copy / "predict" / "predicted.csv").set_index("decoder")
    summary = pd.read_csv(run / "summary.csv").set_index("decoder")
    for decoder in ("sd_chain", "eagle2"):
        assert found.measured[decoder] == pytest.approx(summary.speedup[decoder])


@pytest.mark.parametrize(
    ("file", "content", "words", "says"),
    [
        ("", "", ["latency.prompts=2"],
         "another configuration: latency.prompts: 3 in the folder, 2 asked for"),
        (None, "", [], "holds no run; `python -m bench run` with the same words makes one"),
        ("study.json", '{"a":', [], "study.json is damaged"),
        ("records.parquet", "nothing of the kind", [], "records.parquet is damaged"),
        ("records.parquet", None, [], "holds no finished run"),
        ("study.json", ('"cpu": "', '"cpu": "not this '), [], "cpu: not this "),
        ("study.json", ('"cpu": "', '"cpu": "not this '), [],
         "costs are to be measured on the machine of the run"),
        ("", "", ["predict.costs=guess"], "must be one of auto, steps, images, found 'guess'"),
    ],
)  # fmt: skip
def test_what_cannot_be_explained_is_refused(run, tmp_path, capsys, file, content, words, says):
    """file: of a copy of the run ("": none, None: there is no run), with that content, with
    (before, after) replaced in it, or removed."""
    copy = tmp_path / "run"
    if file is not None:
        shutil.copytree(run, copy)
    if file:
        path = copy / file
        if content is None:
            path.unlink()
        else:
            whole = isinstance(content, str)
            path.write_text(content if whole else path.read_text().replace(*content))
    assert main(["predict", *WORDS, f"run_dir={copy}", *words]) == 2
    assert says in capsys.readouterr().err


def loop_of(model: ImageModel, tree: Any, rule: Any = None, **sampling: float) -> Speculative:
    rule = Exact() if rule is None else rule
    return Speculative(
        model, Sampling(cfg=2.0, **sampling), Grown(Eagle(model), tree), ByNode(rule)
    )


def test_a_larger_tree_costs_more_to_draft_and_to_judge():
    model = random_model(vocab=32, grid=4)
    loops = {"small": Chain(depth=1), "large": Static(choices="eagle_25")}
    timed = {(name, 0): (loop_of(model, tree), 2) for name, tree in loops.items()}
    ar, steps = piece_by_piece(model, timed, model.text.encode(["x"]))
    small, large = steps["small", 0], steps["large", 0]
    assert 0 < small.draft < large.draft and 0 < small.forward < large.forward
    assert small.step == small.draft + small.forward and np.isnan(small.accept)
    assert ar.step > 0 and 0 < ar.prefill < small.prefill == large.prefill


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_kernel)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_timed_is_what_the_loop_does_after_so_many_codes(monkeypatch, native, temperature):
    """The drafter reads the codes told, and the tree verified is the one that was drafted, in the
    CPU kernel where the loop would run it there."""
    model = random_model(vocab=32, grid=4, width=64)
    if native:
        model = executed(model, "cpu")
    calls: list[str] = []
    forward = NativeStep.forward
    monkeypatch.setattr(NativeStep, "forward", lambda *a: (calls.append("native"), forward(*a))[1])
    loop = loop_of(model, Static(choices="binary_8"), temperature=temperature)
    run = loop.standing(model.text.encode(["x"]), Noise.for_prompts(0, ["x"], 16), 8, 3)
    assert run.length.tolist() == [8]
    assert run.seen.count.tolist() == [3] and run.seen.start.tolist() == [5]
    with torch.inference_mode():
        draft, check = speculative_step(loop, model.text.encode(["x"]), 3)
        (first, _), (again, hidden, logits) = draft(), check()
        assert torch.equal(first.codes, again.codes)
        assert torch.equal(check()[2], logits) and hidden.shape == (2, 9, 64)
    assert calls == ["native"] * (2 * native)


def test_a_loop_that_has_no_pieces_to_time_is_sent_to_images():
    model = random_model(vocab=32, grid=4)
    with pytest.raises(SpeedError, match="steps of own cannot be timed alone"):
        piece_by_piece(model, {("own", 0): (object(), 1)}, model.text.encode(["x"]))
