"""Whether the files of a run folder are of one run. Each may be copied alone, and findings of
another run beside these rows would show that run's verdicts and scores as this one's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.errors import FolderError
from bench.store.columns import MERGED
from bench.store.facts import FINDINGS, STUDY, Findings

# Columns that say which image a row is of, and when and with what it was made.
NAMED = ("decoder", "protocol", "batch", "seed", "prompt_index", "started_at", "code")


def digest_of_rows(rows: pd.DataFrame) -> str:
    """16 hex digits of which images the rows of records.parquet are of, when they were made, and
    their codes."""
    made = hashlib.sha256(repr(rows[[*NAMED]].to_numpy(str).tolist()).encode())
    made.update(rows.codes.map(len).to_numpy(np.int64).tobytes())
    made.update(np.concatenate([[], *rows.codes]).astype(np.int32).tobytes())
    return made.hexdigest()[:16]


def require_together(
    folder: Path, rows: pd.DataFrame, study: Mapping[str, Any], findings: Findings
) -> None:
    """Raises FolderError where study.json or findings.json is of other rows than these. What an
    older version wrote says less, and is taken as far as it goes."""
    advice = f"copy the files of one run into {folder}, or run the study again: it resumes"
    config = study.get("config_hash")
    if config is not None and (other := sorted({*rows.config_hash} - {config})):
        raise FolderError(
            f"{STUDY} and {MERGED} in {folder} do not belong together: the one is of the "
            f"configuration {config}, the other of {other[0]}; {advice}"
        )
    if findings.rows and findings.rows != (digest := digest_of_rows(rows)):
        raise FolderError(
            f"{FINDINGS} and {MERGED} in {folder} do not belong together: the verdicts and scores "
            f"are of rows with the digest {findings.rows}, these rows have {digest}; {advice}"
        )
