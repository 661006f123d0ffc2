"""summary.csv: one row per decoder, made from the rows of a run (METHODS 5).

Times come from the latency protocol. Acceptance, TV shift and quality come from the quality
protocol (from latency rows where there is none). The speed-up is the paired ratio to the baseline
of the same temperature and guidance. The baseline under a second seed has a row of its own, named
`<baseline> (reseed)`: they tell what is noise.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.config.schema import DecoderVariant
from bench.data.files import write_text
from bench.judge import paired
from bench.judge.fairness import UNMEASURED, Fairness
from bench.judge.scorers import Scorer, Scores
from bench.prompts import Prompt
from bench.records.columns import SUMMARY
from bench.records.load import JUDGED
from decoders.api import DecoderError
from metrics import MetricError
from metrics.stats import UNKNOWN, student_ratio
from metrics.traces import tested_share, tv_shift_summary

log = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Summary:
    """The tables that are made from rows. scores: of every decoder and reseed that was scored."""

    table: pd.DataFrame
    clip_pairs: pd.DataFrame
    scores: dict[str, Scores]

    def write(self, folder: Path) -> None:
        """Writes summary.csv and the others that have rows; judged.json: all scores, those of every
        image too, and what they were made with."""
        write_csv(folder / "summary.csv", self.table)
        write_csv(folder / paired.CLIP_PAIRS, self.clip_pairs)
        judged = {label: asdict(one) for label, one in self.scores.items()}
        (folder / JUDGED).unlink(missing_ok=True)
        if judged:
            write_text(folder / JUDGED, json.dumps(judged, indent=1, sort_keys=True))


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Writes a table; where it has no rows, removes the file of an earlier time instead."""
    path.unlink(missing_ok=True)
    if len(table):
        write_text(path, table.to_csv(index=False))


def make_summary(
    folder: Path,
    rows: pd.DataFrame,
    variants: Sequence[DecoderVariant],
    fair: Sequence[Fairness] = (),
    *,
    scorer: Scorer | None,
    exactness: Mapping[str, str],
) -> Summary:
    """Makes the tables of a run. folder: of its pictures; rows: records.parquet; fair: which
    speed-ups do not count; exactness: the gate's verdict by decoder name."""
    unmeasured = {one.decoder for one in fair if one.verdict == UNMEASURED}
    baselines = paired.baselines_of(variants)
    lines, scores = list[dict[str, Any]](), dict[str, Scores]()
    clip = dict[str, list[paired.Scored]]()
    for name, baseline in baselines.items():
        clip[name] = []
        for label, part in paired.rows_by_line(name, rows).items():
            drawn = part[part.protocol.isin(("quality", "reseed")) & (part.status == "ok")]
            drawn = drawn.sort_values("prompt_index")
            pictures = drawn[drawn.image != ""]
            score = _score(scorer, folder, pictures, label)
            line = _line(part, drawn) | vars(score) | {"decoder": label}
            if label == name and name not in unmeasured:
                line |= _speedup(rows[rows.decoder == baseline], part)
            lines.append(line | {"exactness": exactness.get(name, "")})
            each = zip(pictures.prompt_index.astype(int), score.clip_each, strict=True)
            clip[name].append(dict(each) if score.clip_each else {})
            scores |= {} if score is UNSCORED else {label: score}
    every = pd.DataFrame(lines)
    return Summary(every[COLUMNS], paired.clip_differences(baselines, clip), scores)


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


def _score(scorer: Scorer | None, folder: Path, pictures: pd.DataFrame, label: str) -> Scores:
    """Scores pictures; where that cannot be done, logs why and returns no figures."""
    if scorer is None or pictures.empty:
        return UNSCORED
    columns = pictures.prompt_id, pictures.prompt, pictures.category
    prompts = [Prompt(*row) for row in zip(*columns, strict=True)]
    try:
        return scorer.score([folder / path for path in pictures.image], prompts)
    except (MetricError, DecoderError) as error:  # of the pictures, of the networks' files
        log.warning("no quality figures for %s: %s", label, error)
        return UNSCORED
