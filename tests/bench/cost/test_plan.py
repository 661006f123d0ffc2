"""`bench plan`: parameter formulas against the real modules, downloads, memory and hours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.config.compose import compose_study
from bench.cost.plan import checkpoints as known
from bench.cost.plan.command import cmd_plan, make
from bench.cost.plan.hours import (
    NOTHING,
    decodings,
    earlier,
    images,
    projected_lines,
    time_lines,
    warm_ups,
    work_lines,
)
from bench.cost.plan.plan import CONTEXT, Load, cache_bytes, logit_bytes, peak_bytes
from bench.data.errors import ConfigError
from bench.run.runner import run_study
from decoders.models.sizes import (
    EMU3,
    EMU3_VQ,
    FLAN_T5_XL,
    LLAMAGEN_256,
    LLAMAGEN_VQ,
    LUMINA,
    Shape,
    class_conditional,
)

XL = LLAMAGEN_256
ROOT = Path(__file__).parents[3]
AS_HERE = {**os.environ, "PYTHONPATH": str(ROOT)}  # whatever the current folder is


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_formulas_equal_the_modules_at_full_size():
    import torch

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
        assert count(LlamaGenVQ(vqgan)) == known.CHAMELEON_VQ.params


def test_the_text_encoder_formula_equals_transformers():
    import torch
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=32128, d_model=2048, d_kv=64, d_ff=5120, num_layers=24, num_heads=32,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    with torch.device("meta"):
        assert count(T5EncoderModel(config)) == FLAN_T5_XL.encoder
    assert FLAN_T5_XL.stored == pytest.approx(2.85e9, rel=0.005)  # as its model card says


DOCUMENTED = {"B": 111, "L": 343, "XL": 775, "XXL": 1411, "3B": 3100}  # LlamaGen, millions


@pytest.mark.parametrize(
    ("found", "millions", "within"),
    [
        *((class_conditional(size).stored, count, 0.005) for size, count in DOCUMENTED.items()),
        (XL.stored, 775, 0.005),
        (LLAMAGEN_VQ.params, 72, 0.005),
        (known.MODELS["anole_7b"].shape.stored, 7000, 0.01),
        (known.REPOSITORIES["Alpha-VLLM/Lumina-mGPT-7B-768"].bytes / 2, 7000, 0.01),
    ],
)
def test_sizes_are_the_documented_ones(found, millions, within):
    assert found / 1e6 == pytest.approx(millions, rel=within)


def test_sizes_of_emu3_and_janus_are_transformers_counts_and_the_hub_s_listings():
    import torch
    import transformers

    with torch.device("meta"):
        emu3 = transformers.Emu3ForConditionalGeneration(
            transformers.Emu3Config(vocabulary_map={"<image>": 0})
        )
    model, words = known.REPOSITORIES["BAAI/Emu3-Gen-hf"], known.REPOSITORIES["BAAI/Emu3-Gen"]
    assert model.params == count(emu3) and model.bytes == pytest.approx(35.05e9, rel=1e-3)
    assert words.params == EMU3.stored == count(emu3) - count(emu3.model.vqmodel)
    assert EMU3_VQ.params == pytest.approx(count(emu3.model.vqmodel), rel=2e-3)
    assert words.bytes == pytest.approx(33.97e9, rel=1e-3)
    for layout in ("deepseek-ai", "deepseek-community"):
        janus = known.REPOSITORIES[f"{layout}/Janus-Pro-7B"]
        assert janus.bytes == pytest.approx(14.84e9, rel=1e-3)


def test_heads_that_share_keys_take_less_of_the_cache():
    from decoders.models.unweighted import config_of

    cfg = config_of("emu3_gen")
    shape = Shape.of(cfg)
    assert replace(shape, side=EMU3.side) == EMU3
    load, apart = Load(1, 2, nodes=57, depth=5, session=57), replace(shape, group=1)
    assert cache_bytes(shape, load, 2) == cache_bytes(apart, load, 2) / 4
    layers = cfg.layers * 2 * 2 * (cfg.prefix + cfg.length + 58) * cfg.kv_heads * cfg.head_dim * 2
    assert cache_bytes(shape, replace(load, depth=0, session=0), 2) > layers
    assert cache_bytes(shape, Load(1, 2), 2) == layers - 57 * layers // (
        cfg.prefix + cfg.length + 58
    )


def test_memory_by_hand():
    shape = Shape(vocab=10, width=4, layers=2, ffn=8, length=16, prefix=4, side=32)
    ar, tree = Load(batch=3, guidance_rows=2), Load(3, 2, nodes=5, depth=2, session=4)
    assert cache_bytes(shape, ar, 2) == 2 * 2 * 6 * (4 + 16 + 1) * 4 * 2
    drafter = 2 * 6 * (4 + 16 + 2 + 4 + 1) * 4 * 2
    assert cache_bytes(shape, tree, 2) == 2 * 2 * 6 * (4 + 16 + 6) * 4 * 2 + drafter
    assert logit_bytes(shape, tree, 2) == 6 * 10 * (6 * 2 + 4 * 4 * 3)
    pictures = 3 * 4 * 3 * 32**2 * 128  # larger than decoding here
    assert peak_bytes(shape, LLAMAGEN_VQ, 100.0, tree, 2) == 100 + pictures + CONTEXT
    decoding = cache_bytes(shape, tree, 2) + logit_bytes(shape, tree, 2)
    assert peak_bytes(shape, None, 100.0, tree, 2) == 100 + decoding + CONTEXT


def plan_of(*words: str):
    return make(compose_study(["metric=none", *words]))


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """An empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cache(hub: Path, repository: str, files: dict[str, int]) -> None:
    """Files of these sizes in the hub's cache."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for name, size in files.items():
        (snapshot / name).write_bytes(bytes(size))


def test_everything_is_to_download_where_nothing_is_there(no_hub):
    plan = plan_of("study=vvs_table")
    assert [part.role for part in plan.parts] == ["target", "tokenizer", "text", "drafter"]
    assert all(part.missing and part.estimated for part in plan.parts)
    params = XL.stored + LLAMAGEN_VQ.params + FLAN_T5_XL.stored + XL.drafter
    assert plan.download == 4 * params


def test_what_is_cached_is_not_to_download(no_hub):
    cache(no_hub, "jadohu/LlamaGen-T2I", {"model.safetensors": 1000})
    cache(no_hub, "jadohu/llamagen_drafter", {"model.safetensors": 10})  # the other usual name
    target, tokenizer, _, drafter = plan_of("study=vvs_table").parts
    assert (target.missing, target.download, target.bytes) == ((), 0.0, 1000.0)
    assert not target.estimated and drafter.download == 0.0
    assert tokenizer.missing == ("vq_ds16_t2i.pt",)


def test_a_half_fetched_checkpoint_needs_its_missing_shards_only(no_hub):
    cache(no_hub, "google/flan-t5-xl", {known.shards(2)[1]: 5})
    (text,) = [p for p in plan_of("study=vvs_table").parts if p.role == "text"]
    assert text.missing == (known.shards(2)[2],)
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


def test_a_study_without_a_tokenizer_is_told_so(no_hub, tmp_path):
    (without,) = [n for n in plan_of("study=vvs_table", "model.tokenizer=null").notes if "tok" in n]
    assert "model.tokenizer=peizesun/llamagen_t2i" in without
    (tmp_path / "vq_ds16_t2i.pt").touch()
    beside = plan_of("study=vvs_table", "model.tokenizer=null", f"model.checkpoint={tmp_path}")
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


def test_the_printed_plan(no_hub, capsys):
    assert cmd_plan(["study=lantern_table", "metric=none"]) == 0
    shown = capsys.readouterr().out
    assert "llamagen_xl_256 on cuda (bfloat16), 19 decoders" in shown
    assert "to download: 15.0 GB (~ estimated" in shown
    assert "19,000 timed images" in shown and "95,000 for quality (batch 32), 5,000 for" in shown
    assert "GPU memory (estimated): weights 4.4 GB" in shown
    assert "time: nothing is measured yet" in shown and "latency.prompts=1" in shown
    assert "captions_val2017.json is not there" in shown
    assert cmd_plan(["study=vvs_table", "metric=none", "model.checkpoint=someone/else"]) == 0
    assert "size not known, not counted: someone/else" in capsys.readouterr().out


def test_memory_grows_with_the_batch_and_hours_are_not_guessed(no_hub):
    small, large = (plan_of("study=vvs_table", f"quality.batch={b}") for b in (8, 32))

    def peak(plan):
        return max(plan.memory(call.load) for call in plan.calls)

    assert peak(large) > peak(small) > small.weights
    few = plan_of("study=vvs_table", "quality.images=100", "latency.prompts=10")
    text = "\n".join([*work_lines(few), *time_lines(few)])
    assert "40 timed images" in text and "400 for quality" in text and "not measured" not in text
    assert text.splitlines()[-1] == NOTHING


def test_hours_on_a_machine_that_is_not_here_are_projected_from_its_floors(no_hub, capsys):
    from bench.cost.predict.machines import machine_of
    from bench.cost.predict.there import forward_of, of_shape

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
    assert cmd_plan(["study=lantern_table", "metric=none", "hardware=h200"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("time on H200")]
    assert "with every draft accepted" in line and "with none" in line
    with pytest.raises(ConfigError, match="h200"):
        cmd_plan(["study=speed", "hardware=h20"])


def test_more_drafts_accepted_take_fewer_hours_and_unknown_ones_are_named(no_hub):
    from bench.cost.predict.machines import machine_of

    machine, _ = machine_of(["hardware=a100"])
    lines = projected_lines(plan_of("study=vvs_table", "decoders=[eagle2]"), machine)
    found = re.findall(r"([\d.]+) (h|min) with", lines[0])
    few, many = (float(x) / {"h": 1, "min": 60}[unit] for x, unit in found)
    assert few < many / 2
    lines = projected_lines(plan_of("study=vvs_table", "decoders=[ar,sjd]"), machine)
    assert any(line.endswith("counted as AR: sjd") for line in lines)


AR = ("study=speed", "decoders=[ar]", "latency.prompts=8", "latency.blocks=1")


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
    once, thrice = (
        plan_of("study=speed", "latency.prompts=8", "latency.blocks=1", f"latency.repeats={n}")
        for n in (1, 3)
    )
    assert work_lines(once)[-1] == work_lines(thrice)[-1], "as many pictures"
    assert "8 timed images (" in work_lines(plan_of(*AR, "latency.repeats=1"))[0]
    assert "8 timed images, 3 times each (" in work_lines(plan_of(*AR, "latency.repeats=3"))[0]
    config = thrice.config
    entry = config.decoders[0]
    assert images(config, entry, "latency") == 8 and decodings(config, entry, "latency") == 24


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
    assert any("bench/cost/plan/checkpoints.py" in note for note in plan.notes)
    assert cmd_plan(["study=tiny_table"]) == 0
    shown = capsys.readouterr().out
    assert "to download: 0.0 GB" in shown and "9 decoders" in shown and "9 M" in shown
    shape = make(compose_study(["study=smoke", "model=tiny_grown", "model.layers=12"])).shape
    assert (shape.width, shape.layers, shape.ffn) == (384, 12, 1024)


def test_planning_imports_no_model():
    code = (
        "import sys\n"
        "from bench.cost.plan.command import cmd_plan\n"
        "cmd_plan(['study=tiny_table', 'decoders=[eagle2]'])\n"
        "print([m for m in sys.modules if m.startswith(('decoders.models.', 'decoders.tiny',"
        " 'transformers')) and m != 'decoders.models.sizes'])"
    )
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, env=AS_HERE, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


STUDIES = sorted(p.stem for p in (ROOT / "conf/study").glob("*_table*"))


@pytest.mark.parametrize("name", STUDIES)
def test_paper_studies_compose_with_the_protocol(name):
    config = compose_study([f"study={name}"])
    assert config.name == name and any(e.baseline for e in config.decoders)
    if name == "tiny_table":
        return
    assert (config.latency.prompts, config.quality.images) == (1000, 5000)
    assert config.backend.device == "cuda" and config.prompts.name == "coco"
    for entry in config.decoders:
        tree = entry.spec.tree
        if tree is not None and "Dynamic" in tree.target:
            assert tree.kwargs == {"depth": 5, "top_k": 10, "nodes": 58}
        rule = entry.spec.acceptance
        if rule is not None and "delta" in rule.kwargs:
            assert rule.kwargs["k"] == 1000 and 0.05 <= rule.kwargs["delta"] <= 0.4
