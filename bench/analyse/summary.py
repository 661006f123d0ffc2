"""The summary: a line per decoder, made from the rows and the findings of a run (METHODS 5).

Times come from the latency protocol. Acceptance, TV shift and quality come from the quality
protocol (from latency rows where there is none). The speed-up is the paired ratio to the baseline
of the same temperature and guidance. The baseline under a second seed has a row of its own, named
`<baseline> (reseed)`: they tell what is noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse import paired
from bench.analyse.run_data import as_text
from bench.store.columns import SUMMARY
from bench.store.findings import Findings, Scores
from metrics.stats import UNKNOWN, student_ratio
from metrics.traces import tested_share, tv_shift_summary

NAN = math.nan
COLUMNS = [column.name for column in SUMMARY]
SPEEDUP = (
    "speedup", "speedup_lo", "speedup_hi", "speedup_blocks", "speedup_least", "speedup_greatest"
)  # fmt: skip
LATENCY = ("latency_mean_s", "latency_p50_s", "latency_p95_s")
IDENTITY = COLUMNS[:12]  # as rows have them
POOLED = ("mal", "mal_no_bonus", "mal_expected")  # codes per forward
TV = (
    "tv_bound", "tv_shift_mean", "tv_shift_max", "tv_output", "tv_output_lo", "tv_output_hi",
    "tv_output_bound", "tv_tested", "tv_declared_bound",
)  # fmt: skip
UNSCORED = Scores()


def summary_of(
    rows: pd.DataFrame,
    baselines: Mapping[str, str | None],
    unmeasured: Collection[str],
    findings: Findings,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The summary, a line per decoder and reseed, and the CLIP differences from the baseline, of
    the rows of a run. baselines: of `paired.baselines_of`; unmeasured: whose speed-ups do not
    count."""
    lines, clip = list[dict[str, Any]](), dict[str, list[paired.Scored]]()
    for name, baseline in baselines.items():
        clip[name] = []
        for label, part in paired.rows_by_line(name, rows).items():
            score, images = findings.scores.get(label, UNSCORED), drawn(part)
            line = _line(part, images) | vars(score) | {"decoder": label}
            if label == name and name not in unmeasured:
                line |= _speedup(rows[rows.decoder == baseline], part)
            verdict = findings.gate.get(name)
            lines.append(line | {"exactness": "" if verdict is None else verdict.text})
            indices = pictures(images).prompt_index.astype(int)
            each = zip(indices, score.clip_each, strict=True) if score.clip_each else ()
            clip[name].append(dict(each))
    table = pd.DataFrame(lines)[COLUMNS]
    for column in SUMMARY:
        kind = str if column.type == "text" else float
        table[column.name] = table[column.name].map(as_text if kind is str else float).astype(kind)
    return table, paired.clip_differences(baselines, clip)


def drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """The quality images of a line of the summary that came out, prompt by prompt."""
    good = rows[rows.protocol.isin(("quality", "reseed")) & (rows.status == "ok")]
    return good.sort_values("prompt_index")


def pictures(images: pd.DataFrame) -> pd.DataFrame:
    """Those of which a picture is kept."""
    return images[images.image != ""]


def _line(rows: pd.DataFrame, drawn: pd.DataFrame) -> dict[str, Any]:
    """Makes all columns but the label, the quality figures, the speed-up and the verdict. drawn:
    quality images that came out."""
    first, alone = rows.iloc[0], paired.timings(rows)
    timed = paired.latency_rows(rows)
    seconds = timed["seconds_total"].to_numpy(float)
    line: dict[str, Any] = {key: first[key] for key in IDENTITY}
    line |= {"n_latency": timed["prompt_index"].nunique()} | dict.fromkeys(LATENCY, NAN)
    if len(seconds):
        figures = seconds.mean(), np.median(seconds), np.quantile(seconds, 0.95)
        line |= dict(zip(LATENCY, map(float, figures), strict=True))
    line |= _acceptance(drawn if len(drawn) else paired.image_rows(alone))
    line |= dict.fromkeys(SPEEDUP, NAN) | {"n_quality": len(drawn)}
    # Later blocks are timed beside what quality batches have left in memory.
    alone = alone[alone.block == alone.block.min()]
    line["peak_memory_mb"] = float((alone if len(alone) else drawn)["peak_memory_mb"].max())
    failed = rows[rows.status == "failed"]
    line["status"] = "ok"
    if len(failed):
        count = "failed" if len(failed) == len(rows) else f"{len(failed)} of {len(rows)} images"
        count += " failed" * (len(failed) < len(rows))
        line["status"] = f"{count}: {failed.error.iloc[0]}"
    return line


def _speedup(baseline: pd.DataFrame, rows: pd.DataFrame) -> dict[str, float]:
    """Makes the columns of the speed-up; {} where the two were not timed in the same blocks."""
    ratio = paired.paired_speedup(baseline, rows)
    if ratio is None:
        return {}
    interval = ratio.interval()
    values = (ratio.value, interval.lo, interval.hi, ratio.blocks, ratio.least, ratio.greatest)
    return dict(zip(SPEEDUP, values, strict=True))


def _acceptance(used: pd.DataFrame) -> dict[str, float]:
    """Makes the columns of codes and accepted drafts per target forward (pooled over images),
    forwards, TV shift and output TV."""
    if used.empty:
        return dict.fromkeys((*POOLED, "nfe", *TV), NAN)
    nfe = used["nfe"].to_numpy(float)
    tv_shift = tv_shift_summary(
        *(np.concatenate(used[c].to_list()) for c in ("tv_shift", "bound", "kind"))
    )
    away, limit, declared = (
        used[name].map(np.sum).to_numpy(float)
        for name in ("tv_output", "tv_output_bound", "tv_declared_bound")
    )
    nodes = used.tv_output.map(len).to_numpy(float)  # recorded, all of them tested a draft
    share = tested_share(used.kind)
    codes = np.divide(nodes, share, out=np.zeros_like(nodes), where=share > 0)
    output = UNKNOWN
    if (nodes > 0).sum() > 1:  # nodes of an image are alike: its images are what was drawn
        output = student_ratio(away, codes)
    return {
        **{name: float((used[name] * nfe).sum(min_count=1) / nfe.sum()) for name in POOLED},
        "nfe": float(nfe.mean()),
        "tv_bound": tv_shift.bound_max,
        "tv_shift_mean": tv_shift.mean,
        "tv_shift_max": tv_shift.max,
        "tv_output_lo": max(output.lo, 0.0),
        "tv_output_hi": output.hi,
        "tv_output": _pooled_ratio(away, codes),
        "tv_output_bound": _pooled_ratio(limit, codes),
        "tv_tested": _pooled_ratio(away, nodes),
        "tv_declared_bound": _pooled_ratio(declared, nodes),
    }


def _pooled_ratio(sums: np.ndarray, counts: np.ndarray) -> float:
    """Divides the sums over all images; NaN where nothing was counted."""
    return float(sums.sum() / counts.sum()) if counts.sum() else NAN
