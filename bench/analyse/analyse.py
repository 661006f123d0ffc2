"""A run from its facts: `load(folder)` reads and checks them, `analyse` makes all that follows from
them, the same for a run that is finished and for one in progress. Nothing that it makes is ever
read back: summary.csv and the other tables of a run folder are exports.

Times come from the latency protocol; acceptance, TV and quality from the quality protocol (from
latency rows where there is none). The speed-up is the paired ratio to the baseline of the same
temperature and guidance. The baseline under a second seed is an entry of its own, named
`<baseline> (reseed)`: they tell what is noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.analyse import fairness, paired
from bench.analyse.figures import figures_with
from bench.analyse.line import Line
from bench.analyse.replicates import Facts, pool, replicates_in
from bench.analyse.run import MARGIN, Entry, Role, Run, Section, to_dicts
from bench.analyse.tables import EXPORTED, tables_of
from bench.errors import FolderError
from bench.files import write_text
from bench.store import columns
from bench.store.facts import STUDY, Findings, read_findings, read_study, require_together
from metrics.scores import Scores

REMEDY = (
    "run `python -m bench run study=...` again: it resumes and writes what is missing; if "
    "the folder was copied, copy it again"
)


def load(folder: Path) -> Run:
    """The run of a folder, or the pooled replicates that lie in it (`replicates_in`). Raises
    FolderError where a file is missing, damaged or of another run, ConfigError as `pool`."""
    if places := replicates_in(folder):
        return pooled(places, folder)
    facts = read_facts(folder)
    run = analyse(folder, facts.rows, facts.study, facts.findings)
    return replace(run, beside=beside(folder, facts.study))


def pooled(places: Sequence[Path], folder: Path) -> Run:
    """Replicates, each in a folder or several in one, as one run. folder: where that is. Raises as
    `load`."""
    places = [one for place in places for one in replicates_in(place) or (place,)]
    every = [*map(read_facts, places)]
    facts = pool(every, folder) if len(every) > 1 else every[0]
    run = analyse(folder, facts.rows, facts.study, facts.findings)
    return replace(run, folders=tuple(places))


def beside(folder: Path, study: Mapping[str, Any]) -> tuple[Path, ...]:
    """Other runs of the same configuration, so on the same prompts, in folders of this one."""
    places = sorted(path.parent for path in folder.glob(f"*/{STUDY}"))
    mine = study.get("config_hash")
    return tuple(one for one in places if mine and read_study(one).get("config_hash") == mine)


def read_facts(folder: Path) -> Facts:
    """study.json, records.parquet and findings.json of a run. Raises FolderError."""
    rows = read_rows(folder / columns.MERGED)
    require_file(folder / STUDY)
    study, findings = read_study(folder), read_findings(folder)
    if not study.get("config", {}).get("decoders"):
        raise FolderError(f"{folder / STUDY} is damaged: it names no decoders; {REMEDY}")
    require_together(folder, rows, study, findings)
    return Facts(folder, rows, study, findings)


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
        if needed := [name for name in lacking if name not in columns.LACKING_IN_OLDER_ROWS]:
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
    """Raises FolderError where a file of a run is not there, or the run is not."""
    folder, make = path.parent, "make one: python -m bench run study=NAME"
    if not folder.exists():
        raise FolderError(f"the folder {folder} does not exist; correct the path, or {make}")
    if path.is_file():
        return
    if folder.is_file():
        raise FolderError(f"expected the folder of a run, found the file {folder}; {make}")
    if not any((folder / name).exists() for name in (STUDY, columns.MERGED)):
        inside = sorted(
            place.name
            for place in folder.iterdir()
            if (place / STUDY).is_file() or replicates_in(place)
        )
        advice = (
            f"name one of those in it: {', '.join(inside)}"
            if inside
            else f"name a run's, or {make}"
        )
        raise FolderError(f"the folder {folder} holds no run; {advice}")
    raise FolderError(
        f"there is no {path}, so {folder} holds no finished run; {REMEDY}, or name the folder of "
        "another run"
    )


def analyse(
    folder: Path, rows: pd.DataFrame, study: dict[str, Any], findings: Findings, partial: str = ""
) -> Run:
    """Everything that follows from the facts of a run, finished or in progress. Its entries are
    grouped by temperature and guidance, in order of first appearance. folder: of its pictures;
    partial: the status of a decoder that is not done."""
    rows, config = paired.join_blocks(rows), study.get("config", {})
    decoders = config.get("decoders", ())
    baselines = paired.baselines_of(decoders, rows)
    roofline = fairness.roofline(rows, baselines, findings.machine, findings.work)
    fair = {one.decoder: one for one in fairness.judge(rows, baselines, roofline)}
    lines = lines_of(rows, baselines, fair, findings)
    pairs = paired.clip_differences(
        baselines, {name: [one.by_prompt("clip") for one in some] for name, some in lines.items()}
    )
    clip_less = {line["decoder"]: line for line in to_dicts(pairs)}
    figures = figures_with(findings.scores.values())
    sections: dict[tuple[str, ...], list[Entry]] = {}
    for line in (one for some in lines.values() for one in some):
        line = replace(line, clip_less=clip_less.get(line.name, {}))
        values = {figure.name: figure.of(line) for figure in figures}
        if values["status"] == "ok":
            values["status"] = partial or "ok"
        role = Role.RESEED if " (reseed" in line.name else Role.DECODER
        setting = tuple(str(values[name]) for name in paired.SETTING)
        sections.setdefault(setting, []).append(Entry(line.name, role, line, values))
    margin = float(config.get("quality", {}).get("margin", MARGIN))
    first = {one["name"] for one in decoders if one["baseline"]}
    run = Run(
        folder,
        f"{rows.study.iloc[0] or folder.name}@{config.get('version', 1)}",
        [_section(entries, first, margin) for entries in sections.values()],
        rows,
        study,
        fair,
        findings.gate,
        findings.machine,
        figures,
    )
    return replace(run, tables=tables_of(run, roofline=roofline, clip_pairs=pairs))


def lines_of(
    rows: pd.DataFrame,
    baselines: Mapping[str, str | None],
    fair: Mapping[str, fairness.Fairness],
    findings: Findings,
) -> dict[str, list[Line]]:
    """By decoder: its own line, and one for each other seed that it was run under."""
    lines = dict[str, list[Line]]()
    for name, baseline in baselines.items():
        counts = fair[name].verdict != fairness.UNMEASURED
        base = rows[rows.decoder == baseline] if baseline and counts else None
        verdict = "" if name not in findings.gate else findings.gate[name].text
        lines[name] = [
            Line(
                label,
                part,
                base if label == name else None,
                findings.scores.get(label, Scores()),
                verdict=verdict,
            )
            for label, part in paired.rows_by_line(name, rows).items()
        ]
    return lines


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


def export(run: Run) -> None:
    """Writes what nothing reads but people and spreadsheets: tables of the run as CSV, those that
    have a row. Older ones are deleted."""
    for name in EXPORTED:
        path, table = run.folder / f"{name}.csv", run.tables[name]
        path.unlink(missing_ok=True)
        if len(table):
            write_text(path, table.to_csv(index=False))
