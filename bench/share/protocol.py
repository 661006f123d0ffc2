"""The protocol lines of a run: all that two quality figures must share to be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config.schema import digest
from bench.judge.reseeds import reseed_of
from bench.records.kept import FILE as JUDGED
from bench.records.study import read_identity

PROMPTS = ("name", "kwargs")  # of the configuration: which prompts, by which rule
NOT_A_RULE = ("path", "shard")  # where the prompts lay says nothing of them


def protocols_of(folder: Path) -> list[dict[str, Any]]:
    """Groups of decoders whose quality was measured in the same way: {"decoders": [...], lines}.
    [] where nothing was scored.

    Lines: `images` (N), `prompts` with `captions` (the rule) and `prompts_hash` (of their texts),
    and what the scorer says (`bench.judge.quality.Scores.protocol`).
    """
    path = folder / JUDGED
    judged = json.loads(path.read_bytes()) if path.is_file() else {}
    rows = pd.read_parquet(
        folder / "records.parquet",
        columns=["decoder", "protocol", "status", "prompt_hash", "image"],
    )
    drawn = rows[(rows.protocol == "quality") & (rows.status == "ok") & (rows.image != "")]
    common = _captions(read_identity(folder)["config"].get("prompts") or {})
    groups: dict[str, dict[str, Any]] = {}
    for name, own in drawn.groupby("decoder", sort=False):
        found = judged.get(f"figures of {name}")
        if found is None or reseed_of(str(name)):
            continue
        lines = {
            "images": len(own),
            **common,
            "prompts_hash": digest(sorted(own.prompt_hash)),
            **found["value"]["scores"].get("protocol", {}),
        }
        groups.setdefault(digest(lines), {"decoders": [], **lines})["decoders"].append(str(name))
    return list(groups.values())


def _captions(prompts: dict[str, Any]) -> dict[str, str]:
    settings = prompts.get("kwargs") or {}
    rule = {k: v for k, v in settings.items() if k not in NOT_A_RULE and v is not None}
    words = ", ".join(f"{key}={value}" for key, value in sorted(rule.items()))
    return {"prompts": str(prompts.get("name", "")), "captions": words or "as they are"}
