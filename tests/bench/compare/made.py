"""A made-up finished run with all that a record vouches for."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from bench.config.schema import digest
from bench.records import schema as records
from bench.records.kept import images_digest
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
    rows = pd.read_parquet(folder / "records.parquet")
    judged, verdicts = {}, []
    for made in LINEUP:
        own = rows[(rows.decoder == made.name) & (rows.protocol == "quality")]
        drawn = own.sort_values("prompt_index")
        scores = {"clip_each": [60.0 + i for i in range(len(drawn))], "protocol": LINES | lines}
        value = {"scores": scores, "preference": None}
        judged[f"figures of {made.name}"] = {"of": images_digest(drawn), "value": value}
        if made.name != ungated:
            verdicts.append((made.name, made.verdict.split()[0], 0.1, "exact or relaxed", ""))
    (folder / "judged.json").write_text(json.dumps(judged))
    columns = ["decoder", "verdict", "figure", "expected", "detail"]
    pd.DataFrame(verdicts, columns=columns).to_csv(folder / "exactness.csv", index=False)
    write_record(folder)
    return folder
