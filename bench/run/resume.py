"""Which records of an earlier session a run goes on with."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from bench.config.schema import StudyConfig
from bench.records.columns import MERGED
from bench.records.folder import Key, Record, RunFolder, key_of

log = logging.getLogger(__name__)


def resume(
    folder: RunFolder, config: StudyConfig, keys: Mapping[Key, str], code: Mapping[str, str]
) -> None:
    """Takes the records of `keys` (of each its prompt) that the same code and weights have decoded,
    and with resume=force those of others too, which marks the run. Warnings say which do not count.

    code: of each decoder, see `bench.run.code`.
    """
    refused: dict[Key, str] = {}

    def counts(record: Record) -> bool:
        key = key_of(record)
        if key not in keys:
            return False
        if record["prompt"] != keys[key]:
            refused[key] = "of another prompt"
        elif not folder.has_picture(record):
            refused[key] = "without their pictures"
        elif record["code"] == code[key.decoder] or config.resume == "force":
            return True
        else:
            commit = record["git_commit"][:10] + " with changes" * record["git_dirty"]
            refused[key] = f"of other code or weights (commit {commit})"
        return False

    folder.read(counts)
    lost = Counter((k.decoder, why) for k, why in refused.items() if k not in folder.records)
    for (decoder, why), count in lost.items():
        log.warning(
            "%s: %d records are %s, so their images are decoded again; resume=force keeps records "
            "of other code, and marks the run", decoder, count, why,
        )  # fmt: skip
    forced = {k.decoder for k, r in folder.records.items() if r["code"] != code[k.decoder]}
    folder.note("forced", lambda _: sorted(forced))
    _failed(folder, config.retry_failed)
    if len(folder.records) < len(keys):  # nothing may take them for those of a finished run
        for name in (MERGED, "summary.csv"):
            (folder.path / name).unlink(missing_ok=True)


def _failed(folder: RunFolder, retry: bool) -> None:
    """Failed records of an earlier session: left out to be decoded again, or kept with a
    warning."""
    errors: dict[str, list[str]] = {}
    for key, record in [*folder.records.items()]:
        if record["status"] == "failed":
            errors.setdefault(key.decoder, []).append(record["error"])
            if retry:
                del folder.records[key]
    for decoder, texts in ({} if retry else errors).items():
        log.warning(
            "%s: %d images failed in an earlier run (%s). Nothing of the decoder has changed "
            "since, so they stay failed; retry_failed=true decodes them again",
            decoder, len(texts), texts[0],
        )  # fmt: skip
