"""FID and KID of generated images against a reference, from their features; all figures together.

FID (Heusel et al. 1706.08500) is |mu - mu'|^2 + tr(S + S' - 2 (S S')^1/2); KID (Binkowski et al.
1801.01401) is torch-fidelity's; precision and recall are in ``precision_recall``. Features are
extracted once (``features``).

What to know when reading them. FID falls with the number of images n even when the distributions
agree, by about 1/n: compare decoders at equal n only; `bias` is the jackknife's estimate of that
share at this n. The intervals are about the figure *at this n*, for new samples of the generated
images with the reference fixed: FID and recall by the delete-a-group jackknife (wide rather than
narrow, see ``stats.jackknife``; a bootstrap's duplicates would put the interval above FID itself),
KID by half-sized subsets, precision by a bootstrap over images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_fidelity import metric_kid

from metrics.moments import Moments, check_features, check_widths
from metrics.precision_recall import NEIGHBOURS, precision_recall
from metrics.stats import Interval, jackknife

KID_SUBSETS = 100
_KID_SIZE = 1000  # largest subset, as torch-fidelity's default
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quality:
    """Figures of n generated against m reference images; `features` names the extractor.

    fid in squared feature units, kid likewise (may be slightly negative), precision and recall in
    [0, 1].
    """

    fid: Interval
    fid_bias: float
    kid: Interval
    precision: Interval
    recall: Interval
    generated: int
    reference: int
    features: str


def quality(
    generated: Tensor, reference: Tensor, *, features: str, groups: int = 32, seed: int = 0
) -> Quality:
    """All four figures with 95 % intervals from features [n, E] and [m, E].

    features: name of the extractor, kept for the table. Raises MetricError for fewer than
    NEIGHBOURS + 2 rows, NaN, or different E. Logs a warning as `fid_interval` does.
    """
    for name, rows in (("generated", generated), ("reference", reference)):
        check_features(name, rows, NEIGHBOURS + 2)
    distance, bias = fid_interval(generated, Moments.of(reference), groups=groups, seed=seed)
    precision, recall = precision_recall(generated, reference, groups=groups, seed=seed)
    return Quality(
        distance,
        bias,
        kid(generated, reference, seed=seed),
        precision,
        recall,
        len(generated),
        len(reference),
        features,
    )


def fid(generated: Tensor | Moments, reference: Tensor | Moments) -> float:
    """FID of features [n, E] and [m, E], or of their moments. Raises MetricError for fewer than 2
    rows, NaN, or different E."""
    return distance_to(_moments("reference", reference))(_moments("generated", generated))


def fid_interval(
    generated: Tensor, reference: Moments, *, groups: int = 32, seed: int = 0
) -> tuple[Interval, float]:
    """FID of features [n, E] with its jackknife interval (not below 0), and the jackknife's
    estimate of its bias.

    Logs a warning where n <= E: the generated covariance is singular and FID mostly bias. Raises
    as `fid`.
    """
    distance = of_rows(generated, reference)
    count, width = generated.shape
    if count <= width:
        _LOG.warning(
            "%d generated images for %d features: the covariance is singular and FID is mostly "
            "bias; generate more than %d",
            count,
            width,
            2 * width,
        )
    seen: list[float] = []

    def noted(rows: np.ndarray) -> float:
        seen.append(distance(rows))
        return seen[-1]

    found = jackknife(count, noted, groups=groups, seed=seed)
    left = seen[1:]  # the first call is the estimate itself
    bias = (len(left) - 1) * (float(np.mean(left)) - found.value)
    return Interval(found.value, max(found.lo, 0.0), found.hi), bias


def of_rows(generated: Tensor, reference: Moments) -> Callable[[np.ndarray], float]:
    """FID of some rows of features [n, E], as a function of which; each set is computed once."""
    every, distance = _moments("generated", generated), distance_to(reference)
    known: dict[bytes, float] = {}

    def found(rows: np.ndarray) -> float:
        key = rows.tobytes()
        if key not in known:
            gone = np.setdiff1d(np.arange(len(generated)), rows)
            left_out = Moments.of(generated[torch.from_numpy(gone)]) if len(gone) else None
            known[key] = distance(every if left_out is None else every.without(left_out))
        return known[key]

    return found


def distance_to(reference: Moments) -> Callable[[Moments], float]:
    """The Frechet distance to a fixed reference, as a function of moments.

    tr (S S')^1/2 is the sum of roots of the eigenvalues of R S R with R = S'^1/2, a symmetric
    matrix; R is taken once, which makes the jackknife's 32 further distances cheap.
    """
    fixed = reference.covariance
    values, vectors = np.linalg.eigh(fixed)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T  # [E, E]

    def distance(other: Moments) -> float:
        check_widths(len(other.mean), len(reference.mean))
        spread = other.covariance
        product = root @ spread @ root  # [E, E]
        overlap = np.sqrt(np.linalg.eigvalsh((product + product.T) / 2).clip(0)).sum()
        step = other.mean - reference.mean
        return float(step @ step + np.trace(spread) + np.trace(fixed) - 2 * overlap)

    return distance


def kid(generated: Tensor, reference: Tensor, *, seed: int = 0) -> Interval:
    """Unbiased squared MMD with torch-fidelity's cubic kernel: mean over random subsets.

    Subsets are half the smaller set (at most 1000): the spread of half-sized subsets is that of the
    figure itself (the delete-half jackknife), which gives the interval: mean +- 1.96 of it.
    """
    for name, rows in (("generated", generated), ("reference", reference)):
        check_features(name, rows, 4)
    check_widths(generated.shape[1], reference.shape[1])
    found = metric_kid.kid_features_to_metric(
        generated.double().cpu(),
        reference.double().cpu(),
        kid_subsets=KID_SUBSETS,
        kid_subset_size=min(len(generated) // 2, len(reference) // 2, _KID_SIZE),
        rng_seed=seed,
        verbose=False,
    )
    mean = float(found[metric_kid.KEY_METRIC_KID_MEAN])
    reach = 1.96 * float(found[metric_kid.KEY_METRIC_KID_STD])
    return Interval(mean, mean - reach, mean + reach)


def _moments(name: str, found: Tensor | Moments) -> Moments:
    if isinstance(found, Moments):
        return found
    check_features(name, found, 2)
    return Moments.of(found)
