"""Plain decoding from the target that a rule truncates (2607.26627, decoders.md (u)): the baseline
of truncating rules.

A rule such as typical acceptance commits only codes that pass its cut. What it gains over plain
decoding may come from the cut alone. This loop samples from the cut target without any draft. Every
code says how far its law is from p: the mass that was cut off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.api import DecoderError, Start
from decoders.distribution import probabilities
from decoders.loops.autoregressive import Autoregressive, Run
from decoders.loops.recording import Recorder
from decoders.noise import TARGET_SLOT, sample


class Truncated(Autoregressive):
    """The verifier's rule has ``truncated(p) -> [..., V]``, the law that it cuts p to."""

    def __post_init__(self) -> None:
        rule = None if self.verifier is None else self.verifier.rule
        if rule is None or rule.truncated is None:
            raise DecoderError(
                "this loop samples from the target as an acceptance rule truncates it; expected a "
                f"rule with truncated(p), such as acceptance=typical, found {rule}"
            )
        self.cut, self.verifier = rule.truncated, None
        super().__post_init__()

    def first(self, start: Start, record: Recorder) -> Tensor:
        if self.sampling.greedy:
            return start.first
        cut = self.cut(start.law)
        codes = sample(cut, start.noise.uniform[:, 0, TARGET_SLOT])
        note(record, torch.zeros_like(codes[:1]), start.law, cut)
        record.first(codes)
        return codes

    def draw(self, run: Run, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self.sampling.greedy:  # the largest entry is never cut
            return super().draw(run, logits)
        p = probabilities(logits, self.sampling)
        run.record.check(p[:, :1])
        cut = self.cut(p)
        note(run.record, run.place, p, cut)
        u = run.noise.uniform[:, :, TARGET_SLOT].index_select(1, run.place)[:, 0]  # [B]
        return sample(cut, u), cut


def note(record: Recorder, place: Tensor, p: Tensor, cut: Tensor) -> None:
    """TV(cut, p) of the codes at place [1]; p, cut [B, V]."""
    moved = 0.5 * (p - cut).abs().sum(-1, keepdim=True)  # [B, 1]
    moved = moved.to(record.moved)  # of a model in float64
    record.moved.index_copy_(1, place, moved)
    record.bound.index_copy_(1, place, moved)
