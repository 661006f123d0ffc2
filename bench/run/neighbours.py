"""Other programs on the machine while images are timed: said at once, waited for, timed again.

Why: figures of a busy hour must not look like those of a quiet one. An image during which others
take more than `latency.busy` of the cores is *disturbed* and counts for no figure of time
(`bench.judge.speedup`). The run waits for quiet before it goes on. At its end it times the blocks
again that hold such images, all decoders of a block, interleaved as before (`bench.run.runner`).
On a GPU the host's part is one thread that launches the work: it suffers where no core is left.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from bench.config.schema import StudyConfig
from bench.measure.busy import Load, between, read, words

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
