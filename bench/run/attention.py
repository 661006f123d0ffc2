"""The attention of a run's target: what was chosen for each shape is kept in study.json.

Why: the fastest is chosen by measurement, so a second process may choose another one, and codes in
half precision depend on it. All processes of a run go by what the first of them chose.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.errors import FolderError
from bench.records.folder import RunFolder
from bench.records.study import advice, read_identity
from decoders.api import DecoderError, ImageModel
from decoders.kernels.selected import purpose

ENTRY = "attention"  # of study.json


def go_by(folder: RunFolder, model: ImageModel) -> None:
    """The target takes the choices of the run's folder, and new ones are kept there. Raises
    FolderError where one of them cannot run here."""
    kernels: Any = getattr(model.target, "kernels", None)
    if kernels is None:
        return
    try:
        kernels.recall(read_identity(folder.path).get(ENTRY, []), model.device)
    except DecoderError as error:
        raise FolderError(
            f"{folder.path} was begun with an attention that cannot be had here: {error}. "
            f"{advice(folder.path)}"
        ) from error
    kernels.agree = partial(agreed, folder)


def agreed(folder: RunFolder, record: dict[str, Any]) -> dict[str, Any]:
    """Keeps the record of a choice where the run has none for its shape; returns the run's."""
    key = purpose(record["shape"])

    def added(known: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        known = known or []
        return known if any(purpose(r["shape"]) == key for r in known) else [*known, record]

    found = folder.note(ENTRY, added)
    return next(r for r in found if purpose(r["shape"]) == key)
