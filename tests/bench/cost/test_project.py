"""`bench predict hardware=NAME`: costs counted by hand, papers' floors, a machine of one's own."""

import dataclasses
import math

import pandas as pd
import pytest

from bench.__main__ import main
from bench.compare.methods import load_names
from bench.compare.published import Published
from bench.config.catalogue import groups
from bench.config.schema import LoaderConfig
from bench.cost.work import Growth, Known, Work, place_of, regime
from bench.predict.command import BATCHES
from bench.predict.machines import Hardware, shipped
from bench.predict.recorded import Recorded, recorded_of
from bench.predict.there import floors_of, forward_of, of_shape, project, sizes_of
from decoders.models.sizes import LLAMAGEN_256, LUMINA, Shape
from metrics.stats import UNKNOWN
from tests.bench.fakes import SEARCHPATH

# 1 layer of width 4, feed-forward 8, 10 codes, images of 4 codes behind a prefix of 2.
SMALL = of_shape("small", Shape(vocab=10, width=4, layers=1, ffn=8, length=4, prefix=2, side=0))
MACHINE = Hardware("toy", "Toy", 1.0, 1.0, 0.0, 0.0, "a", "b", "c")  # 1e9 bytes, 1e12 operations
CHAIN = Recorded("chain", "chain(depth=1)", 1.0, 1, 3, (0.5,), 1, 1.0, UNKNOWN)
AR = dataclasses.replace(CHAIN, decoder="ar", reached=(), nodes=0, calls=0.0)


def test_a_step_costs_what_counting_by_hand_gives():
    """Layer: 4 x 16 + 3 x 32 + 8 = 168 numbers, with the norm 172; head 40; 2 bytes each. An AR
    step sees 2 + 2 + 1 slots of 2 x 4 numbers, a verification of two codes one more."""
    found = project(CHAIN, SMALL, MACHINE)
    forward = forward_of(SMALL.target, SMALL.target.work(1, 2), MACHINE)
    assert forward.reading == pytest.approx((2 * (172 + 40) + 2 * 8 * 6) / 1e9)
    assert forward.computing == pytest.approx((2 * 2 * 212 + 4 * 2 * 6 * 4) / 1e12)
    assert found.bound == "memory" and found.step.forward == forward.seconds
    # Drafter: fc 36, layer 4 x 16 + 3 x 32 + 4 = 164; half-way through an image 1 + 2 slots.
    assert found.step.draft == pytest.approx((2 * (200 + 40) + 2 * 8 * 3) / 1e9)
    assert found.step.step == pytest.approx(forward.seconds + found.step.draft)
    assert project(AR, SMALL, MACHINE).step.step == pytest.approx((2 * 212 + 2 * 8 * 5) / 1e9)


def test_the_speed_up_is_the_images_of_ar_over_those_of_the_decoder():
    """3 codes are left after the prefill; half of the steps commit 2: E(3) = 2.25 steps (paths 2+1,
    2+2, 1+2, 1+1+1)."""
    found = project(CHAIN, SMALL, MACHINE).prediction
    ar, step = 504e-9, 520e-9 + 528e-9
    prefill = (2 * 212 + 2 * 8 * 2) * 1e-9
    begin = (2 * 240 + 2 * 8 * 1) * 1e-9
    assert found.codes == 1.5 and found.steps == pytest.approx(2.25)
    seconds = prefill + begin + 2.25 * step
    assert found.speedup == pytest.approx((prefill + 3 * ar) / seconds)
    assert project(AR, SMALL, MACHINE).prediction.speedup == pytest.approx(1.0)


def test_launches_are_counted_per_kernel_and_per_step():
    slow = dataclasses.replace(MACHINE, graph_us=7.0, kernel_us=2.0)
    found, free = project(CHAIN, SMALL, slow), project(CHAIN, SMALL, MACHINE)
    forward = forward_of(SMALL.target, SMALL.target.work(1, 2), slow)
    assert forward.launching == pytest.approx(20 * 2e-6), "10 of the layer and 10 more"
    assert found.step.step - free.step.step == pytest.approx(2 * 20 * 2e-6 + 7e-6)
    assert found.bound == "launches"


def test_arithmetic_takes_over_where_the_first_forward_is_bound_by_it():
    sizes = of_shape("xl", LLAMAGEN_256)
    for machine in shipped():
        growth = sizes.target.growth(2)
        for codes in (1, 7, 59):
            work = sizes.target.work(2, codes)
            assert growth.at(codes) == Work(
                pytest.approx(work.bytes), pytest.approx(work.operations)
            )
        over = growth.takes_over(machine)
        works = [growth.at(n) for n in range(1, 400)]
        bound = [work.computing(machine) >= work.reading(machine) for work in works]
        assert over == 1 + bound.index(True), machine.name


def test_the_line_says_what_bounds_an_ar_step():
    growth = Growth.through(Work(80e6, 40e6))
    text = regime(growth, dataclasses.replace(MACHINE, memory_gb_s=20.0, dense_bf16_tflops=0.1))
    assert text == (
        "AR is bound by memory here (4 ms for 80 MB at 20 GB/s); arithmetic would allow 0.4 ms, "
        "and takes over from 10 codes per forward on."
    )
    text = regime(growth, dataclasses.replace(MACHINE, memory_gb_s=200.0, dense_bf16_tflops=0.02))
    assert text == (
        "AR is bound by arithmetic here (2 ms for 40 Mflop at 20 Gflop/s); memory would allow "
        "0.4 ms, so a forward over n codes costs about n AR steps."
    )
    always = Growth(fixed=10.0, each=2.0, linear=1.0, square=0.0)
    assert always.takes_over(Known(1.0, 1.0)) is None
    text = regime(always, Known(1e9, 1e9))
    assert text.startswith("AR is bound by memory here") and "takes over" not in text
    assert place_of(170e9, 55e9) == "the processor's cache" and place_of(40e9, 38e9) == "memory"


def test_every_shipped_machine_is_its_data_sheet_with_sources():
    found = {m.name: (m.memory_gb_s, m.dense_bf16_tflops) for m in shipped()}
    assert found == {
        "h200": (4800, 989), "h100": (3350, 989), "a100": (2039, 312), "rtx4090": (1008, 165),
        "rtx3090": (936, 71),
    }  # fmt: skip
    assert set(found) == set(groups()["hardware"])


def published(**given: object) -> Published:
    plain = dict.fromkeys(("paper", "arxiv", "evidence", "model", "dataset", "gpu", "baseline"), "")
    plain |= dict.fromkeys(("resolution", "temperature", "cfg", "top_k"))
    return Published(**{"line": 2, "method": "AR", "params": {}, "figures": {}, **plain, **given})


LUMINA_ROW = {"model": "Lumina-mGPT-7B", "resolution": 768.0, "baseline": "AR"}


def test_a_papers_ar_step_is_told_in_floors_of_its_own_gpu():
    row = published(**LUMINA_ROW, gpu="A100", figures={"latency_s": 100.0})
    faster = published(
        **LUMINA_ROW, gpu="A100", method="X", figures={"latency_s": 50.0, "speedup": 2.0}
    )
    elsewhere = published(**LUMINA_ROW, figures={"latency_s": 100.0})
    chosen = next(m for m in shipped() if m.name == "h200")
    found = floors_of([row, faster, elsewhere], load_names(), shipped(), chosen)
    width, slots = 4096, 128 + LUMINA.length / 2 + 1
    layer = 4 * width**2 + 3 * width * 11008 + 6 * width
    weights = 32 * layer + width + 8193 * width
    floor = 2 * (weights + 2 * 32 * 2 * slots * width) / 2039e9
    for one in found[:2]:
        assert one.own and one.machine == "a100"
        assert one.floors == pytest.approx(100 / (48 * 49) / floor)
    assert not found[2].own and found[2].machine == "h200"
    assert found[2].floors == pytest.approx(found[0].floors * 4800 / 2039)


def test_what_is_not_known_of_a_published_row_is_said():
    rows = [
        published(model="LlamaGen-XL", figures={"latency_s": 5.0}),
        published(model="Emu3", figures={"latency_s": 5.0}),
        published(**LUMINA_ROW, method="X", figures={"speedup": 3.0, "mal": 2.0}),
        published(**LUMINA_ROW, method="X", figures={"speedup": 2.0, "mal": 3.0}),
    ]
    found = floors_of(rows, load_names(), shipped(), shipped()[0])
    assert [one.why for one in found] == [
        "which LlamaGen-XL is not stated", "size of Emu3 not known", "no seconds of AR",
    ]  # fmt: skip
    assert [one.slow for one in found] == [False, False, True]
    assert all(math.isnan(one.floors) for one in found)


def test_a_model_of_random_weights_has_the_size_of_the_released_one():
    random = LoaderConfig("mine", "decoders.models.unweighted.load", {"preset": "llamagen_xl_256"})
    released = LoaderConfig("llamagen_xl_256", "decoders.models.llamagen.load", {})
    assert sizes_of(random).target == sizes_of(released).target
    short = LoaderConfig("mine", "x", {"preset": "llamagen_xl_256", "grid": 8})
    assert sizes_of(short).target.length == 64


OWN = """name: mine
gpu: Mine
memory_gb_s: 500
dense_bf16_tflops: 50
graph_us: 1
kernel_us: 1
memory_source: a measurement
dense_bf16_source: a measurement
launch_source: a guess
"""


def test_a_run_is_projected_to_a_machine_of_ones_own(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["run", SEARCHPATH, "study=fake", "quality.images=0", f"run_dir={run}"]) == 0
    (tmp_path / "conf" / "hardware").mkdir(parents=True)
    (tmp_path / "conf" / "hardware" / "mine.yaml").write_text(OWN)
    words = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "hardware=mine", f"run_dir={run}"]
    capsys.readouterr()
    assert main(["predict", *words, "model=llamagen_xl_256_random", "hardware.graph_us=3"]) == 0
    out = capsys.readouterr().out
    assert "Projected: acceptance of fake (fake) on mine, at the size of llamagen_xl_256" in out
    assert "AR is bound by memory on mine" in out and "3 us per recorded step" in out
    assert "Launches: a guess." in out
    assert out.index("fake_spec") < out.index("AR ms per code"), "what was asked, then the papers"
    rows = pd.read_csv(run / "predict" / "projected.csv").set_index("decoder")
    assert list(rows.index) == ["fake_ar", "fake_spec", "greedy"]
    records = pd.read_parquet(run / "records.parquet")
    mine = records[records.decoder == "fake_spec"]
    assert rows.codes_verified["fake_spec"] == 1 + mine.tree_nodes.max()
    steps = [n for image in mine.accepted for n in list(image)[:-1]]
    assert rows.codes_a_step["fake_spec"] == pytest.approx(1 + sum(steps) / len(steps))
    measured = pd.read_csv(run / "summary.csv").set_index("decoder").speedup["fake_spec"]
    assert rows.measured["fake_spec"] == pytest.approx(measured)
    ahead = rows.loc["fake_spec", [f"predicted_at_{b}" for b in BATCHES]]
    assert ahead.iloc[0] == pytest.approx(rows.predicted["fake_spec"]) and ahead.iloc[-1] > 1
    assert (rows.loc["fake_ar", ahead.index] == 1).all()
    assert "AR at the same batch, places refilled" in out
    assert (run / "predict" / "projected.svg").stat().st_size > 0
    text = (run / "predict" / "projected.md").read_text()
    assert "# Projected: " in text and "Memory: a measurement." in text
    # AR of the default table: marked rows, and floors of the chosen machine where none is named.
    assert "| yes |" in text and " of mine |" in text
    assert main(["predict", *words]) == 2
    assert "shape of the model 'fake'" in capsys.readouterr().err
    # A published run has lost most lists of its rows, and not what is needed here.
    assert main(["publish", str(run), str(tmp_path / "shared")]) == 0
    words = [*words[:-1], "model=llamagen_xl_256_random", f"run_dir={tmp_path / 'shared'}"]
    assert main(["predict", *words]) == 0
    shared = pd.read_csv(tmp_path / "shared" / "predict" / "projected.csv").set_index("decoder")
    assert shared.codes_a_step.equals(rows.codes_a_step)
    path = tmp_path / "shared" / "records.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["predict", *words]) == 2
    said = capsys.readouterr().err
    assert "is damaged" in said and "copy its folder once more" in said and "resumes" not in said


def test_acceptance_is_read_off_quality_images_where_none_was_timed():
    image = {
        "decoder": "chain", "protocol": "quality", "status": "ok", "prompt_index": 0, "seed": 0,
        "disturbed": False, "block": 0, "repeat": 0, "seconds_total": math.nan, "nfe": 4,
        "mal": 2.0, "tree": "chain(depth=2)", "temperature": 1.0, "cfg": 3.0, "tree_nodes": 2,
        "tree_depth": 2, "drafter_calls": 8,
        "accepted": [2, 0, 1, 1],
        **{f"seconds_{part}": math.nan for part in ("prefill", "draft", "forward", "accept")},
    }  # fmt: skip
    other = image | {"prompt_index": 1, "accepted": [0, 2, 0]}
    failed = image | {"prompt_index": 2, "status": "failed", "nfe": 0, "accepted": []}
    floor = image | {"protocol": "floor", "seed": 1, "decoder": "ar"}
    (found,) = recorded_of(pd.DataFrame([image, other, failed, floor]), ["ar"])
    assert (found.images, found.nodes, found.rows) == (2, 2, 2)
    assert found.reached == (pytest.approx(3 / 5), pytest.approx(2 / 5)), "last steps left out"
    assert found.calls == 2 and math.isnan(found.speedup.value)
