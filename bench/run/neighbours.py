"""Other programs on the machine while images are timed: said at once, waited for, timed again.

Why: figures of a busy hour must not look like those of a quiet one. An image during which others
take more than `latency.busy` of the cores is *disturbed* and counts for no figure of time
(`bench.judge.paired`). The run waits for quiet before it goes on, and at its end times the blocks
again that hold such images, all decoders of a block, interleaved as before.
On a GPU the host's part is one thread that launches the work: it suffers where no core is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bench.config.schema import StudyConfig
from bench.measure.busy import Load, between, read, words
from bench.measure.clock import now
from bench.records.folder import RunFolder
from bench.run.outcome import Failure, attempt
from bench.run.schedule import Batch

log = logging.getLogger(__name__)
LOOK = 1.0  # seconds: a quiet machine is one that is quiet for so long


class Neighbours:
    """What others do to the images of a run."""

    def __init__(self, config: StudyConfig) -> None:
        self.limit, self.patience = config.latency.busy, config.latency.wait_for_quiet
        self.on_cpu = config.backend.device.startswith("cpu")
        self.given_up = False  # until an image is not disturbed

    def disturb(self, load: Load) -> bool:
        return load.disturbs(self.limit, load.cores if self.on_cpu else 1)

    def after(self, row: dict[str, Any]) -> None:
        """After a timed image: says that it was disturbed, and waits once for quiet."""
        if not row["disturbed"]:
            self.given_up = False
        elif not self.given_up:
            log.warning(
                "%s, image %d: the machine is busy (%s; more than %.0f %% count as disturbed); "
                "waiting for quiet, %g s at most (latency.wait_for_quiet)",
                row["decoder"], row["prompt_index"],
                words(row["cpu_others"] + row["cpu_steal"]), 100 * self.limit, self.patience,
            )  # fmt: skip
            self.given_up = not self.quiet()

    def quiet(self) -> bool:
        """Waits until nothing has disturbed for `LOOK` seconds; whether that came in time."""
        until, before = time.monotonic() + self.patience, read()
        while time.monotonic() + LOOK <= until:
            time.sleep(LOOK)
            after = read()
            if not self.disturb(between(before, after)):
                return True
            before = after
        return False


class Timed(Protocol):
    """What is asked of a run (`bench.run.runner.Run`)."""

    neighbours: Neighbours
    folder: RunFolder

    def said(self, batch: Batch, column: str) -> Any: ...
    def disturbed(self, part: Sequence[Batch]) -> int: ...
    def expect(self, batches: Sequence[Batch]) -> None: ...
    def warm_all(self, todo: Sequence[Batch], bar: Any) -> None: ...
    def measure(self, batch: Batch) -> list[tuple[dict[str, Any], Any]]: ...
    def done(self, batch: Batch) -> None: ...


def time_again(run: Timed, parts: Sequence[Sequence[Batch]], bar: Any) -> None:
    """Times the blocks with disturbed images again. A block's rows are replaced, all of them, where
    fewer are disturbed than before."""
    for part in parts:
        before = run.disturbed(part)
        if not before:
            continue
        if not run.neighbours.quiet():
            log.warning("the machine is still busy: disturbed images stay; run it again later")
            return
        again = [batch for batch in part if run.said(batch, "status") == "ok"]
        run.expect(again)
        run.warm_all(again, bar)
        made = _block(run, again, before, bar)
        for batch, row in made:
            run.folder.add(*batch.keys[0], row)
        log.info("block %d timed again: %s", part[0].block, "replaced" if made else "no quieter")


def _block(
    run: Timed, part: Sequence[Batch], before: int, bar: Any
) -> list[tuple[Batch, dict[str, Any]]]:
    """The rows of a block, decoded once more, with the pictures that they have; [] where as many
    are disturbed. A row that fails now stays as it was."""
    made, found = [], 0
    for batch in part:
        bar.set_postfix_str(f"{batch.cell.entry.name} (disturbed, timed again)", False)
        started = now()
        rows = attempt(lambda batch=batch: run.measure(batch))  # type: ignore[misc]
        run.done(batch)
        if isinstance(rows, Failure):
            continue
        picture = {name: run.said(batch, name) for name in ("image", "image_hash")}
        made.append((batch, {**rows[0][0], **picture, "started_at": started}))
        found += rows[0][0]["disturbed"]
        if found >= before:
            return []
    return made
