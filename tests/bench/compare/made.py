"""A made-up finished run with all that a record vouches for."""

import json
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa

from bench.compare.checked import figures_of
from bench.config.schema import digest
from bench.judge.fairness import Fairness
from bench.records import rows as records
from bench.records.kept import images_digest, judged
from bench.records.load import load
from bench.records.run_data import Role
from bench.records.run_json import write_record
from tests.bench.report.synthetic import DECODERS, write_run

LINEUP = tuple(d for d in DECODERS if d.name in ("ar", "eagle2", "lantern", "lantern_released"))
LINES = {"resize": "PIL bicubic on float channels", "antialias": "yes", "network_sha256": "abc"}


def finished(
    folder: Path, cpu: str = "a CPU", name: str = "main", ungated: str = "", **lines: str
) -> Path:
    """ungated: a decoder without a verdict; lines: of the protocol, changed."""
    write_run(folder, LINEUP, prompts=8, images=True)
    config = {"name": name, "prompts": {"name": "scenes", "kwargs": {"split": "bench"}}}
    study = {
        "schema_version": records.SCHEMA_VERSION, "config": config, "config_hash": digest(config),
        "machine": {"cpu": cpu, "gpu": "", "torch": "2"}, "rows": 8,
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(study))
    rows = pd.read_parquet(folder / "records.parquet").assign(cpu=cpu)
    save(rows, folder)
    figures, verdicts = {}, []
    for made in LINEUP:
        own = rows[(rows.decoder == made.name) & (rows.protocol == "quality")]
        drawn = own.sort_values("prompt_index")
        fid = {"fid": made.fid, "fid_lo": made.fid - 1, "fid_hi": made.fid + 1, "kid": 0.002}
        each = [60.0 + i for i in range(len(drawn))]
        scores = {"clip_each": each, "protocol": LINES | lines, **fid}
        value = {"scores": scores, "preference": None}
        figures[f"figures of {made.name}"] = {"of": images_digest(drawn), "value": value}
        if made.name != ungated:
            verdicts.append((made.name, made.verdict.split()[0], 0.1, "exact or relaxed", ""))
    (folder / "judged.json").write_text(json.dumps(figures))
    columns = ["decoder", "verdict", "figure", "expected", "detail"]
    pd.DataFrame(verdicts, columns=columns).to_csv(folder / "exactness.csv", index=False)
    honest(folder)
    write_record(folder)
    return folder


def save(rows: pd.DataFrame, folder: Path) -> None:
    table = pa.Table.from_pandas(rows, schema=records.SCHEMA, preserve_index=False)
    records.write(folder / "records.parquet", table)


def honest(folder: Path) -> None:
    """summary.csv says what follows from the rows."""
    run, path = load(folder), folder / "summary.csv"
    table = pd.read_csv(path, keep_default_na=False, na_values=[""]).set_index(
        "decoder", drop=False
    )
    figures, fair = judged(folder), Fairness("", "fair", "", math.nan)
    for section in run.sections:
        for entry in (e for e in section.entries if e.role is not Role.RESEED):
            found = figures_of(section, entry, fair, figures[entry.name])
            each = figures[entry.name]["value"]["scores"]["clip_each"]
            found |= {"clip_lo": min(each), "clip_hi": max(each)}
            for name, value in found.items():
                table.loc[entry.name, name] = value
    table.to_csv(path, index=False)
