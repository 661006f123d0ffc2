"""A run from its facts: `load(folder)` reads and checks them, `analyse` makes all that follows from
them, the same for a run that is finished and for one in progress. Nothing that it makes is ever
read back: summary.csv and the other tables of a run folder are exports.

The summary (METHODS 5) has a line per decoder. Times come from the latency protocol; acceptance, TV
shift and quality from the quality protocol (from latency rows where there is none). The speed-up is
the paired ratio to the baseline of the same temperature and guidance. The baseline under a second
seed has a line of its own, named `<baseline> (reseed)`: they tell what is noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.analyse import breakdown, fairness, paired
from bench.analyse.run import MARGIN, Entry, Role, Run, Section, as_text
from bench.data.errors import FolderError
from bench.data.files import write_text
from bench.store import columns
from bench.store.belonging import require_together
from bench.store.columns import IDENTITY, SUMMARY
from bench.store.facts import FINDINGS, STUDY, Findings, Scores, read_findings, read_study
from metrics.stats import UNKNOWN, student_ratio
from metrics.traces import tested_share, tv_shift_summary

REMEDY = (
    "run `python -m bench run study=...` again: it resumes and writes what is missing; if "
    "the folder was copied, copy it again"
)
LATER = (  # columns that older rows lack; they are read as empty
    "depth", "drafted_depth", "drafted_nodes", "alpha", "alpha_depth", "target_mass",
    "target_entropy", "drafter_mass", "drafter_entropy",
)  # fmt: skip
SPREAD = ("blocks", "least", "greatest")  # of a speed-up over the blocks
POOLED = (  # per target forward
    "mal", "mal_no_bonus", "mal_expected", "drafted_depth", "drafted_nodes",
)  # fmt: skip


def load(folder: Path) -> Run:
    """A run from its facts: study.json, records.parquet, findings.json. Raises FolderError where
    one is missing, damaged or of another run."""
    rows = read_rows(folder / columns.MERGED)
    require_file(folder / STUDY)
    study, findings = read_study(folder), read_findings(folder)
    require_together(folder, rows, study, findings)
    return analyse(folder, rows, study, findings)


def read_rows(path: Path) -> pd.DataFrame:
    """Reads records.parquet, each column cast to its type. Raises FolderError."""
    require_file(path)
    try:
        with path.open("rb") as file:  # pyarrow takes no path with a byte that is no UTF-8
            table = pq.read_table(file, page_checksum_verification=True)
        names = table.schema.names
        versions = {*table["schema_version"].to_pylist()} if "schema_version" in names else set()
        if other := sorted(versions - {columns.SCHEMA_VERSION}):
            raise FolderError(
                f"{path} has rows of schema version {other}, this program reads "
                f"{columns.SCHEMA_VERSION}: read it with the version of lantern-bench that made "
                "it, or run the study again into another run_dir="
            )
        lacking = [name for name in columns.SCHEMA.names if name not in names]
        if needed := [name for name in lacking if name not in LATER]:
            raise FolderError(f"{path} lacks the columns {', '.join(needed)}; {REMEDY}")
        for name in lacking:
            empty = [columns.EMPTY[name]] * len(table)
            table = table.append_column(name, pa.array(empty, columns.SCHEMA.field(name).type))
        table = table.select(columns.SCHEMA.names).cast(columns.SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise FolderError(f"{path} is damaged: no readable Parquet ({error}); {REMEDY}") from error
    rows: pd.DataFrame = table.to_pandas()
    if rows.empty:
        raise FolderError(f"{path} has no rows: no image was decoded yet; {REMEDY}")
    return rows


def require_file(path: Path) -> None:
    if not path.parent.exists():
        raise FolderError(
            f"the folder {path.parent} does not exist; correct the path, or make a run: python -m "
            "bench run study=NAME"
        )
    if not path.is_file():
        raise FolderError(
            f"there is no {path}, so {path.parent} holds no finished run; {REMEDY}, or name the "
            "folder of another run"
        )


def analyse(
    folder: Path, rows: pd.DataFrame, study: dict[str, Any], findings: Findings, partial: str = ""
) -> Run:
    """Everything that follows from the facts of a run, finished or in progress: all figures of its
    decoders, which baselines are fair, what is above its floor. folder: of its pictures; partial:
    the status of a decoder that is not done."""
    rows = paired.join_blocks(rows)
    baselines = paired.baselines_of(study.get("config", {}).get("decoders", ()), rows)
    floors = fairness.roofline(rows, [*baselines], findings.machine, findings.work)
    fair = fairness.judge(rows, baselines, floors)
    unmeasured = {one.decoder for one in fair if one.verdict == fairness.UNMEASURED}
    summary, clip_pairs = summary_of(rows, baselines, unmeasured, findings)
    if partial:
        summary = summary.assign(status=summary.status.replace("ok", partial))
    return build_run(folder, rows, study, findings, summary, clip_pairs, floors, fair)


# ---- the summary --------------------------------------------------------------------------------


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
            score, images = findings.scores.get(label, Scores()), paired.drawn(part)
            line = _line(part, images) | vars(score) | {"decoder": label}
            if label == name and name not in unmeasured:
                ratio = paired.paired_speedup(rows[rows.decoder == baseline], part)
                if ratio is not None:  # else they were not timed in the same blocks
                    whole = ratio.interval()
                    line |= {"speedup": whole.value, "speedup_lo": whole.lo, "speedup_hi": whole.hi}
                    line |= {f"speedup_{n}": getattr(ratio, n) for n in SPREAD}
            verdict = findings.gate.get(name)
            lines.append(line | {"exactness": "" if verdict is None else verdict.text})
            indices = paired.pictures(images).prompt_index.astype(int)
            if score.clip_each and len(score.clip_each) != len(indices):
                raise FolderError(
                    f"{FINDINGS} has {len(score.clip_each)} scores of {label}, which has "
                    f"{len(indices)} pictures: it belongs to other rows; {REMEDY}"
                )
            each = zip(indices, score.clip_each, strict=True) if score.clip_each else ()
            clip[name].append(dict(each))
    table = pd.DataFrame(lines).reindex(columns=[column.name for column in SUMMARY])
    for column in SUMMARY:
        kind = str if column.type == "text" else float
        table[column.name] = table[column.name].map(as_text if kind is str else float).astype(kind)
    return table, paired.clip_differences(baselines, clip)


def _line(rows: pd.DataFrame, drawn: pd.DataFrame) -> dict[str, Any]:
    """Makes the columns that follow from the rows alone: identity, times, acceptance, memory and
    status. drawn: quality images that came out."""
    first, alone = rows.iloc[0], paired.timings(rows)
    timed = paired.latency_rows(rows)
    seconds = timed["seconds_total"].to_numpy(float)
    line: dict[str, Any] = {name: first[name] for name in IDENTITY}
    line |= {"n_latency": timed["prompt_index"].nunique(), "n_quality": len(drawn)}
    if len(seconds):
        line |= {"latency_mean_s": seconds.mean(), "latency_p50_s": np.median(seconds)}
        line["latency_p95_s"] = np.quantile(seconds, 0.95)
    if len(used := paired.images_once(rows)):
        line |= _acceptance(used)
    # Of the first timed block: later ones run beside what quality batches left allocated.
    alone = alone[alone.block == alone.block.min()]
    line["peak_memory_mb"] = float((alone if len(alone) else drawn)["peak_memory_mb"].max())
    failed = rows[rows.status == "failed"]
    line["status"] = "ok"
    if len(failed):
        count = "failed" if len(failed) == len(rows) else f"{len(failed)} of {len(rows)} images"
        count += " failed" * (len(failed) < len(rows))
        line["status"] = f"{count}: {failed.error.iloc[0]}"
    return line


def _acceptance(used: pd.DataFrame) -> dict[str, float]:
    """Makes the columns of codes and accepted drafts per target forward (pooled over images),
    forwards, TV shift and output TV."""
    nfe = used["nfe"].to_numpy(float)
    at_codes = (np.concatenate(used[c].to_list()) for c in ("tv_shift", "bound", "kind"))
    shift_mean, shift_max, bound_max = tv_shift_summary(*at_codes)
    tv_sum, bound_sum, declared_sum = (
        used[name].map(np.sum).to_numpy(float)
        for name in ("tv_output", "tv_output_bound", "tv_declared_bound")
    )
    nodes = used.tv_output.map(len).to_numpy(float)  # recorded ones, at each a draft was tested
    spread = breakdown.ambiguity_of(used)
    share = tested_share(used.kind)
    codes = np.divide(nodes, share, out=np.zeros_like(nodes), where=share > 0)
    output = UNKNOWN
    if (nodes > 0).sum() > 1:  # nodes of one image are correlated: images are the units
        output = student_ratio(tv_sum, codes)
    return {
        **{name: float((used[name] * nfe).sum(min_count=1) / nfe.sum()) for name in POOLED},
        "nfe": float(nfe.mean()),
        "tv_bound": bound_max,
        "tv_shift_mean": shift_mean,
        "tv_shift_max": shift_max,
        "tv_output_lo": max(output.lo, 0.0),
        "tv_output_hi": output.hi,
        "tv_output": _pooled(tv_sum, codes),
        "tv_output_bound": _pooled(bound_sum, codes),
        "tv_tested": _pooled(tv_sum, nodes),
        "tv_declared_bound": _pooled(declared_sum, nodes),
        **{
            name + end: value
            for name, figure in spread.items()
            for end, value in zip(("", "_lo", "_hi"), vars(figure).values(), strict=True)
        },
    }


def _pooled(sums: np.ndarray, counts: np.ndarray) -> float:
    """The ratio of the sums over all images; NaN where nothing was counted."""
    return float(sums.sum() / counts.sum()) if counts.sum() else math.nan


# ---- the run ------------------------------------------------------------------------------------


def build_run(
    folder: Path,
    rows: pd.DataFrame,
    study: dict[str, Any],
    findings: Findings,
    summary: pd.DataFrame,
    clip_pairs: pd.DataFrame,
    floors: pd.DataFrame,
    fair: Sequence[fairness.Fairness],
) -> Run:
    """A run of these facts and of the tables that were made from them. Its entries are grouped by
    temperature and guidance, in order of first appearance."""
    config = study.get("config", {})
    baselines = {one["name"] for one in config.get("decoders", ()) if one["baseline"]}
    margin = float(config.get("quality", {}).get("margin", MARGIN))
    by_line: dict[str, pd.DataFrame] = {}
    for decoder in rows["decoder"].unique():
        by_line |= paired.rows_by_line(decoder, rows)
    differences = clip_pairs.set_index("decoder")[paired.CLIP_FIGURES].astype(float)
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for line in to_dicts(summary.join(differences, on="decoder")):
        name = as_text(line["decoder"])
        mine = by_line.get(name, rows.iloc[:0])
        errors = mine[mine["status"] == "failed"]["error"].to_list()
        role = Role.RESEED if " (reseed" in name else Role.DECODER
        setting = tuple(as_text(line[key]) for key in paired.SETTING)
        entry = Entry(name, role, line, mine, next(iter(errors), ""), len(errors))
        groups.setdefault(setting, []).append(entry)
    return Run(
        folder,
        f"{as_text(summary['study'].iloc[0]) or folder.name}@{config.get('version', 1)}",
        [_section(group, baselines, margin) for group in groups.values()],
        rows,
        study,
        roofline={line["decoder"]: line for line in to_dicts(floors)},
        scores={label: asdict(one) for label, one in findings.scores.items()},
        fairness={one.decoder: one for one in fair},
        gate=findings.gate,
        machine=findings.machine,
        clip_pairs=clip_pairs,
    )


def _section(entries: list[Entry], baselines: set[str], margin: float) -> Section:
    """Marks the baseline of a section, and names the section and its scores."""
    baseline = next((e for e in entries if e.name in baselines), None)  # see `paired.baselines_of`
    entries = [replace(e, role=Role.BASELINE) if e is baseline else e for e in entries]
    temperature, guidance = entries[0].number("temperature"), entries[0].number("cfg")
    title = f"{'Sampling' if temperature else 'Greedy'} (temperature {temperature:g}"
    title += ")" if math.isnan(guidance) else f", guidance {guidance:g})"
    network = next(filter(None, (e.text("fid_features") for e in entries)), "")
    fid = f"FID ({network})" if network else "FID"
    # The embedded model's CLIP is the network its FID features come from: name both after it.
    clip = f"CLIP ({network.removesuffix('-clip')})" if network.endswith("-clip") else "CLIP"
    return Section(title, entries, fid, clip, margin)


def to_dicts(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in line.items()} for line in table.to_dict("records")]


def export(run: Run) -> None:
    """Writes what nothing reads but people and spreadsheets: summary.csv, roofline.csv,
    fairness.csv, clip_pairs.csv, exactness.csv, depths.csv and categories.csv, those that have a
    row. Older ones are deleted."""
    tables = {
        "summary": pd.DataFrame([{c.name: e.line[c.name] for c in SUMMARY} for e in run.entries]),
        "roofline": pd.DataFrame([*run.roofline.values()]),
        "fairness": pd.DataFrame([vars(one) for one in run.fairness.values()]),
        "exactness": pd.DataFrame([{"decoder": n, **vars(one)} for n, one in run.gate.items()]),
        "clip_pairs": run.clip_pairs,
        "depths": breakdown.by_depth(run),
        "categories": breakdown.by_category(run),
    }
    for name, table in tables.items():
        path = run.folder / f"{name}.csv"
        path.unlink(missing_ok=True)
        if len(table):
            write_text(path, table.to_csv(index=False))
