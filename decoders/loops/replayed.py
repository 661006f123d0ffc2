"""Speculative decoding whose accepted lengths are read off a recording: what steps cost, not codes.

Every step is really computed; only how many drafts it accepts is taken from elsewhere, as that
follows from trained weights and a step's cost does not. So steps can be measured at the size of a
model whose checkpoint is not at hand. The codes are nobody's distribution: such a run is labelled
*replayed*, and has no quality figures. In step s of an image min(recorded length, deepest node of
the draft) drafts are accepted, along the path to that node. Which recorded image is followed is
drawn with the image's own noise; when it ends, the next one is followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from decoders.api import (
    DecoderError,
    Draft,
    Law,
    Settled,
    Start,
    Verifier,
    completed,
    whole_steps,
)
from decoders.loops.speculative import Speculative
from decoders.noise import ACCEPT_SLOT, Noise
from decoders.verify.children import Path, at_node, longest

FINEST = 100  # steps at most in which a stated mean is met exactly
RECORDS = "records.parquet"


@dataclass(eq=False, repr=False)
class Replayed(Speculative):
    """The speculative loop with accepted lengths of a recording, or with a stated mean accepted
    length, `mal`, the bonus code counted. trace: a run's folder or its records.parquet; decoder:
    whose rows of it. Raises DecoderError where not exactly one of `mal` and `trace` is given, or
    neither fits."""

    replayed = True  # what the harness labels

    mal: float | None = None
    trace: str | None = None
    decoder: str | None = None

    def __post_init__(self) -> None:
        verifier = self.verifier
        replay = None if verifier is None else Recorded(completed(verifier, Verifier))
        self.verifier = replay
        super().__post_init__()
        if (self.mal is None) == (self.trace is None):
            raise DecoderError(
                "replayed acceptance needs loop.mal (a mean accepted length, such as 3.6) or "
                "loop.trace (a run's folder), and not both"
            )
        if self.mal is not None:
            recorded = [even_lengths(self.mal, self.proposer.depth)]
            self.source = f"mal={self.mal:g}"
        else:
            recorded = recorded_lengths(FilePath(str(self.trace)), self.decoder)
            self.source = f"{self.decoder} of {self.trace}"
        assert replay is not None
        replay.follow(recorded, self.model.device)

    def __str__(self) -> str:
        return f"replayed({self.source})"


class Recorded(Verifier):
    """The verifier: the given one's verdicts, and the recorded length in place of its path."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier, self.rule = verifier, verifier.rule
        self.looks_ahead = verifier.looks_ahead

    def __str__(self) -> str:
        return str(self.verifier)

    def follow(self, images: Sequence[Sequence[int]], device: torch.device) -> None:
        """The recorded lengths of the steps of some images."""
        begins = [0]
        for image in images[:-1]:
            begins.append(begins[-1] + len(image))
        self.lengths = torch.tensor([n for image in images for n in image], device=device)  # [T]
        self.begins = torch.tensor(begins, device=device)  # [images], first step of each

    def begin(self, start: Start) -> tuple[Any, Tensor]:
        """The state: that of the verifier, and the steps done, [B]."""
        return self.verifier.begin(start), torch.zeros_like(start.first)

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """Nothing is recorded of what was moved: no draft was accepted on its merits."""
        inner, step = state
        found = self.verifier.decide(law, draft, noise, place, inner)
        valid = draft.children > 0
        path = cut(longest(draft, valid, draft.levels), self._wanted(noise, step))
        step.add_(1)
        none = torch.zeros_like(found.moved)
        bonus = ~at_node(valid, path.last).any(-1)
        relaxed = torch.zeros_like(found.relaxed)
        return Settled(path.nodes, path.count, found.last_code, bonus, none, none, relaxed)

    def _wanted(self, noise: Noise, step: Tensor) -> Tensor:
        """Recorded length of every row's step, [B] int64; step [B]: steps done."""
        drawn = noise.uniform[:, 0, ACCEPT_SLOT] * len(self.begins)  # [B]
        first = self.begins[drawn.long().clamp_max(len(self.begins) - 1)]
        return self.lengths[(first + step) % len(self.lengths)]


def cut(path: Path, count: Tensor) -> Path:
    """The path's first min(count, its length) levels; count [B]."""
    count = torch.minimum(path.count, count)
    last = path.nodes.gather(1, count[:, None])  # [B, 1]
    level = torch.arange(path.nodes.shape[1], device=count.device)  # [D + 1]
    nodes = torch.where(level <= count[:, None], path.nodes, last)
    order = torch.where(level[1:] <= count[:, None], path.order, 0)
    return Path(nodes, count, order, last[:, 0])


def even_lengths(mal: float, depth: int) -> list[int]:
    """Accepted drafts of successive steps whose mean is mal - 1, spread as evenly as can be: with
    a = mal - 1, step s accepts floor((s + 1) a) - floor(s a). 3.6 gives 2, 3, 2, 3, 3 and again.

    a is met to a hundredth. DecoderError where a tree of that depth cannot accept so much.
    """
    if not 1 <= mal <= depth + 1:
        raise DecoderError(
            f"loop.mal counts codes a step, bonus code included: expected 1 to {depth + 1} with a "
            f"tree of {depth} levels, found {mal}"
        )
    mean = Fraction(mal - 1).limit_denominator(FINEST)
    steps = range(mean.denominator)
    return [int((s + 1) * mean) - int(s * mean) for s in steps]


def recorded_lengths(source: FilePath, decoder: str | None) -> list[list[int]]:
    """Accepted drafts of the steps of every image of `decoder` in a run; an image's last step is
    left out, because the image's end cut it.

    Raises DecoderError: no such file, another kind of file, no rows of that decoder, or rows that
    accepted nothing to replay (AR).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = source / RECORDS if source.is_dir() else source
    if not path.is_file():
        raise DecoderError(
            f"no recording at {path}: expected a run's folder with {RECORDS}; "
            "`python -m bench run` makes one"
        )
    columns = ["protocol", "prompt_index", "seed"]  # an image: it may have been timed several times
    columns += ["decoder", "status", "drafter_calls", "accepted"]
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    except (pa.ArrowInvalid, KeyError) as error:
        raise DecoderError(f"{path} is no {RECORDS} of a run ({error})") from error
    found = [r for r in rows if r["status"] == "ok" and r["drafter_calls"]]
    names = sorted({r["decoder"] for r in found})
    own = {tuple(r[c] for c in columns[:3]): r for r in found if r["decoder"] == decoder}
    images = [steps for r in own.values() if (steps := whole_steps(r["accepted"]).tolist())]
    if not images:
        raise DecoderError(
            f"{path} has no steps of a decoder {decoder!r} to replay; set loop.decoder to one of "
            f"those that draft: {', '.join(names) or '(none)'}"
        )
    return images
