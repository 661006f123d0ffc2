"""FID, KID, precision and recall of generated images against a reference, from their features.

FID (Heusel et al. 1706.08500) is |mu - mu'|^2 + tr(S + S' - 2 (S S')^1/2); KID (Binkowski et al.
1801.01401) is torch-fidelity's; so are improved precision and recall (Kynkaanniemi et al.
1904.06991), but with distances in blocks of rows. Features are extracted once (``features``).

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

from metrics import MetricError
from metrics.stats import Interval, bootstrap_mean, jackknife, left_out

KID_SUBSETS = 100
_KID_SIZE = 1000  # largest subset, as torch-fidelity's default
NEIGHBOURS = 3  # k of precision and recall
_BLOCK = 1024  # rows of distances taken together
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Moments:
    """count n, mean [E] and scatter [E, E] = sum (x - mean)(x - mean)^T, float64."""

    count: int
    mean: np.ndarray
    scatter: np.ndarray

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Of rows [n >= 1, E]."""
        rows = features.double().cpu().numpy()
        mean = rows.mean(0)  # [E]
        centred = rows - mean
        return cls(len(rows), mean, centred.T @ centred)  # [E, E]

    @property
    def covariance(self) -> np.ndarray:
        """Unbiased covariance [E, E] of two rows or more."""
        return self.scatter / (self.count - 1)

    def without(self, part: Moments) -> Moments:
        """Of this set less a part of it, by the pooled formulas (Chan, Golub and LeVeque 1979),
        stable where sums of squares are not: M = M_a + M_b + d d^T n_a n_b / n, d = m_b - m_a."""
        count = self.count - part.count
        mean = (self.count * self.mean - part.count * part.mean) / count
        step = part.mean - mean
        weight = count * part.count / self.count
        return Moments(count, mean, self.scatter - part.scatter - weight * np.outer(step, step))


def fid_interval(generated: Tensor, reference: Moments, *, seed: int = 0) -> tuple[Interval, float]:
    """FID of features [n, E] with its jackknife interval (not below 0), and the jackknife's
    estimate of its bias.

    Logs a warning where n <= E: the generated covariance is singular and FID mostly bias. Raises
    MetricError for fewer than 3 rows, NaN, or different E.
    """
    values = fid_left_out(generated, reference, seed=seed)
    count, width = generated.shape
    if count <= width:
        _LOG.warning(
            "%d generated images for %d features: the covariance is singular and FID is mostly "
            "bias; generate more than %d",
            count,
            width,
            2 * width,
        )
    found = jackknife(values, least=0.0)
    return found, (len(values) - 2) * (float(values[1:].mean()) - found.value)


def fid_left_out(generated: Tensor, reference: Moments, *, seed: int = 0) -> np.ndarray:
    """FID of features [n, E], and without each of the jackknife's groups, [1 + K]."""
    _require_rows("generated", generated, 2)
    every, distance = Moments.of(generated), distance_to(reference)

    def without(gone: np.ndarray) -> float:
        left = every.without(Moments.of(generated[torch.from_numpy(gone)])) if len(gone) else every
        return distance(left)

    return left_out(len(generated), without, seed=seed)


def distance_to(reference: Moments) -> Callable[[Moments], float]:
    """The Frechet distance to a fixed reference, as a function of moments.

    tr (S S')^1/2 is the sum of roots of the eigenvalues of R S R with R = S'^1/2, a symmetric
    matrix; R is taken once, which makes the jackknife's 32 further distances cheap.
    """
    fixed = reference.covariance
    values, vectors = np.linalg.eigh(fixed)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T  # [E, E]

    def distance(other: Moments) -> float:
        _require_width(len(other.mean), len(reference.mean))
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
    _require(generated, reference, 4)
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


def precision_recall(
    generated: Tensor, reference: Tensor, *, seed: int = 0
) -> tuple[Interval, Interval]:
    """Precision and recall with 95 % intervals from features [n, E] and [m, E]: shares of the
    generated images in the reference's manifold, and of the reference in the generated ones'. A
    set's manifold is a ball of radius "distance to the k-th neighbour" around each of its points.

    Precision is a mean over generated images of "lies in some reference ball" (bootstrap); recall
    changes with the generated set as a whole (its balls), hence the jackknife. Memory: 8 n (n + m)
    bytes. Raises MetricError for fewer than k + 2 rows, NaN, or different E.
    """
    _require(generated, reference, NEIGHBOURS + 2)
    fake, real = generated.double().cpu(), reference.double().cpu()
    within = torch.cat([torch.cdist(rows, fake) for rows in fake.split(_BLOCK)])  # [n, n]
    across = torch.cat([torch.cdist(rows, fake) for rows in real.split(_BLOCK)])  # [m, n]
    real_radius = torch.cat([_radius(torch.cdist(rows, real)) for rows in real.split(_BLOCK)])
    blocks = zip(across.split(_BLOCK), real_radius.split(_BLOCK), strict=True)
    inside = torch.zeros(len(fake), dtype=torch.bool)  # [n]
    for distances, radius in blocks:
        inside |= (distances <= radius[:, None]).any(0)

    def recall_without(gone: np.ndarray) -> float:
        kept = torch.from_numpy(np.delete(np.arange(len(fake)), gone))
        own = torch.cat([_radius(within[part][:, kept]) for part in kept.split(_BLOCK)])  # [kept]
        hits = sum(int((part[:, kept] <= own).any(1).sum()) for part in across.split(_BLOCK))
        return hits / len(real)

    recall = jackknife(left_out(len(fake), recall_without, seed=seed), least=0.0, most=1.0)
    return bootstrap_mean(inside.double().numpy(), seed=seed), recall


def _radius(distances: Tensor) -> Tensor:
    """Distance to the k-th neighbour, the point itself (distance 0) not counted; [b, n] -> [b]."""
    return distances.kthvalue(NEIGHBOURS + 1, dim=1).values


def _require(generated: Tensor, reference: Tensor, least: int) -> None:
    """MetricError unless both are finite [>= least, E]."""
    _require_rows("generated", generated, least)
    _require_rows("reference", reference, least)
    _require_width(generated.shape[1], reference.shape[1])


def _require_rows(name: str, rows: Tensor, least: int) -> None:
    if rows.ndim != 2:
        raise MetricError(f"{name} features must be [n, E], found {list(rows.shape)}")
    if len(rows) < least:
        raise MetricError(f"{len(rows)} {name} images are too few: at least {least} are needed")
    if not torch.isfinite(rows).all():
        bad = int((~torch.isfinite(rows).all(1)).sum())
        raise MetricError(f"the features of {bad} {name} images hold NaN or infinity")


def _require_width(generated: int, reference: int) -> None:
    if generated != reference:
        raise MetricError(
            f"generated features have {generated} entries, the reference {reference}: they come "
            "from different extractors"
        )
