"""What images are worth: the figures of a scorer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

NAN = math.nan


@dataclass(frozen=True)
class Scores:
    """The quality columns of summary.csv; NaN where a figure could not be had.

    `..._features`: what the figures were made with; "" for the same as FID's. clip and hps: 100
    cos, the mean over images; clip_each: of every image, in their order; protocol: how they were
    measured.
    """

    fid: float = NAN
    fid_lo: float = NAN
    fid_hi: float = NAN
    fid_debiased: float = NAN
    fid_debiased_lo: float = NAN
    fid_debiased_hi: float = NAN
    fid_features: str = ""
    kid: float = NAN
    kid_lo: float = NAN
    kid_hi: float = NAN
    precision: float = NAN
    recall: float = NAN
    clip: float = NAN
    clip_lo: float = NAN
    clip_hi: float = NAN
    clip_each: tuple[float, ...] = ()
    hps: float = NAN
    prc_features: str = ""
    clip_features: str = ""
    hps_features: str = ""
    protocol: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PreferenceRow:
    """How often CLIP prefers the right caption of two that differ in one attribute."""

    images: str  # the decoder's name, or "real scenes"
    n: int
    preference: float
    lo: float
    hi: float
    by_attribute: dict[str, float]
