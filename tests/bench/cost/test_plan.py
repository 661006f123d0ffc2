"""`bench plan`: parameter formulas against the real modules, what a disk must hold, memory, hours;
stand-ins that run."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.data.errors import BenchError
from bench.plan.command import cmd_plan, make
from bench.plan.hours import (
    NOTHING,
    earlier,
    images,
    projected_lines,
    time_lines,
    warm_ups,
    work_lines,
)
from bench.plan.parts import Need, merged
from bench.plan.plan import CONTEXT, Load, cache_bytes, logit_bytes, peak_bytes
from bench.predict import checkpoints as known
from bench.predict.machines import machine_of
from bench.predict.there import forward_of, of_shape
from bench.run.runner import run_study
from decoders.models.sizes import (
    ANOLE,
    CHAMELEON_VQ,
    EMU3,
    EMU3_VQ,
    FLAN_T5_XL,
    LLAMAGEN_VQ,
    LUMINA,
    Shape,
    class_conditional,
)
from decoders.models.sizes import LLAMAGEN_256 as XL
from tests import stand_ins

ROOT = Path(__file__).parents[3]
AS_HERE = {**os.environ, "PYTHONPATH": str(ROOT)}  # whatever the current folder is


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_formulas_equal_the_modules_at_full_size():
    from transformers import T5Config, T5EncoderModel

    from decoders.models.eagle_net import EagleNet
    from decoders.models.transformer import Transformer, TransformerConfig
    from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig

    with torch.device("meta"):
        caption = TransformerConfig()
        tokens = TransformerConfig(
            vocab=8193, width=4096, layers=32, heads=32, ffn=11008, grid=48, row_end=True,
            tokens=65536, conditioning="tokens", positions="line", qk_norm=True, prefix=128,
        )  # fmt: skip
        classes = TransformerConfig(
            width=768, layers=12, heads=12, ffn=2048, grid=24, prefix=1, conditioning="class"
        )
        assert count(Transformer(caption)) == XL.loaded == XL.stored
        assert count(Transformer(tokens)) == LUMINA.loaded < LUMINA.stored
        assert Transformer(tokens).length == LUMINA.length
        assert count(Transformer(classes)) == class_conditional("B").loaded
        assert count(EagleNet(caption)) == XL.drafter
        assert count(LlamaGenVQ(VQConfig())) == LLAMAGEN_VQ.params
        vqgan = VQConfig(codes=8192, dim=256, attention=False, l2_norm=False, grid=32)
        assert count(LlamaGenVQ(vqgan)) == CHAMELEON_VQ.params
        t5 = T5Config(
            vocab_size=32128, d_model=2048, d_kv=64, d_ff=5120, num_layers=24, num_heads=32,
            feed_forward_proj="gated-gelu",
        )  # fmt: skip
        assert count(T5EncoderModel(t5)) == FLAN_T5_XL.encoder


DOCUMENTED = {"B": 111, "L": 343, "XL": 775, "XXL": 1411, "3B": 3100}  # LlamaGen, millions
HUB = {"BAAI/Emu3-Gen-hf": 35.05, "BAAI/Emu3-Gen": 33.97}  # gigabytes that the hub lists
HUB |= dict.fromkeys(("deepseek-ai/Janus-Pro-7B", "deepseek-community/Janus-Pro-7B"), 14.84)


@pytest.mark.parametrize(
    ("found", "millions", "within"),
    [
        *((class_conditional(size).stored, count, 0.005) for size, count in DOCUMENTED.items()),
        (XL.stored, 775, 0.005),
        (LLAMAGEN_VQ.params, 72, 0.005),
        (ANOLE.stored, 7000, 0.01),
        (FLAN_T5_XL.stored, 2850, 0.005),
        (known.REPOSITORIES["Alpha-VLLM/Lumina-mGPT-7B-768"].bytes / 2, 7000, 0.01),
        *((known.REPOSITORIES[name].bytes, 1000 * gb, 1e-3) for name, gb in HUB.items()),
    ],
)
def test_sizes_are_the_documented_ones(found, millions, within):
    assert found / 1e6 == pytest.approx(millions, rel=within)


def test_sizes_of_emu3_are_transformers_counts():
    import transformers

    with torch.device("meta"):
        emu3 = transformers.Emu3ForConditionalGeneration(
            transformers.Emu3Config(vocabulary_map={"<image>": 0})
        )
    assert known.REPOSITORIES["BAAI/Emu3-Gen-hf"].params == count(emu3)
    alone = count(emu3) - count(emu3.model.vqmodel)
    assert known.REPOSITORIES["BAAI/Emu3-Gen"].params == EMU3.stored == alone
    assert EMU3_VQ.params == pytest.approx(count(emu3.model.vqmodel), rel=2e-3)


def test_memory_by_hand():
    shape = Shape(vocab=10, width=4, layers=2, ffn=8, length=16, prefix=4, side=32)
    ar, tree = Load(batch=3, guidance_rows=2), Load(3, 2, nodes=5, depth=2, session=4)
    assert cache_bytes(shape, ar, 2) == 2 * 2 * 6 * (4 + 16 + 1) * 4 * 2
    drafter = 2 * 6 * (4 + 16 + 2 + 4 + 1) * 4 * 2
    assert cache_bytes(shape, tree, 2) == 2 * 2 * 6 * (4 + 16 + 6) * 4 * 2 + drafter
    shared = replace(shape, group=4)  # heads that share keys take less of the cache
    assert cache_bytes(shared, tree, 2) == cache_bytes(shape, tree, 2) / 4
    assert logit_bytes(shape, tree, 2) == 6 * 10 * (6 * 2 + 4 * 4 * 3)
    pictures = 3 * 4 * 3 * 32**2 * 128  # larger than decoding here
    assert peak_bytes(shape, LLAMAGEN_VQ, 100.0, tree, 2) == 100 + pictures + CONTEXT
    decoding = cache_bytes(shape, tree, 2) + logit_bytes(shape, tree, 2)
    assert peak_bytes(shape, None, 100.0, tree, 2) == 100 + decoding + CONTEXT


# ---- what must be on this disk -------------------------------------------------------------------


def plan_of(*words: str):
    return make(compose_study(["metric=none", *words]))


def needs_of(*words: str) -> dict[str, Need]:
    """By role."""
    plan = make(compose_study([*words]))
    return {need.role: need for need in (*plan.parts, *plan.others)}


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """An empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


def cache(hub: Path, repository: str, files: dict[str, int]) -> None:
    """Files of these sizes in the hub's cache."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123456789" * 4)
    snapshot = folder / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    for name, size in files.items():
        (snapshot / name).write_bytes(bytes(size))


def test_everything_is_to_download_where_nothing_is_there(no_hub):
    plan = plan_of("study=vvs_table")
    assert [part.role for part in plan.parts] == ["target", "tokenizer", "text", "drafter"]
    assert all(part.missing and part.estimated for part in plan.parts)
    params = XL.stored + LLAMAGEN_VQ.params + FLAN_T5_XL.stored + XL.drafter
    assert plan.download == 4 * params


def test_every_part_of_a_study_is_listed_with_where_it_is_looked_for(no_hub):
    found = needs_of("study=lantern_table")
    assert set(found) == {
        "target", "tokenizer", "text", "drafter", "metric", "captions", "reference",
    }  # fmt: skip
    target = found["target"]
    assert target.missing and target.source == "jadohu/LlamaGen-T2I"
    assert str(no_hub) in target.where and "HF_HOME" in target.where
    assert target.revision == "main" and target.setting == "model.checkpoint"
    assert found["captions"].where.endswith("data/coco/annotations/captions_val2017.json")
    parts = make(compose_study(["study=lantern_table"])).parts
    networks = [part.source for part in parts if part.role == "metric"]
    assert len(networks) == 3 and any("inception" in name for name in networks)


def test_what_is_cached_is_not_to_download(no_hub):
    cache(no_hub, "jadohu/LlamaGen-T2I", {"model.safetensors": 1000})
    cache(no_hub, "jadohu/llamagen_drafter", {"model.safetensors": 10})  # the other usual name
    cache(no_hub, "google/flan-t5-xl", {known.shards(2)[1]: 5})
    target, tokenizer, text, drafter = plan_of("study=vvs_table").parts
    assert (target.missing, target.download, target.bytes) == ((), 0.0, 1000.0)
    assert target.revision == "main = 012345678901"
    assert not target.estimated and drafter.download == 0.0
    assert tokenizer.missing == ("vq_ds16_t2i.pt",)
    assert text.missing == (known.shards(2)[2],), "of what is half fetched the missing shards"
    assert text.download == pytest.approx(text.bytes / 2)


def test_a_local_checkpoint_is_measured_and_gives_the_shape(no_hub, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(123))
    described = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    (folder / "config.json").write_text(json.dumps(described | {"vocab_size": 16384}))
    plan = plan_of("study=vvs_table", f"model.checkpoint={folder}")
    assert plan.parts[0].bytes == 123 and plan.parts[0].download == 0.0
    wanted = replace(XL, width=64, layers=2, ffn=128)
    assert plan.shape == wanted and plan.weights < 1e9 + FLAN_T5_XL.encoder * 2


def test_a_tokenizer_that_nothing_names_is_missing(no_hub, tmp_path):
    words = ("study=vvs_table", "metric=none", "model.tokenizer=null")
    need = needs_of(*words)["tokenizer"]
    assert need.state.startswith("missing model.tokenizer") and need.setting == "model.tokenizer"
    (without,) = [n for n in plan_of(*words).notes if "tok" in n]
    assert "model.tokenizer=peizesun/llamagen_t2i" in without
    (tmp_path / "vq_ds16_t2i.pt").touch()
    beside = plan_of(*words, f"model.checkpoint={tmp_path}")
    assert not any("model.tokenizer" in note for note in beside.notes)


def test_weights_of_metrics_are_listed_as_they_are_never_fetched(no_hub, tmp_path, capsys):
    (tmp_path / "vgg.pth").write_bytes(bytes(77))
    words = [
        "study=vvs_table", "metric=scenes", "+metric.metrics=[fid,kid,precision_recall]",
        f"+metric.folder={tmp_path}", f"+metric.weights={{vgg: {tmp_path / 'vgg.pth'}}}",
    ]  # fmt: skip
    inception, vgg = [p for p in make(compose_study(words)).parts if p.role == "metric"]
    assert inception.by_hand and inception.download == pytest.approx(96e6, rel=0.01)
    assert vgg.bytes == 77 and vgg.download == 0.0
    assert cmd_plan(words) == 0
    assert f"by hand: {tmp_path}/weights-inception-2015" in capsys.readouterr().out


def test_cached_features_need_no_text_encoder(no_hub):
    plan = plan_of("study=vvs_table", "prompts=file", "prompts.name=features", "prompts.path=x")
    assert "text" not in [part.role for part in plan.parts]
    both = plan_of("study=vvs_table")
    assert both.weights - plan.weights == FLAN_T5_XL.encoder * 2


def test_what_two_studies_need_is_listed_once(no_hub):
    studies = ("lantern_table", "vvs_table")
    plans = {name: plan_of(f"study={name}") for name in studies}
    needs = merged(replace(n, studies=(name,)) for name in studies for n in plans[name].parts)
    (target,) = [need for need in needs if need.role == "target"]
    assert target.studies == studies


def test_the_command_lists_studies_and_writes_the_list(no_hub, tmp_path, capsys, monkeypatch):
    few = {"study": ["anole_table", "smoke", "vvs_table"]}
    monkeypatch.setattr("bench.plan.command.groups", lambda: few)
    out = tmp_path / "needs.csv"
    assert main(["plan", "study=anole_table", f"out={out}"]) == 0
    assert "are missing" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {"leloy/Anole-7b-v0.1-hf", "jadohu/anole_drafter"} <= {row["source"] for row in rows}
    every = tmp_path / "every.md"
    assert main(["plan", "study=all", "metric=none", f"out={every}"]) == 0
    shown = capsys.readouterr().out
    assert "need nothing but what is embedded: " in shown and "smoke" in shown
    (line,) = [x for x in every.read_text().splitlines() if "leloy/Anole-7b-v0.1-hf" in x]
    line = line.replace("\\", "")
    assert "anole_table" in line and str(no_hub) in line


def test_the_printed_plan(no_hub, capsys):
    assert cmd_plan(["study=lantern_table", "metric=none", "hardware=h200"]) == 0
    shown = capsys.readouterr().out
    assert "llamagen_xl_256 on cuda (bfloat16), 19 decoders" in shown
    assert "to download: 15.0 GB (~ estimated" in shown
    assert "19,000 timed images" in shown and "95,000 for quality (batch 32), 5,000 for" in shown
    assert "GPU memory (estimated): weights 4.4 GB" in shown
    assert "time: nothing is measured yet" in shown and "latency.prompts=1" in shown
    assert "captions_val2017.json is not there" in shown
    (line,) = [x for x in shown.splitlines() if x.startswith("time on H200")]
    assert "with every draft accepted" in line and "with none" in line
    assert cmd_plan(["study=vvs_table", "metric=none", "model.checkpoint=someone/else"]) == 0
    assert "size not known, not counted: someone/else" in capsys.readouterr().out


# ---- hours ---------------------------------------------------------------------------------------


def test_hours_are_not_guessed(no_hub):
    few = plan_of("study=vvs_table", "quality.images=100", "latency.prompts=10")
    text = "\n".join([*work_lines(few), *time_lines(few)])
    assert "40 timed images" in text and "400 for quality" in text and "not measured" not in text
    assert text.splitlines()[-1] == NOTHING


def test_hours_on_a_machine_that_is_not_here_are_projected_from_its_floors(no_hub):
    machine, rest = machine_of(["study=speed", "hardware=h200", "hardware.graph_us=0"])
    assert machine is not None and machine.graph_us == 0 and rest == ["study=speed"]
    words = ("study=vvs_table", "decoders=[ar]", "quality.images=0", "latency.prompts=3600")
    plan = plan_of(*words, "latency.warmup_max=1", "latency.blocks=1", "latency.repeats=1")
    first, marked, *_ = projected_lines(plan, machine)
    target = of_shape("xl", XL).target
    step = forward_of(target, target.work(2), machine).seconds
    hours = (3600 + 1) * 255 * step / 3600  # the prefill, which gives the first code, is little
    assert first.startswith("time on H200, projected: ") and "data sheet" in marked
    said = float(first.split()[-2]) / (60 if first.endswith("min") else 1)
    assert said == pytest.approx(hours, rel=0.05)


def test_more_drafts_accepted_take_fewer_hours_and_unknown_ones_are_named(no_hub):
    machine, _ = machine_of(["hardware=a100"])
    lines = projected_lines(plan_of("study=vvs_table", "decoders=[eagle2]"), machine)
    found = re.findall(r"([\d.]+) (h|min) with", lines[0])
    few, many = (float(x) / {"h": 1, "min": 60}[unit] for x, unit in found)
    assert few < many / 2
    lines = projected_lines(plan_of("study=vvs_table", "decoders=[ar,sjd]"), machine)
    assert any(line.endswith("counted as AR: sjd") for line in lines)


@pytest.mark.alone
def test_an_earlier_run_gives_the_seconds(fake_study):
    words = "loop.seconds=0.02", "decoders=[fake_ar]", "quality.reseeds=0"
    config = fake_study(*words)
    assert earlier(Path(config.run_dir), config) == {}
    run_study(config)
    seen = earlier(Path(config.run_dir), config)
    timed = seen["fake_ar", "latency"]
    assert timed.rows == 4 and 0.02 <= timed.seconds < 0.1
    assert seen["fake_ar", "quality"].seconds == pytest.approx(0.02 / 3, rel=0.8)  # batches 4, 2
    lines = "\n".join(time_lines(make(config)))
    assert "about 0 s" in lines and "measured: seconds of 10 rows" in lines
    more = fake_study(*words, "latency.prompts=50")
    again = earlier(Path(more.run_dir), more)["fake_ar", "latency"]
    assert (again.rows, again.done) == (4, 0), "another count tells seconds, and nothing is done"
    other = fake_study(*words, "backend.threads=3")
    assert earlier(Path(other.run_dir), other) == {}, "another backend tells nothing"
    two = fake_study("loop.seconds=0.02", "decoders=[fake_ar,fake_spec]", "quality.reseeds=0")
    shown = "\n".join(time_lines(make(two)))
    assert "not counted: latency of fake_spec" in shown and "quality of fake_spec" in shown


def test_pictures_are_counted_once_and_decodings_as_often_as_they_are_timed():
    ar = ("study=speed", "decoders=[ar]", "latency.prompts=8", "latency.blocks=1")
    once, thrice = (plan_of(*ar, f"latency.repeats={n}") for n in (1, 3))
    assert work_lines(once)[1:] == work_lines(thrice)[1:], "as many pictures"
    assert "8 timed images (" in work_lines(once)[0]
    assert "8 timed images, 3 times each (" in work_lines(thrice)[0]
    assert images(thrice.config)["ar", "latency"] == 8


def test_warm_ups_are_until_stable_and_one_before_each_block(fake_study):
    def most(*words, left=1.0):
        return warm_ups(fake_study(*words), left)

    assert most("latency.blocks=1") == 2
    assert most("latency.blocks=4") == 5
    assert most("latency.blocks=2", "latency.repeats=3") == 7
    assert most("latency.blocks=4", left=0.3) == 3 and most("latency.prompts=0") == 0


def test_an_unknown_model_has_no_hours_and_the_embedded_one_no_download(fake_study, capsys):
    plan = make(fake_study())
    assert plan.shape is None and time_lines(plan) == [NOTHING]
    assert any("decoders/models/sizes.py" in note for note in plan.notes)
    assert cmd_plan(["study=tiny_table"]) == 0
    shown = capsys.readouterr().out
    assert "to download: 0.0 GB" in shown and "9 decoders" in shown and "9 M" in shown
    shape = make(compose_study(["study=smoke", "model=tiny_grown", "model.layers=12"])).shape
    assert (shape.width, shape.layers, shape.ffn) == (384, 12, 1024)


def test_planning_imports_no_model():
    code = (
        "import sys\n"
        "from bench.plan.command import cmd_plan\n"
        "cmd_plan(['study=tiny_table', 'decoders=[eagle2]'])\n"
        "print([m for m in sys.modules if m.startswith(('decoders.models.', 'decoders.tiny',"
        " 'transformers')) and m != 'decoders.models.sizes'])"
    )
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, env=AS_HERE, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ---- studies of papers, and their stand-ins ------------------------------------------------------


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "conf/study").glob("*_table*")))
def test_paper_studies_compose_with_the_protocol(name):
    config = compose_study([f"study={name}"])
    assert config.name == name and any(e.baseline for e in config.decoders)
    if name == "tiny_table":
        return
    assert (config.latency.prompts, config.quality.images) == (1000, 5000)
    assert config.backend.device == "cuda" and config.prompts.name == "coco"
    for entry in config.decoders:
        tree, rule = entry.spec.tree, entry.spec.acceptance
        if tree is not None and "Dynamic" in tree.target:
            assert tree.kwargs == {"depth": 5, "top_k": 10, "nodes": 58}
        if rule is not None and "delta" in rule.kwargs:
            assert rule.kwargs["k"] == 1000 and 0.05 <= rule.kwargs["delta"] <= 0.4


@pytest.mark.parametrize("study", ["lantern_pp_table", "anole_table"])
def test_a_study_runs_on_its_stand_ins(study, tmp_path):
    words = [f"study={study}", "metric=none", "model.grid=4", "decoders=[ar,eagle2]"]
    settings = stand_ins.make(compose_study(words), tmp_path / "made")
    few = ["latency.prompts=0", "quality.images=2", "quality.batch=2", "report=false"]
    where = f"run_dir={tmp_path / 'run'}"
    assert main(["run", *words, *settings, *few, where]) == 0
    rows = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert set(rows.decoder) == {"ar", "eagle2"} and set(rows.status) == {"ok"}
    assert (tmp_path / "run" / rows.image[0]).is_file()
    assert not [need for need in needs_of(*words, *settings).values() if need.missing]


def test_the_networks_of_the_metrics_have_the_public_layout_and_are_small(tmp_path):
    from tests.metrics.made import windows, write

    path = write(tmp_path / "clip.bin", "clip")
    assert path.stat().st_size < 5e6
    state = torch.load(path, weights_only=True)
    assert state["visual.conv1.weight"].shape == (768, 3, 32, 32)
    assert state["token_embedding.weight"].shape == (49408, 512)
    found = windows({"": torch.empty(64, 64)})[""]
    assert float(found.std()) == pytest.approx((2 / 64) ** 0.5, rel=0.3)
    assert int(torch.linalg.matrix_rank(found)) == 64


@pytest.mark.parametrize(
    ("study", "folder", "expected"),
    [
        ("smoke", "new", "runs on an embedded model"),
        ("lantern_table", "", "not empty"),
        ("replay", "new", "there is no stand-in for llamagen_xl_256_random"),
    ],
)
def test_what_has_no_stand_ins_is_said(tmp_path, study, folder, expected):
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match=expected):
        stand_ins.main([str(tmp_path / folder), f"study={study}"])
