"""FID, KID, precision and recall of generated images against a reference, from their features.

torch-fidelity's own functions give the figures (Heusel et al. 1706.08500; Binkowski et al.
1801.01401; Kynkaanniemi et al. 1904.06991, k = 3); features are extracted once (``features``).

What to know when reading them. FID falls with the number of images n even when the distributions
agree, by about 1/n: compare decoders at equal n only; `bias` is the jackknife's estimate of that
share at this n. The intervals are about the figure *at this n*, for another draw of the generated
images with the reference fixed: FID and recall by the delete-a-group jackknife (wide rather than
narrow, see ``stats.jackknife``; a bootstrap's duplicates would put the interval above FID itself),
KID by half-sized subsets, precision by a bootstrap over images.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_fidelity import metric_fid, metric_kid, metric_prc

from metrics.errors import MetricError
from metrics.stats import Interval, bootstrap_mean, jackknife

NEIGHBOURS = 3  # k of precision and recall
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
    NEIGHBOURS + 2 rows, NaN, or different E. Logs a warning where n <= E: the generated covariance
    is singular and FID mostly bias.
    """
    _check(generated, reference, NEIGHBOURS + 2)
    if len(generated) <= generated.shape[1]:
        _LOG.warning(
            "%d generated images for %d features: the covariance is singular and FID is mostly "
            "bias; generate more than %d",
            len(generated),
            generated.shape[1],
            2 * generated.shape[1],
        )
    fid_interval, bias = _fid_interval(generated, reference, groups, seed)
    precision, recall = _precision_recall(generated, reference, groups, seed)
    return Quality(
        fid_interval,
        bias,
        kid(generated, reference, seed=seed),
        precision,
        recall,
        len(generated),
        len(reference),
        features,
    )


def fid(generated: Tensor, reference: Tensor) -> float:
    """Frechet distance |mu - mu'|^2 + tr(S + S' - 2 (S S')^1/2) of features [n, E] and [m, E]."""
    _check(generated, reference, 2)
    found = metric_fid.fid_statistics_to_metric(_moments(generated), _moments(reference), False)
    return float(found[metric_fid.KEY_METRIC_FID])


def kid(generated: Tensor, reference: Tensor, *, seed: int = 0) -> Interval:
    """Unbiased squared MMD with torch-fidelity's cubic kernel: mean over random subsets.

    Subsets are half the smaller set (at most 1000): the spread of half-sized subsets is that of the
    figure itself (the delete-half jackknife), which gives the interval: mean +- 1.96 of it.
    """
    _check(generated, reference, 4)
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


def _moments(features: Tensor) -> dict[str, np.ndarray]:
    """Mean [E] and covariance [E, E] in float64, as torch-fidelity wants them."""
    found: dict[str, np.ndarray] = metric_fid.fid_features_to_statistics(features.double().cpu())
    return found


def _fid_interval(
    generated: Tensor, reference: Tensor, groups: int, seed: int
) -> tuple[Interval, float]:
    """FID with its jackknife interval (not below 0), and the jackknife's estimate of its bias."""
    fixed = _moments(reference)
    seen: list[float] = []

    def of_rows(rows: np.ndarray) -> float:
        moments = _moments(generated[torch.from_numpy(rows)])
        found = metric_fid.fid_statistics_to_metric(moments, fixed, False)
        seen.append(float(found[metric_fid.KEY_METRIC_FID]))
        return seen[-1]

    found = jackknife(len(generated), of_rows, groups=groups, seed=seed)
    left_out = seen[1:]  # the first call is the estimate itself
    bias = (len(left_out) - 1) * (float(np.mean(left_out)) - found.value)
    return Interval(found.value, max(found.lo, 0.0), found.hi), bias


def _precision_recall(
    generated: Tensor, reference: Tensor, groups: int, seed: int
) -> tuple[Interval, Interval]:
    """torch-fidelity's precision and recall; intervals from one matrix of distances.

    Precision is a mean over generated images of "lies in some reference ball"; recall changes with
    the generated set as a whole (its balls), hence the jackknife.
    """
    fake, real = generated.double().cpu(), reference.double().cpu()
    found = metric_prc.prc_features_to_metric(
        fake,
        real,
        prc_neighborhood=NEIGHBOURS,
        prc_batch_size=10000,
        save_cpu_ram=False,
        verbose=False,
    )
    real_radius = _radius(torch.cdist(real, real))  # [m]
    across = torch.cdist(real, fake)  # [m, n]
    within = torch.cdist(fake, fake)  # [n, n]
    inside = (across <= real_radius[:, None]).any(0).double().numpy()  # [n]

    def recall_of(rows: np.ndarray) -> float:
        kept = torch.from_numpy(rows)
        radius = _radius(within[kept][:, kept])  # [kept]
        return float((across[:, kept] <= radius).any(1).double().mean())

    precision, recall = (
        bootstrap_mean(inside, seed=seed),
        jackknife(len(fake), recall_of, groups=groups, seed=seed),
    )
    return (
        Interval(float(found[metric_prc.KEY_METRIC_PRECISION]), precision.lo, precision.hi),
        Interval(
            float(found[metric_prc.KEY_METRIC_RECALL]), max(recall.lo, 0.0), min(recall.hi, 1.0)
        ),
    )


def _radius(distances: Tensor) -> Tensor:
    """Distance to the k-th neighbour, the point itself (distance 0) not counted; [n, n] -> [n]."""
    return distances.kthvalue(NEIGHBOURS + 1, dim=1).values


def _check(generated: Tensor, reference: Tensor, least: int) -> None:
    for name, rows in (("generated", generated), ("reference", reference)):
        if rows.ndim != 2:
            raise MetricError(f"{name} features must be [n, E], found {list(rows.shape)}")
        if len(rows) < least:
            raise MetricError(f"{len(rows)} {name} images are too few: at least {least} are needed")
        if not torch.isfinite(rows).all():
            bad = int((~torch.isfinite(rows).all(1)).sum())
            raise MetricError(f"the features of {bad} {name} images hold NaN or infinity")
    if generated.shape[1] != reference.shape[1]:
        raise MetricError(
            f"generated features have {generated.shape[1]} entries, the reference "
            f"{reference.shape[1]}: they come from different extractors"
        )
