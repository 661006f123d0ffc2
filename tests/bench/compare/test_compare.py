"""`bench compare`: verdicts on made-up runs with made-up and shipped published numbers, and what is
refused of a file of them."""

import math
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from bench.analyse.analyse import analyse
from bench.analyse.figures import FIGURES, INTERVAL, Value
from bench.analyse.paired import paired_speedup
from bench.analyse.run import Entry, Run
from bench.commands import compare as command
from bench.commands.compare import cmd_compare
from bench.compare.compare import VERDICTS, compare, measured
from bench.compare.published import TABLE, as_number, load_names, load_published
from bench.config.arguments import groups
from bench.config.compose import compose_study
from bench.errors import FolderError
from bench.store import columns as made
from bench.store.facts import Findings, figures_by_name, flat
from decoders.errors import DecoderError
from metrics.scores import Score, Scores
from metrics.stats import Interval
from tests.bench.compare import made_runs
from tests.bench.compare.made_runs import part

NAMES = load_names()
ALIKE = ("decoder", "model", "backend", "device", "dtype", "temperature", "cfg")
REPRODUCED, NOT_REPRODUCED, NOT_TOLD, NOT_COMPARABLE = VERDICTS
DYNAMIC = part("propose.trees.dynamic.Dynamic", depth=5, top_k=10, nodes=58)
RULE = part("verify.lantern.Lantern", k=1000, delta=0.3, residual="released", metric="raw",
            distance="tvd")  # fmt: skip
BASE = {
    "study": "made up", "model": "llamagen_xl_256", "backend": "eager", "device": "cuda",
    "dtype": "bfloat16", "temperature": 1.0, "cfg": 7.5, "n_latency": 10, "n_quality": 5000,
    "fid_features": "inception-v3 clean", "status": "ok", "latency_mean_s": 2.0,
    **made_runs.BASE, "tree": DYNAMIC,
}  # fmt: skip
PARTS = ("loop", "drafter", "tree", "acceptance", "proposer")
AR = made_runs.AR | {"decoder": "ar", "speedup": 1.0, "latency_mean_s": 3.0}
EAGLE2 = {"decoder": "eagle2", "latency_mean_s": 3.2}
LANTERN = {"decoder": "lantern", "acceptance": RULE}
PAPER = {
    "paper": "P", "arxiv": "2511.13587", "evidence": "table 1", "model": "LlamaGen-XL stage I",
    "dataset": "MS-COCO", "resolution": "256", "temperature": "1", "cfg": "7.5", "top_k": "1000",
    "gpu": "A40", "method": "LANTERN", "params": "k=1000 delta=0.3", "baseline": "AR",
}  # fmt: skip


def ruled(**kwargs: object) -> dict[str, Any]:
    """LANTERN with other settings of its rule."""
    return {"acceptance": {**RULE, "kwargs": RULE["kwargs"] | kwargs}}


def published(tmp_path: Path, *rows: dict[str, str]) -> pd.DataFrame:
    """The figures of a published.csv; cells that a row leaves out are empty."""
    path = tmp_path / "published.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return load_published(NAMES["figures"], path)


def made_run(*lines: dict[str, Any], **seconds: list[float]) -> Run:
    """A run with the figures of the lines, and with latency rows of each decoder: these seconds on
    prompts 0, 1, ..., or its mean twice."""
    by_name = {line["decoder"]: BASE | line for line in lines}
    timed = [
        {column.name: column.empty for column in made.ROW}
        | {key: line[key] for key in ALIKE}
        | {
            "schema_version": made.SCHEMA_VERSION, "protocol": "latency", "status": "ok",
            "prompt_index": i, "block": i, "seconds_total": s, "mal": line.get("mal", 2.0),
            "nfe": line.get("forwards", 100), "started_at": f"2026-01-01T00:{i:02}:00+00:00",
            "top_k": line.get("top_k", 1000), "gpu": line.get("gpu", "NVIDIA A40"),
        }
        for name, line in by_name.items()
        for i, s in enumerate(seconds.get(name, [line["latency_mean_s"]] * 2))
    ]  # fmt: skip
    rows = pa.Table.from_pylist(timed, schema=made.SCHEMA).to_pandas()
    decoders = [
        {"name": name, "baseline": line["loop"]["target"] == AR["loop"]["target"],
         "spec": {"name": name, **{part: line[part] for part in PARTS}}}
        for name, line in by_name.items()
    ]  # fmt: skip
    study = {"config": {"prompts": {"name": "coco"}, "decoders": decoders}}
    named = {name: figures_by_name(line)["figures"] for name, line in by_name.items()}
    scores = {name: Scores({f: Score(**one) for f, one in named[name].items()}) for name in named}
    run = analyse(Path("made"), rows, study, Findings(scores=scores))

    def change(entry: Entry) -> Entry:
        line, figures = by_name[entry.name], dict[str, Value]()
        for one in FIGURES:
            ends = (line.get(one.name + end, math.nan) for end in ("", "_lo", "_hi"))
            if one.kind == INTERVAL and one.name != "mal":
                figures[one.name] = Interval(*ends)
        more = {"n_quality": float(line["n_quality"]), "status": line["status"]}
        return replace(entry, figures={**entry.figures, **figures, **more})

    sections = [replace(s, entries=[*map(change, s.entries)]) for s in run.sections]
    return replace(run, sections=sections)


def speed(value: float, width: float = 0.02) -> dict[str, float]:
    return {"speedup": value, "speedup_lo": value - width, "speedup_hi": value + width}


def compared(tmp_path: Path, papers: list[dict], *rows: dict, **seconds) -> list[Any]:
    found = compare(published(tmp_path, *papers), made_run(*rows, **seconds), NAMES, 0.1)
    return [*found.itertuples()]


SPEED, FID = {"speedup": "1.45"}, {"fid": "24.97"}
OUR_FID = {"fid": 25.2, "fid_lo": 24.6, "fid_hi": 25.8}
OUR_CLIP = {"clip": 32.4, "clip_lo": 32.2, "clip_hi": 32.6, "clip_features": "ViT-B-32 openai"}
OUR_PRC = {"precision": 0.5, "recall": 0.665, "prc_features": "vgg16"}
OUR_HPS = {"hps": 23.3, "hps_features": "HPSv2.1"}
H200 = {"gpu": "NVIDIA H200"}
NO_SPEED = dict.fromkeys(("speedup", "speedup_lo", "speedup_hi"), math.nan)
SMALL_TREE = {"tree": {**DYNAMIC, "kwargs": {"depth": 5, "top_k": 2, "nodes": 7}}}
VVS = part("loops.vvs.Vvs", interval=4)


@pytest.mark.parametrize(
    ("stated", "ours", "verdict", "reason"),
    [
        (SPEED, speed(1.47, 0.01), REPRODUCED, "1.470 [1.460, 1.480] against 1.45 ± 0.145"),
        (SPEED, speed(1.80, 0.10), NOT_REPRODUCED, "against 1.45 ± 0.145"),
        (SPEED, speed(1.20, 0.01), NOT_REPRODUCED, "against 1.45 ± 0.145"),
        (SPEED, {"speedup": 2.90, "speedup_lo": 1.16, "speedup_hi": 7.25}, NOT_TOLD, "against"),
        (SPEED, {"speedup": 1.45, "speedup_lo": 1.2, "speedup_hi": 1.7}, NOT_TOLD, "against"),
        (SPEED, {"speedup": 1.45} | dict.fromkeys(("speedup_lo", "speedup_hi"), math.nan),
         NOT_TOLD, "no interval"),
        ({"model": "LlamaGen-XL stage II", "resolution": "512"}, {}, NOT_COMPARABLE,
         "other model (published LlamaGen-XL stage II, here llamagen_xl_256)"),
        ({"temperature": "0"}, {}, NOT_COMPARABLE, "other temperature (published 0, here 1)"),
        ({"params": "k=1000 delta=0.2"}, {}, NOT_COMPARABLE, "delta (published 0.2, here 0.3)"),
        ({"params": "k=1000 delta=0.3 T0=2.5"}, {}, NOT_COMPARABLE,
         "other T0 (published 2.5, here not set)"),
        ({"baseline": "EAGLE-2"}, {}, NOT_COMPARABLE, "other baseline: no EAGLE-2"),
        ({"dataset": "PartiPrompts"}, {}, NOT_COMPARABLE, "other prompts"),
        ({}, SMALL_TREE, NOT_COMPARABLE, "other tree.nodes (published 58, here 7)"),
        ({}, ruled(metric="tokenizer"), NOT_COMPARABLE, "other acceptance.metric"),
        ({}, NO_SPEED, NOT_COMPARABLE, "speed-up was not measured"),
        ({"method": "SJD2"}, {}, NOT_COMPARABLE, "the method is not implemented"),
        ({}, {"loop": VVS}, NOT_COMPARABLE, "the method was not measured"),
        ({"method": "VVS"}, {}, NOT_COMPARABLE, "the method was not measured"),
        ({"model": "", "resolution": ""}, {}, NOT_COMPARABLE, "the source names no model"),
        (FID, OUR_FID, REPRODUCED, "assumes 5000 images"),
        (FID, OUR_FID | {"fid_features": "scenes-clip"}, NOT_COMPARABLE,
         "other weights (published inception clean, here scenes-clip)"),
        (FID, OUR_FID | {"n_quality": 132}, NOT_COMPARABLE,
         "other number of images (published 5000, here 132)"),
        (FID | {"images": "500"}, OUR_FID, NOT_COMPARABLE, "images (published 500, here 5000)"),
        (FID | {"images": "500"}, OUR_FID | {"n_quality": 500}, REPRODUCED, "against"),
        (FID, {"fid": 29.0, "fid_lo": 28.0, "fid_hi": 30.0}, NOT_REPRODUCED, "29.000 [28"),
        ({"latency_s": "2.05"}, {}, REPRODUCED, "against"),
        ({"latency_s": "2.05"}, H200, NOT_COMPARABLE, "GPU (published A40, here NVIDIA H200)"),
        ({"latency_s": "2.05", "gpu": "RTX 3090"}, {"gpu": "NVIDIA GeForce RTX 3090"},
         REPRODUCED, "against"),
        ({"latency_s": "2.05", "gpu": "RTX 3090"}, {"gpu": "NVIDIA GeForce RTX 3090 Ti"},
         NOT_COMPARABLE, "other GPU"),
        ({"latency_s": "2.05", "gpu": ""}, {}, NOT_COMPARABLE, "without its name"),
        (SPEED, speed(1.45) | {"device": "cpu"}, NOT_COMPARABLE, "on a CPU"),
        (SPEED, speed(1.45) | H200, NOT_COMPARABLE, "other GPU (published A40, here NVIDIA H200)"),
        ({"clip": "0.3223"}, OUR_CLIP, REPRODUCED, "± 0.5"),
        ({"clip": "0.3223"}, OUR_CLIP | {"clip_features": ""}, NOT_COMPARABLE, "other weights"),
        ({"recall": "0.6690"}, OUR_PRC, REPRODUCED, "0.665 (no interval) against 0.669 ± 0.02"),
        ({"recall": "0.6384"}, OUR_PRC, NOT_REPRODUCED, "0.665 (no interval)"),
        ({"hps": "23.1"}, OUR_HPS, REPRODUCED, "23.300 (no interval)"),
    ],
)  # fmt: skip
def test_a_figure_is_judged_or_not_comparable_with_the_reason(
    tmp_path, stated, ours, verdict, reason
):
    row = PAPER | (stated if {*stated} & {*NAMES["figures"]} else SPEED | stated)
    ours = speed(1.45) | ours
    (found,) = compared(
        tmp_path, [row], AR | {"device": ours.get("device", "cuda")}, LANTERN | ours
    )
    assert found.verdict == verdict and reason in found.why


def test_a_method_is_known_by_the_classes_of_its_parts(tmp_path):
    """A skipping LANTERN is VVS; windows are told apart by how they draw, and by their size."""
    window = {"drafter": None, "tree": None}
    rows = [
        LANTERN | {"loop": VVS} | speed(1.45),
        window | {"decoder": "sjd", "proposer": part("propose.jacobi.Jacobi", window=64)}
        | speed(2.37),
        window | {"decoder": "scd", "proposer": part("propose.maximal.Maximal", window=64)}
        | speed(4.1),
        window | {"decoder": "mine", "proposer": part("propose.mine.Maximal", window=64)},
    ]  # fmt: skip
    papers = [
        PAPER | {"method": "VVS", "params": "", "speedup": "1.45"},
        PAPER | {"method": "SJD", "params": "L=64", "speedup": "2.37"},
        PAPER | {"method": "SCD-MC", "params": "L=32", "speedup": "4.18"},
    ]
    skipping, sjd, scd = compared(tmp_path, papers, AR, *rows)
    assert skipping.verdict == REPRODUCED and "interval 4" in skipping.assumed
    assert sjd.decoder == "sjd" and sjd.verdict == REPRODUCED
    assert scd.decoder == "scd" and "other L (published 32, here 64)" in scd.why


@pytest.mark.parametrize(
    ("method", "params", "parts", "reason"),
    [
        ("EAGLE-1", "", {"tree": part("propose.trees.static.Static", choices="binary_8")},
         "other tree.choices (published mc_sim_7b_63, here binary_8)"),
        ("COOL-SD", "delta=2", {"tree": part("propose.trees.chain.Chain", depth=4),
         "acceptance": part("verify.cool_sd.CoolSD", delta=2)},
         "other tree.depth (published 5, here 4)"),
        ("SJD-PAC", "K=4 D=3 L=64", {"drafter": None, "tree": None,
         "proposer": part("propose.pac.Pac", window=64, candidates=4, levels=1)},
         "other D (published 3, here 2)"),
        ("AR", "T0=2.5 alpha=3", {"loop": AR["loop"]}, "other T0 (published 2.5, here not set)"),
        ("EAGLE-1", "", {"tree": part("propose.trees.static.Static", choices="mc_sim_7b_63")}, ""),
        ("COOL-SD", "delta=2", {"tree": part("propose.trees.chain.Chain", depth=5),
         "acceptance": part("verify.cool_sd.CoolSD", delta=2)}, ""),
        ("SJD-PAC", "K=4 D=3 L=64", {"drafter": None, "tree": None,
         "proposer": part("propose.pac.Pac", window=64, candidates=4, levels=2)}, ""),
    ],
)  # fmt: skip
def test_a_setting_that_we_lack_or_set_otherwise_is_not_comparable(
    tmp_path, method, params, parts, reason
):
    row = PAPER | {"method": method, "params": params, "mal": "2.0", "baseline": "none"}
    (found,) = compared(tmp_path, [row], {"decoder": "ours", "mal": 2.0} | parts)
    assert (found.verdict == REPRODUCED) == (not reason) and reason in found.why


def test_unstated_settings_are_assumed_and_said(tmp_path):
    row = PAPER | {"speedup": "1.45", "cfg": "", "params": "", "gpu": "", "temperature": ""}
    (found,) = compared(tmp_path, [row], AR, LANTERN | ruled(residual="paper") | speed(1.45))
    assert found.verdict == REPRODUCED
    assert {"cfg 7.5", "temperature 1", "k 1000", "delta 0.3"} <= {*found.assumed.split(", ")}
    assert f"assumes {found.assumed}" in found.why


def test_a_figure_without_its_setting_has_one_verdict(tmp_path):
    """Where decoders that differ in what is not stated agree, it is theirs; else there is none."""
    row = PAPER | {"params": "", "speedup": "1.45"}
    ours = [
        LANTERN | ruled(delta=delta) | {"decoder": f"d{delta}"} | speed(value)
        for delta, value in ((0.1, 1.43), (0.2, 1.45), (0.4, 1.9))
    ]
    (agreed,) = compared(tmp_path, [row], AR, *ours[:2])
    assert (agreed.verdict, agreed.decoder, agreed.decoders) == (
        REPRODUCED,
        "d0.2",
        "d0.1 reproduced, d0.2 reproduced",
    )
    (found,) = compared(tmp_path, [row], AR, *ours)
    assert found.verdict == NOT_COMPARABLE and found.why == found.no_setting
    assert found.why.startswith("without its setting")
    assert found.decoders == "d0.1 reproduced, d0.2 reproduced, d0.4 not reproduced"


def test_a_ratio_to_eagle2_is_paired_over_shared_prompts(tmp_path):
    row = PAPER | {"speedup": "1.6", "baseline": "EAGLE-2"}
    rows = AR, EAGLE2 | speed(0.94), LANTERN | speed(1.5)
    slow, fast = [3.2, 3.3, 3.2, 3.3, 3.2, 3.3] * 2, [2.0, 2.1, 2.0, 2.1, 2.0, 2.0] * 2
    (found,) = compared(tmp_path, [row], *rows, ar=slow, eagle2=slow, lantern=fast)
    _, eagle, lantern = made_run(*rows, ar=slow, eagle2=slow, lantern=fast).entries
    paired = paired_speedup(eagle.rows, lantern.rows)
    assert paired is not None
    assert (found.value, found.lo, found.hi) == tuple(vars(paired.interval()).values())
    assert found.value == pytest.approx(np.exp(np.mean(np.log(slow) - np.log(fast))))
    assert found.verdict == REPRODUCED


def test_disagreeing_papers_are_shown_beside_the_verdict(tmp_path):
    rows = [PAPER | {"speedup": "1.45"}, PAPER | {"paper": "Q", "speedup": "1.9"}]
    result = compared(tmp_path, rows, AR, LANTERN | speed(1.45))
    assert [c.verdict for c in result] == [REPRODUCED, NOT_REPRODUCED]
    assert all("sources give 1.45 (P), 1.9 (Q)" in found.why for found in result)


def agreeing_run(study: str, paper: str, model: str, factor: float) -> Run:
    """A study with the figures that a paper published for a model, times a factor."""
    figures, lines = load_published(NAMES["figures"]), []
    figures = figures[(figures.paper == paper) & (figures.model == model)]
    config = compose_study([f"study={study}"])
    for one in config.decoders:
        spec = asdict(one.spec)
        parts = flat(spec)
        methods = [m for m in NAMES["methods"].values() if m.parts.items() <= parts.items()]
        line = {"decoder": one.name, "model": config.model.name} | {p: spec[p] for p in PARTS}
        line |= {"clip_features": "ViT-B-32", "prc_features": "vgg16"}
        for row in figures[figures.method == methods[0].name].itertuples():
            stated = dict(setting.split("=") for setting in row.params.split())
            if any(as_number(parts[methods[0].params[k]]) != v for k, v in stated.items()):
                continue
            line[row.metric] = row.published * factor
            if row.metric in ("speedup", "fid", "clip"):
                line |= {f"{row.metric}{end}": row.published * factor for end in ("_lo", "_hi")}
        lines.append(line)
    return made_run(*lines)


def test_a_run_that_agrees_reproduces_and_one_30_percent_off_does_not():
    counts = {}
    for factor in (1.0, 1.3):
        run = agreeing_run("vvs_table", "VVS", "LlamaGen-XL stage I", factor)
        found = compare(load_published(NAMES["figures"]), run, NAMES, 0.1)
        own = found[(found.paper == "VVS") & (found.model == "LlamaGen-XL stage I")]
        assert {*own.method} == {"AR", "EAGLE-2", "LANTERN", "VVS"}
        counts[factor] = own.verdict.value_counts().to_dict()
        assert len(found) == len(load_published(NAMES["figures"])), (
            "one verdict per published figure"
        )
    assert counts == {1.0: {REPRODUCED: 22}, 1.3: {NOT_REPRODUCED: 22}}


def test_the_study_of_jacobi_decoders_has_the_decoders_of_the_published_rows():
    run = agreeing_run("sjd_table", "PJD", "Lumina-mGPT-7B", 1.0)
    found = compare(load_published(NAMES["figures"]), run, NAMES, 0.1)
    lumina = found[(found.model == "Lumina-mGPT-7B") & (found.resolution == "768")]
    methods = {"AR", "SJD", "SCD-MC", "SCD-GS", "SJD-PAC", "GSD", "PJD"}
    stated = lumina[lumina.method.isin(methods) & (lumina.params != "")]
    assert len({*stated.line}) == 11 and not stated.other_settings.any()
    rows = found[(found.paper == "PJD") & (found.model == "Lumina-mGPT-7B")]
    rows = rows[rows.method.isin(["AR", "PJD"])]
    same, quality = rows[rows.verdict == REPRODUCED], ("forwards", "fid", "clip")
    assert {*zip(same.decoder, same.metric, strict=True)} == {
        *((name, metric) for name in ("ar", "pjd_c16", "pjd_c11") for metric in quality),
        *((f"pjd_c{c}", metric) for c in (16, 11) for metric in ("speedup", "mal")),
    }
    assert {*rows[rows.verdict != REPRODUCED].metric} == {"latency_s"}  # of a GPU without its name


def test_an_embedded_run_reproduces_nothing(tmp_path, capsys, monkeypatch):
    rows = [r | {"model": "tiny", "device": "cpu", "cfg": 3.0} for r in (AR, EAGLE2 | speed(0.7))]
    monkeypatch.setattr(command, "load", lambda _: made_run(*rows))
    assert cmd_compare([f"run_dir={tmp_path}"]) == 0
    assert not [*tmp_path.iterdir()], "nothing is written without out="
    shown = capsys.readouterr().out
    count = len(load_published(NAMES["figures"]))
    assert f"0 reproduced, 0 not reproduced, 0 not told, {count} not comparable" in shown
    reasons = [line for line in shown.splitlines() if line.startswith("not comparable")]
    assert reasons == ["not comparable: no paper measured tiny, the model of this run"]


def test_compare_writes_the_table_of_the_shipped_numbers(tmp_path, monkeypatch):
    rows = [
        AR | {"fid": 24.9, "fid_lo": 24.5, "fid_hi": 25.3},
        EAGLE2 | speed(0.95) | {"mal": 1.2},
        LANTERN | speed(1.42) | {"mal": 2.0},
    ]
    monkeypatch.setattr(command, "load", lambda _: made_run(*rows))
    words = [f"run_dir={tmp_path / 'run'}", "tolerance=0.05"]
    assert cmd_compare([*words, f"out={tmp_path / 'out'}"]) == 0
    written = pd.read_csv(tmp_path / "out" / "compare.csv")
    vvs = written[(written.paper == "VVS") & (written.model == "LlamaGen-XL stage I")]
    verdicts = vvs[vvs.metric == "speedup"].set_index("decoder").verdict
    assert verdicts["lantern"] == REPRODUCED and verdicts["eagle2"] == NOT_REPRODUCED
    assert written.evidence.notna().all() and {*written.paper} >= {"COOL-SD", "PJD", "SCD"}
    assert len(written) == len(load_published(NAMES["figures"]))


def test_failed_decoders_and_reseeds_are_left_out():
    failed = {"status": "failed: NumericalError: NaN"}
    run = made_run(AR, AR | {"decoder": "ar (reseed)"}, LANTERN | failed)
    assert {*measured(run, NAMES).decoder} == {"ar"}
    with pytest.raises(FolderError, match="no decoder with figures"):
        measured(made_run(AR | failed), NAMES)


# ---- published.csv ------------------------------------------------------------------------------


def cells() -> pd.DataFrame:
    return pd.read_csv(TABLE, dtype=str, keep_default_na=False)


def test_the_shipped_numbers_load_and_keep_their_sources():
    figures = load_published(NAMES["figures"])
    assert {*figures.line} <= {*range(2, len(cells()) + 2)}
    assert (figures.evidence != "").all() and (figures.arxiv != "").all()
    (headline,) = figures[
        (figures.evidence == "abstract v3") & (figures.temperature == "1")
    ].itertuples()
    assert (headline.baseline, headline.metric, headline.published) == ("EAGLE-2", "speedup", 1.82)
    assert headline.cfg == "", "an empty cell is not stated, not zero"
    clip = figures[figures.metric == "clip"].published
    assert clip.between(10, 50).all(), "in our unit"


def test_every_published_model_is_ours_or_listed_with_the_reason():
    names = NAMES
    ours = {name for model in names["models"].values() for name in model["names"]}
    assert ours.isdisjoint(names["not_available"])
    assert {*cells().model} <= ours | {*names["not_available"]}
    assert {*names["not_available"]} <= {*cells().model}, "no reason for what nobody published"
    options = groups()["model"]
    assert {*names["models"]} <= {*options}, "each is an option of conf/model"


def test_the_settings_of_methods_are_those_of_their_parts():
    """A renamed setting would make every published row not comparable."""
    options = groups()
    for decoder, text in options["decoder"].items():
        config = yaml.safe_load(text)
        method = NAMES["methods"].get((config.get("published") or {}).get("name"))
        if method is None:
            continue
        parts = {
            part: yaml.safe_load(options[part][o])
            for part, o in config["published"].get("parts", {}).items()
        }
        parts["loop"] = config["loop"]
        for place in (*method.settings, *method.params.values()):
            part_, _, key = place.partition(" + ")[0].partition(".")
            assert key in parts[part_], f"{decoder}: {place}"


def test_no_result_of_a_paper_is_listed_twice():
    figures = [*NAMES["figures"]]
    for _, rows in cells().groupby(["arxiv", "method", "model"]):
        for a, b in combinations(rows.to_dict("records"), 2):
            differs = ("temperature", "resolution", "params", "images", "gpu")
            if any(a[k] and b[k] and a[k] != b[k] for k in differs) or a["method"] == "AR":
                continue
            same = [k for k in figures if a[k] and b[k] and float(a[k]) == float(b[k])]
            assert not same or a["dataset"][:6] != b["dataset"][:6], (a, b)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("speedup", "fast", "must be a ratio from 0.2 to 50, found 'fast'"),
        ("speedup", "145", "must be a ratio from 0.2 to 50, found '145'"),
        ("hps", "0.231", "must be 100 times a cosine from 10 to 50, found '0.231'"),
        ("clip", "32.2", "must be a cosine from 0.1 to 0.5, found '32.2'"),
        ("recall", "66.9", "must be a share from 0.01 to 1, found '66.9'"),
        ("latency_s", "2050", "must be seconds per image from 0.05 to 1000, found '2050'"),
        ("temperature", "warm", "must be a number from 0 to 1e+06, found 'warm'"),
        ("params", "k:1000", "must be written as k=1000 delta=0.3, found 'k:1000'"),
        ("baseline", "", "must be what the speed-up is over, found ''"),
        ("paper", "", "must be given"),
    ],
)
def test_a_bad_cell_is_named_by_its_line(tmp_path, column, value, said):
    row = PAPER | {"speedup": "1.5"}
    with pytest.raises(DecoderError, match=rf"published.csv:3\.{column}") as error:
        published(tmp_path, row, row | {column: value})
    assert said in str(error.value) and "correct" in str(error.value)


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(DecoderError, match=r"published.csv:1: .*'speed_up'; did you mean"):
        published(tmp_path, PAPER | {"speed_up": "2"})


def test_a_first_row_of_too_many_cells_is_refused_and_not_cut(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("paper,arxiv,evidence,method\nP,1,table 1, rows 2 and 3,LANTERN\n")
    with pytest.raises(DecoderError, match=r"published.csv must be a table .* a comma in quotes"):
        load_published(NAMES["figures"], path)


# ---- studies of papers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "paper", "method"),
    [
        ("lantern_table", "LANTERN", "LANTERN"),
        ("lantern_pp_table", "LANTERN++", "LANTERN++"),
        ("cool_sd_table", "COOL-SD", "COOL-SD"),
        ("vvs_table", "VVS", "VVS"),
        ("vvs_table_512", "VVS", "VVS"),
        ("mulo_sd_baselines", "MuLo-SD", None),
    ],
)
def test_a_study_of_a_paper_runs_its_method_with_its_settings_and_metrics(study, paper, method):
    config, names, cells_ = compose_study([f"study={study}"]), NAMES, cells()
    models = ["", *names["models"][config.model.name]["names"]]  # "": the paper names none
    rows = cells_[(cells_.paper == paper) & cells_.model.isin(models)]
    assert len(rows)
    assert config.metric.kwargs["hps"] or not (rows.hps != "").any()
    if method is None:
        return
    ours = [flat(asdict(one.spec)) for one in config.decoders]
    wanted = names["methods"][method]
    fitting = [p for p in ours if {**wanted.parts, **wanted.settings}.items() <= p.items()]
    assert fitting, f"{study} has no {method} with the settings of its authors"
    for params in rows[rows.method == method].params:
        stated = {wanted.params[k]: float(v) for k, v in (w.split("=") for w in params.split())}
        assert any(stated.items() <= p.items() for p in fitting), f"{study}: {params}"
