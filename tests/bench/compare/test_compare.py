"""`bench compare`: verdicts on made-up runs with made-up and shipped published numbers, and what is
refused of a file of them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bench.analyse.analyse import assembled
from bench.analyse.fairness import ROOFLINE_COLUMNS
from bench.analyse.paired import CLIP_COLUMNS, paired_speedup
from bench.analyse.run_data import RunData
from bench.compare import compare
from bench.compare import published as table
from bench.compare.compare import cmd_compare
from bench.compare.pairs import measured_decoders
from bench.compare.published import Published, load_names
from bench.compare.verdicts import Comparison, Reproduction, compare_rows
from bench.store import columns as made
from bench.store.findings import Findings
from decoders.errors import DecoderError

ALIKE = ("decoder", "model", "backend", "device", "dtype", "temperature", "cfg")
REPRODUCED, NOT_REPRODUCED, NOT_COMPARABLE = Reproduction
DYNAMIC = "dynamic(depth=5, top_k=10, nodes=58)"
BASE = {
    "study": "made up", "model": "llamagen_xl_256", "backend": "eager", "device": "cuda",
    "dtype": "bfloat16", "temperature": 1.0, "cfg": 7.5, "n_latency": 10, "n_quality": 5000,
    "fid_features": "inception-v3 clean", "status": "ok", "loop": "speculative",
    "drafter": "eagle(checkpoint=x)",
}  # fmt: skip
AR = {
    "decoder": "ar", "loop": "autoregressive", "drafter": "none", "acceptance": "none",
    "tree": "none", "speedup": 1.0, "latency_mean_s": 3.0,
}  # fmt: skip
EAGLE = {"decoder": "eagle2", "acceptance": "exact", "tree": DYNAMIC, "latency_mean_s": 3.2}
LANTERN = {
    "decoder": "lantern", "acceptance": "lantern(k=1000, delta=0.3, residual=released)",
    "tree": DYNAMIC, "latency_mean_s": 2.0,
}  # fmt: skip
PAPER = {
    "paper": "P", "arxiv": "2511.13587", "evidence": "table 1", "model": "LlamaGen-XL stage I",
    "dataset": "MS-COCO", "resolution": "256", "temperature": "1", "cfg": "7.5", "top_k": "1000",
    "gpu": "A40", "method": "LANTERN", "params": "k=1000 delta=0.3", "baseline": "AR",
}  # fmt: skip


def published(tmp_path: Path, *rows: dict[str, str]) -> list[Published]:
    """The rows of a published.csv; cells that a row leaves out are empty."""
    path = tmp_path / "published.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return table.load(path)


def made_run(*lines: dict[str, Any], **seconds: list[float]) -> RunData:
    """A run with a summary of the lines, and with latency rows of each decoder: these seconds on
    prompts 0, 1, ..., or its mean twice."""
    lines = tuple(BASE | line for line in lines)
    empty = {c.name: "" if c.type == "text" else math.nan for c in made.SUMMARY}
    summary = pd.DataFrame([empty | line for line in lines])
    timed = [
        {column.name: column.empty for column in made.RECORD}
        | {key: line[key] for key in ALIKE}
        | {
            "schema_version": made.SCHEMA_VERSION, "protocol": "latency", "status": "ok",
            "prompt_index": i, "block": i, "seconds_total": s, "mal": 2.0 + i / 10, "nfe": 100,
            "top_k": 1000, "gpu": line.get("gpu", "NVIDIA A40"),
        }
        for line in lines
        for i, s in enumerate(seconds.get(line["decoder"], [line["latency_mean_s"]] * 2))
    ]  # fmt: skip
    rows = pa.Table.from_pylist(timed, schema=made.SCHEMA).to_pandas()
    study = {"config": {"prompts": {"name": "coco"}}}
    pairs, floors = pd.DataFrame(columns=CLIP_COLUMNS), pd.DataFrame(columns=ROOFLINE_COLUMNS)
    return assembled(Path("made"), rows, study, Findings(), summary, pairs, floors, [])


def speed(value: float, width: float = 0.02) -> dict[str, float]:
    return {"speedup": value, "speedup_lo": value - width, "speedup_hi": value + width}


def compared(tmp_path: Path, papers: list[dict], *rows: dict, **seconds) -> list[Comparison]:
    run = made_run(*rows, **seconds)
    return compare_rows(published(tmp_path, *papers), run, load_names(), 0.1)


SPEED, FID = {"speedup": "1.45"}, {"fid": "24.97"}
OUR_FID = {"fid": 25.2, "fid_lo": 24.6, "fid_hi": 25.8}
H200 = {"gpu": "NVIDIA H200"}
NO_SPEED = dict.fromkeys(("speedup", "speedup_lo", "speedup_hi"), math.nan)


@pytest.mark.parametrize(
    ("stated", "ours", "verdict", "reason"),
    [
        (SPEED, speed(1.47, 0.01), REPRODUCED, "within the tolerance"),
        (SPEED, speed(1.80, 0.10), NOT_REPRODUCED, "outside our 95 % interval"),
        (SPEED, speed(1.20, 0.01), NOT_REPRODUCED, "beyond the tolerance"),
        ({"model": "LlamaGen-XL stage II", "resolution": "512"}, {}, NOT_COMPARABLE, "other model"),
        ({"temperature": "0"}, {}, NOT_COMPARABLE, "other temperature (published 0, here 1)"),
        ({"params": "k=1000 delta=0.2"}, {}, NOT_COMPARABLE, "published delta=0.2, here delta=0.3"),
        ({"baseline": "EAGLE-2"}, {}, NOT_COMPARABLE, "other baseline: no EAGLE-2"),
        ({"dataset": "PartiPrompts"}, {}, NOT_COMPARABLE, "other prompts"),
        ({}, {"tree": "dynamic(depth=4, top_k=4, nodes=10)"}, NOT_COMPARABLE, "other tree"),
        ({}, NO_SPEED, NOT_COMPARABLE, "was not measured"),
        ({"method": "SJD2"}, {}, NOT_COMPARABLE, "SJD2 has no rows that conf/decoder can"),
        ({}, {"loop": "vvs(interval=4)"}, NOT_COMPARABLE, "LANTERN was not measured in this run"),
        ({"method": "VVS"}, {"loop": "speculative"}, NOT_COMPARABLE, "VVS was not measured"),
        (FID, OUR_FID, REPRODUCED, "inside"),
        (FID, OUR_FID | {"fid_features": "scenes-clip"}, NOT_COMPARABLE,
         "other metric weights (scenes-clip"),
        (FID, OUR_FID | {"n_quality": 132}, NOT_COMPARABLE,
         "over 132 images (the protocol's are 5000)"),
        (FID, {"fid": 29.0, "fid_lo": 28.0, "fid_hi": 30.0}, NOT_REPRODUCED, "outside"),
        ({"latency_s": "2.05"}, {}, REPRODUCED, "within"),
        ({"latency_s": "2.05"}, H200, NOT_COMPARABLE, "other GPU"),
        (SPEED, H200, REPRODUCED, "within"),  # ratios do not need the same one
        ({"clip": "0.3223"}, {"clip": 32.4, "clip_features": "ViT-B-32 openai"}, REPRODUCED, ""),
        ({"clip": "0.3223"}, {"clip": 32.4}, NOT_COMPARABLE, "does not name the weights"),
    ],
)  # fmt: skip
def test_a_figure_is_judged_or_not_comparable_with_the_reason(
    tmp_path, stated, ours, verdict, reason
):
    row = PAPER | (stated if {"fid", "clip", "latency_s"} & {*stated} else SPEED | stated)
    (found,) = compared(tmp_path, [row], AR, LANTERN | speed(1.45) | ours)
    assert found.verdict is verdict and reason in found.why


def test_a_method_is_known_by_its_loop_and_proposer(tmp_path):
    """A skipping LANTERN is VVS; windows are told apart by how they draw, and by their size."""
    vvs = LANTERN | {"loop": "vvs(interval=4)"}
    window = {"acceptance": "exact", "tree": "none", "latency_mean_s": 2.0}
    rows = [
        vvs | speed(1.45),
        window | {"decoder": "sjd", "drafter": "jacobi(window=64)"} | speed(2.37),
        window | {"decoder": "scd", "drafter": "maximal(window=64)"} | speed(4.1),
        window | {"decoder": "old", "drafter": "maximal_other(window=64)"},
    ]
    papers = [
        PAPER | {"method": "VVS", "params": "", "speedup": "1.45"},
        PAPER | {"method": "SJD", "params": "L=64", "speedup": "2.37"},
        PAPER | {"method": "SCD-MC", "params": "L=32", "speedup": "4.18"},
    ]
    skipping, sjd, scd = compared(tmp_path, papers, AR, *rows)
    assert skipping.verdict is REPRODUCED
    assert sjd.decoder == "sjd" and sjd.verdict is REPRODUCED
    assert scd.decoder == "scd" and "published L=32, here L=64" in scd.why


def test_unstated_settings_are_assumed_and_said(tmp_path):
    row = PAPER | {"speedup": "1.45", "cfg": "", "params": "", "gpu": "", "temperature": ""}
    ours = LANTERN | {"acceptance": "lantern(k=1000, delta=0.3, residual=paper)"}
    (found,) = compared(tmp_path, [row], AR, ours | speed(1.45))
    assert found.verdict is REPRODUCED
    assert {"cfg 7.5", "temperature 1", "k=1000, delta=0.3"} <= set(found.assumed)


def test_a_ratio_to_eagle2_is_paired_over_shared_prompts(tmp_path):
    row = PAPER | {"speedup": "1.6", "baseline": "EAGLE-2"}
    rows = AR, EAGLE | speed(0.94), LANTERN | speed(1.5)
    slow, fast = [3.0, 3.4, 3.1, 3.3, 3.2, 3.5] * 2, [2.0, 1.8, 2.1, 1.9, 2.2, 1.7] * 2
    (found,) = compared(tmp_path, [row], *rows, ar=slow, eagle2=slow, lantern=fast)
    _, eagle, lantern = made_run(*rows, ar=slow, eagle2=slow, lantern=fast).entries
    paired = paired_speedup(eagle.records, lantern.records)
    assert paired is not None and found.figure == paired.interval()
    assert found.figure.value == pytest.approx(np.exp(np.mean(np.log(slow) - np.log(fast))))
    assert found.verdict is REPRODUCED and "inside our 95 % interval" in found.why


def test_disagreeing_papers_are_shown_beside_the_verdict(tmp_path):
    rows = [PAPER | {"speedup": "1.45"}, PAPER | {"paper": "Q", "speedup": "1.9"}]
    result = compared(tmp_path, rows, AR, LANTERN | speed(1.45))
    assert [c.verdict for c in result] == [REPRODUCED, NOT_REPRODUCED]
    assert [[*found.contradictions] for found in result] == [
        ["other sources give 1.9 (Q)"], ["other sources give 1.45 (P)"]
    ]  # fmt: skip


def test_an_embedded_run_reproduces_nothing(tmp_path, capsys, monkeypatch):
    rows = [r | {"model": "tiny", "device": "cpu", "cfg": 3.0} for r in (AR, EAGLE | speed(0.7))]
    monkeypatch.setattr(compare, "load", lambda _: made_run(*rows))
    assert cmd_compare([f"run_dir={tmp_path}", f"out={tmp_path / 'out'}"]) == 0
    shown = capsys.readouterr().out
    assert "0 reproduced, 0 not reproduced" in shown and "not comparable, " in shown
    text = (tmp_path / "out" / "compare.csv").read_text()
    assert "other model (published LlamaGen-XL stage I, here tiny)" in text


def test_compare_writes_the_table_of_the_shipped_numbers(tmp_path, monkeypatch):
    rows = [
        AR | {"fid": 24.9, "fid_lo": 24.5, "fid_hi": 25.3},
        EAGLE | speed(0.95) | {"mal": 1.2},
        LANTERN | speed(1.42) | {"mal": 2.0},
    ]
    monkeypatch.setattr(compare, "load", lambda _: made_run(*rows))
    assert cmd_compare([f"run_dir={tmp_path / 'run'}", "tolerance=0.05"]) == 0
    folder = tmp_path / "run" / "compare"
    table_ = pd.read_csv(folder / "compare.csv")
    vvs = table_[(table_.paper == "VVS") & (table_.model == "LlamaGen-XL stage I")]
    verdicts = vvs[vvs.figure == "speed-up over AR"].set_index("decoder").verdict
    assert verdicts["lantern"] == "reproduced" and verdicts["eagle2"] == "not reproduced"
    assert table_.evidence.notna().all() and set(table_.paper) >= {"COOL-SD", "PJD", "SCD"}


def test_failed_decoders_and_reseeds_are_left_out():
    failed = {"status": "failed: NumericalError: NaN"}
    run = made_run(AR, AR | {"decoder": "ar (reseed)"}, LANTERN | failed)
    assert [row.entry.name for row in measured_decoders(run)] == ["ar"]


# ---- published.csv ------------------------------------------------------------------------------


def test_the_shipped_numbers_load_and_keep_their_sources():
    rows = table.load()
    assert len(rows) == len(table.TABLE.read_text().splitlines()) - 1
    assert all(row.evidence and row.arxiv and row.figures for row in rows)
    assert all(row.baseline for row in rows if row.speedup is not None), "what it is over"
    (headline,) = [r for r in rows if r.evidence == "abstract v3" and r.temperature == 1]
    assert (headline.baseline, headline.figures) == ("EAGLE-2", {"speedup": 1.82})
    assert headline.cfg is None, "an empty cell is not stated, not zero"


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("speedup", "fast", "number, unable to parse string as a number, found 'fast'"),
        ("paper", "", "paper is missing"),
        ("speed_up", "2", "did you mean"),
    ],
)
def test_a_bad_cell_is_named_by_its_line(tmp_path, column, value, said):
    row = PAPER | {"speedup": "1.5"}
    with pytest.raises(DecoderError, match=rf"published.csv:3\.{column}") as error:
        published(tmp_path, row, row | {column: value})
    assert said in str(error.value)
