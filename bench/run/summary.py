"""summary.csv: one row a decoder, made from the rows of a run (METHODS 5).

Times come from the latency protocol. Acceptance, mass moved and quality come from the quality
protocol (from latency rows where there is none). The speed-up is the paired ratio to the baseline
of the same temperature and guidance. The baseline under a second seed has a row of its own, named
`<baseline> (reseed)`: what marks noise is made from them (`bench.judge.quality`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.config.schema import DecoderVariant
from bench.data.files import write_text
from bench.data.scores import PreferenceRow, Scores
from bench.judge import paired
from bench.judge.fairness import UNMEASURED, Fairness
from bench.judge.quality import Scorer
from bench.prompts import Prompt
from bench.records.columns import SUMMARY
from bench.records.load import JUDGED, NAMED
from decoders.api import DecoderError
from metrics import MetricError
from metrics.stats import UNKNOWN, student_ratio
from metrics.traces import moved_mass, tested_share

log = logging.getLogger(__name__)
NAN = math.nan
COLUMNS = [column.name for column in SUMMARY]
Figures = tuple[Scores, PreferenceRow | None]
SPEEDUP = (
    "speedup", "speedup_lo", "speedup_hi", "speedup_blocks", "speedup_least", "speedup_greatest"
)  # fmt: skip
LATENCY = ("latency_mean_s", "latency_p50_s", "latency_p95_s")
IDENTITY = COLUMNS[:12]  # as rows have them
POOLED = ("mal", "mal_no_bonus", "mal_expected")  # codes per forward
ACCEPTANCE = (*POOLED, "nfe")
MASS = (
    "tv_bound", "tv_moved_mean", "tv_moved_max", "tv_output", "tv_output_lo", "tv_output_hi",
    "tv_output_bound", "tv_tested", "tv_declared_bound",
)  # fmt: skip


def summarise(
    folder: Path,
    rows: pd.DataFrame,
    every: Sequence[DecoderVariant],
    fair: Sequence[Fairness] = (),
    *,
    scorer: Scorer | None,
    exactness: Mapping[str, str],
) -> pd.DataFrame:
    """Writes summary.csv (and preference.csv where the prompts allow it, quality.csv where figures
    name their weights, clip_pairs.csv and judged.json where there are scores); returns the summary.

    rows: records.parquet; fair: which speed-ups do not count; exactness: the gate's verdict by
    decoder name.
    """
    judge = _Judge(folder, scorer)
    out: list[dict[str, Any]] = []
    preferences: list[PreferenceRow] = []
    unmeasured = {one.decoder for one in fair if one.verdict == UNMEASURED}
    baselines = {one.name: _baseline(every, one) for one in every}
    clip: dict[str, list[paired.Scored]] = {}
    for name in baselines:
        own = rows[rows.decoder == name]
        reseeds = own[own.protocol == "reseed"]
        parts = [(name, "quality", own.drop(reseeds.index))]
        for number, seed in enumerate(sorted(reseeds.seed.unique()), 1):
            parts.append(
                (paired.reseed_name(name, number), "reseed", reseeds[reseeds.seed == seed])
            )
        verdict, clip[name] = exactness.get(name, ""), []
        for label, protocol, mine in parts:
            line, scores, preference = _line(judge, mine, label, protocol)
            if label == name and name not in unmeasured:
                line |= _speedup(rows[rows.decoder == baselines[name]], own)
            out.append(line | {"exactness": verdict})
            clip[name].append(scores)
            preferences += [preference] if preference else []
    preferences += judge.real(rows) if preferences else []
    lines = pd.DataFrame(out)
    table = lines[COLUMNS]
    write_csv(folder / "summary.csv", table)
    named = lines[["decoder", "hps", "fid_features", *NAMED]]
    named = named if (named[[*NAMED]].fillna("") != "").any(axis=None) else named[:0]
    write_csv(folder / "quality.csv", named)
    chosen = [
        vars(row) | {f"preference_{key}": value for key, value in row.by_attribute.items()}
        for row in preferences
    ]
    plain = pd.DataFrame(chosen).drop(columns="by_attribute", errors="ignore")
    write_csv(folder / "preference.csv", plain)
    write_csv(folder / paired.CLIP_PAIRS, paired.clip_differences(baselines, clip))
    judge.save()
    return table


def _line(
    judge: _Judge, mine: pd.DataFrame, label: str, protocol: str
) -> tuple[dict[str, Any], paired.Scored, PreferenceRow | None]:
    """All columns but the speed-up and the verdict, of one decoder (or of its reseed, which has a
    label of its own); the CLIP score of each prompt's image, and CLIP's preference."""
    ok = mine[mine.status == "ok"]
    drawn = ok[ok.protocol == protocol].sort_values("prompt_index")
    first, alone = mine.iloc[0], paired.timings(mine)
    line: dict[str, Any] = {key: first[key] for key in IDENTITY} | {"decoder": label}
    timed = paired.latency_rows(ok)
    seconds = timed["seconds_total"].to_numpy(float)
    line |= {"n_latency": timed["prompt_index"].nunique()} | dict.fromkeys(LATENCY, NAN)
    if len(seconds):
        figures = seconds.mean(), np.median(seconds), np.quantile(seconds, 0.95)
        line |= dict(zip(LATENCY, map(float, figures), strict=True))
    line |= _acceptance(drawn if len(drawn) else paired.image_rows(alone))
    line |= dict.fromkeys(SPEEDUP, NAN) | {"n_quality": len(drawn)}
    pictured = drawn[drawn.image != ""]
    scores, preference = judge.images(pictured, label)
    line |= vars(scores)
    # Later blocks are timed beside what quality batches have left in memory.
    alone = alone[alone.block == alone.block.min()]
    memory = (alone if len(alone) else drawn)["peak_memory_mb"]
    line["peak_memory_mb"] = float(memory.max()) if len(memory) else NAN
    line["status"] = _status(mine)
    each = zip(pictured.prompt_index.astype(int), scores.clip_each, strict=True)
    return line, dict(each) if scores.clip_each else {}, preference


def _speedup(baseline: pd.DataFrame, mine: pd.DataFrame) -> dict[str, float]:
    """Over the baseline; {} where the two were not timed in the same blocks."""
    found = paired.paired_speedup(baseline, mine)
    if found is None:
        return {}
    interval = found.interval()
    values = (found.value, interval.lo, interval.hi, found.blocks, found.least, found.greatest)
    return dict(zip(SPEEDUP, values, strict=True))


def _status(mine: pd.DataFrame) -> str:
    failed = mine[mine.status == "failed"]
    if failed.empty:
        return "ok"
    if len(failed) == len(mine):
        return f"failed: {failed.error.iloc[0]}"
    return f"{len(failed)} of {len(mine)} images failed: {failed.error.iloc[0]}"


def _baseline(every: Sequence[DecoderVariant], one: DecoderVariant) -> str | None:
    """The first baseline with the temperature and guidance of `one`."""
    mine = one.sampling.temperature, one.sampling.cfg
    same = (v for v in every if (v.sampling.temperature, v.sampling.cfg) == mine)
    return next((other.name for other in same if other.entry.baseline), None)


def _acceptance(used: pd.DataFrame) -> dict[str, float]:
    """Codes and accepted drafts a target forward (pooled over images), forwards, mass moved."""
    if used.empty:
        return dict.fromkeys((*ACCEPTANCE, *MASS), NAN)
    nfe = used["nfe"].to_numpy(float)
    moved = moved_mass(*(np.concatenate(used[c].to_list()) for c in ("moved", "bound", "kind")))
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
    pooled = {name: float((used[name] * nfe).sum(min_count=1) / nfe.sum()) for name in POOLED}
    return {
        **pooled,
        "nfe": float(nfe.mean()),
        "tv_bound": moved.bound_max,
        "tv_moved_mean": moved.mean,
        "tv_moved_max": moved.max,
        "tv_output_lo": max(output.lo, 0.0),
        "tv_output_hi": output.hi,
        "tv_output": _over(away, codes),
        "tv_output_bound": _over(limit, codes),
        "tv_tested": _over(away, nodes),
        "tv_declared_bound": _over(declared, nodes),
    }


def _over(sums: np.ndarray, counts: np.ndarray) -> float:
    """Their ratio over all images; NaN where nothing was counted."""
    return float(sums.sum() / counts.sum()) if counts.sum() else NAN


@dataclass
class _Judge:
    """The quality figures of images. scores: of every decoder so far."""

    folder: Path
    scorer: Scorer | None
    scores: dict[str, Scores] = dataclasses.field(default_factory=dict)

    def images(self, drawn: pd.DataFrame, label: str) -> Figures:
        """Of the images of `drawn`; no figures where they cannot be had, with a log."""
        if self.scorer is None or drawn.empty:
            return Scores(), None
        images, prompts = [self.folder / path for path in drawn.image], _prompts(drawn)
        try:
            found = self.scorer.score(images, prompts)
            preference = self.scorer.preference(label, images, prompts)
        except (MetricError, DecoderError) as error:  # of the pictures, of the networks' files
            log.warning("no quality figures for %s: %s", label, error)
            return Scores(), None
        self.scores[label] = found
        return found, preference

    def real(self, rows: pd.DataFrame) -> list[PreferenceRow]:
        """The preference on the real scenes of the same prompts: what a perfect model would
        reach."""
        drawn = rows[rows.protocol == "quality"].drop_duplicates("prompt_index")
        prompts = _prompts(drawn.sort_values("prompt_index"))
        real = self.scorer.real(prompts) if self.scorer else None
        if self.scorer is None or real is None:
            return []
        found = self.scorer.preference("real scenes", real, prompts)
        return [found] if found else []

    def save(self) -> None:
        """judged.json: all scores, those of every image too, for `diff`."""
        path = self.folder / JUDGED
        if not self.scores:
            path.unlink(missing_ok=True)
            return
        plain = {
            f"figures of {label}": {"value": {"scores": dataclasses.asdict(one)}}
            for label, one in self.scores.items()
        }
        write_text(path, json.dumps(plain, indent=1, sort_keys=True))


def _prompts(rows: pd.DataFrame) -> list[Prompt]:
    columns = (rows.prompt_id, rows.prompt, rows.category)
    return [Prompt(*row) for row in zip(*columns, strict=True)]


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """A table without rows is no file, nor may one of an earlier time stay."""
    if table.empty:
        path.unlink(missing_ok=True)
        return
    write_text(path, table.to_csv(index=False))
