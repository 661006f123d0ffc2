"""FID, KID, precision and recall of generated images against a reference, from their features; and
the Inception Score, from their classes.

FID (Heusel et al. 1706.08500) is |mu - mu'|^2 + tr(S + S' - 2 (S S')^1/2); KID (Binkowski et al.
1801.01401) is the unbiased squared MMD of all rows, with torch-fidelity's cubic kernel; improved
precision and recall (Kynkaanniemi et al. 1904.06991) are torch-fidelity's, in blocks of rows.

FID falls with the number of images n even when the distributions agree, by about 1/n: compare
decoders at equal n only. `fid_interval` also returns the jackknife's estimate without that bias.
The intervals are about the figure *at this n*, for new samples of the generated images with the
reference fixed: FID and recall by the delete-a-group jackknife (a bootstrap's duplicates would put
the interval above FID itself), KID by the delete-one jackknife, precision by Student's t.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from metrics import MetricError
from metrics.stats import NORMAL_REACH, Interval, jackknife, jackknife_values, student_mean, wilson

FID_SPREAD_RATIO = 1.25  # the jackknife's spread over FID's own, simulated at 60 to 500 images
NEIGHBOURS = 3  # k of precision and recall
FEWEST_IMAGES = NEIGHBOURS + 2  # images
SPLITS = 10  # parts of the images that the Inception Score is a mean over
RELATIVE_ROUNDING = 1e-12  # of squared norms, in squared distances; float32 features differ more
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
        """The moments of rows [n >= 1, E]."""
        rows = features.double().cpu().numpy()
        mean = rows.mean(0)  # [E]
        centred = rows - mean
        return cls(len(rows), mean, centred.T @ centred)  # [E, E]

    @property
    def covariance(self) -> np.ndarray:
        """Unbiased covariance [E, E] of two rows or more."""
        return self.scatter / (self.count - 1)

    def without(self, part: Moments) -> Moments:
        """The moments of this set without a part of it, by the pooled formulas (Chan, Golub and
        LeVeque 1979), stable where sums of squares are not:
        M = M_a + M_b + d d^T n_a n_b / n, d = m_b - m_a."""
        count = self.count - part.count
        mean = (self.count * self.mean - part.count * part.mean) / count
        step = part.mean - mean
        weight = count * part.count / self.count
        return Moments(count, mean, self.scatter - part.scatter - weight * np.outer(step, step))


def fid_interval(generated: Tensor, reference: Moments) -> tuple[Interval, Interval]:
    """FID of features [n, E] with its interval (not below 0), and the same without its bias: the
    jackknife's K t - (K - 1) mean t_k, about what more images would give. It scatters as FID does,
    and the bias of the reference stays in it. Logs a warning where n or the reference's count is at
    most E. Raises MetricError for fewer than 3 rows."""
    _require(3, generated=generated)
    for what, count in (("generated", len(generated)), ("reference", reference.count)):
        if count <= generated.shape[1]:
            _warn_of_bias(what, count, generated.shape[1])
    every, distance = Moments.of(generated), distance_to(reference)

    def without(rows: np.ndarray) -> float:
        rest = every.without(Moments.of(generated[torch.from_numpy(rows)])) if len(rows) else every
        return distance(rest)

    values = jackknife_values(len(generated), without)
    fid, groups = jackknife(values, wide=FID_SPREAD_RATIO), len(values) - 1
    bias = (groups - 1) * (float(values[1:].mean()) - fid.value)
    free = Interval(*(end - bias for end in (fid.value, fid.lo, fid.hi)))
    return Interval(fid.value, max(fid.lo, 0.0), fid.hi), free


@cache
def _warn_of_bias(what: str, count: int, width: int) -> None:
    """Said once, as all decoders of a run have as many images."""
    _LOG.warning(
        f"{count} {what} images for {width} features: the covariance is singular and FID is mostly "
        f"bias; take more than {2 * width}"
    )


def distance_to(reference: Moments) -> Callable[[Moments], float]:
    """The Frechet distance to a fixed reference, as a function of moments. tr (S S')^1/2 is the sum
    of roots of the eigenvalues of R S R with R = S'^1/2, a symmetric matrix; R is taken once, which
    makes the jackknife's 32 further distances cheap."""
    fixed = reference.covariance
    values, vectors = np.linalg.eigh(fixed)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T  # [E, E]

    def distance(other: Moments) -> float:
        spread = other.covariance
        product = root @ spread @ root  # [E, E]
        overlap = np.sqrt(np.linalg.eigvalsh((product + product.T) / 2).clip(0)).sum()
        step = other.mean - reference.mean
        squared = float(step @ step + np.trace(spread) + np.trace(fixed) - 2 * overlap)
        return max(squared, 0.0)  # of equal sets rounding leaves a little below 0

    return distance


def kid(generated: Tensor, reference: Tensor) -> Interval:
    """Unbiased squared MMD of features [n, E] and [m, E], its interval over generated images. With
    kernel sums over other rows a_i, over the reference b_i and within the reference c:

        KID = sum a / (n (n - 1)) + c / (m (m - 1)) - 2 sum b / (n m)

    Raises MetricError for fewer than 4 rows.
    """
    _require(4, reference=reference, generated=generated)
    fake, real = (x.double().cpu() for x in (generated, reference))
    among, across, within = _sums(fake, fake), _sums(fake, real), _sums(real, real)  # [n], [n], [m]
    among -= _kernel((fake * fake).sum(1), fake.shape[1])
    within -= _kernel((real * real).sum(1), real.shape[1])
    n, m = len(fake), len(real)
    rest = float(within.sum()) / (m * (m - 1))
    # Without image i: its pairs with all others, and with the reference, are gone.
    pairs = torch.cat([among.sum()[None], among.sum() - 2 * among]).numpy()  # [1 + n]
    mixed = torch.cat([across.sum()[None], across.sum() - across]).numpy()
    left = np.append(float(n), np.full(n, n - 1.0))
    return jackknife(pairs / (left * (left - 1)) + rest - 2 * mixed / (left * m))


def _kernel(products: Tensor, width: int) -> Tensor:
    """(x y / E + 1)^3 of inner products."""
    return (products / width + 1) ** 3


def _sums(rows: Tensor, others: Tensor) -> Tensor:
    """The kernel's sum over the others [m, E] for each row [n, E]; [n]."""
    width = rows.shape[1]
    return torch.cat([_kernel(part @ others.T, width).sum(1) for part in rows.split(_BLOCK)])


def precision_recall(generated: Tensor, reference: Tensor) -> tuple[Interval, Interval]:
    """Precision and recall with 95 % intervals from features [n, E] and [m, E]: shares of the
    generated images in the reference's manifold, and of the reference in the generated ones'. A
    set's manifold is a ball of radius "distance to the k-th neighbour" around each of its points.
    Precision is the share of generated images that lie in some reference ball (Wilson's interval);
    recall changes with the generated set as a whole (its balls), hence the jackknife, cut at 0 and
    1. Memory: 8 n (n + m) bytes. Raises
    MetricError for fewer than k + 2 rows."""
    _require(FEWEST_IMAGES, reference=reference, generated=generated)
    centre = reference.double().mean(0).cpu()  # [E]
    fake, real = (x.double().cpu() - centre for x in (generated, reference))
    # Rounding leaves this much of the square of a distance that is 0 (of repeated images).
    slack = RELATIVE_ROUNDING * float(max((x * x).sum(1).max() for x in (fake, real)))
    within = torch.cat([torch.cdist(rows, fake) for rows in fake.split(_BLOCK)])  # [n, n]
    across = torch.cat([torch.cdist(rows, fake) for rows in real.split(_BLOCK)])  # [m, n]
    balls = [_radius(torch.cdist(rows, real), slack) for rows in real.split(_BLOCK)]
    blocks = zip(across.split(_BLOCK), balls, strict=True)
    inside = torch.zeros(len(fake), dtype=torch.bool)  # [n]
    for distances, radius in blocks:
        inside |= (distances <= radius[:, None]).any(0)

    def recall_without(rows: np.ndarray) -> float:
        rest = torch.from_numpy(np.delete(np.arange(len(fake)), rows))
        parts = rest.split(_BLOCK)
        radii = torch.cat([_radius(within[part][:, rest], slack) for part in parts])  # [rest]
        hits = sum(int((part[:, rest] <= radii).any(1).sum()) for part in across.split(_BLOCK))
        return hits / len(real)

    recall = jackknife(jackknife_values(len(fake), recall_without), least=0.0, most=1.0)
    return wilson(float(inside.double().mean()), len(fake), NORMAL_REACH), recall


def inception_score(classes: Tensor) -> Interval:
    """Inception Score (Salimans et al., 1606.03498): exp of the mean KL(p(y | image) || p(y)), p(y)
    the mean over images. It asks whether each image shows one class of ImageNet and all together
    many; it knows no captions. The mean over `SPLITS` parts of the images in their order, with an
    interval over the parts (Student's t). classes: [n, C], rows sum to 1. Raises MetricError for
    fewer than two images per part."""
    if len(classes) < 2 * SPLITS:
        raise MetricError(
            f"the Inception Score needs {2 * SPLITS} images or more, found {len(classes)}"
        )
    scores = []
    for part in range(SPLITS):
        start, stop = (at * len(classes) // SPLITS for at in (part, part + 1))
        p = classes[start:stop].double()  # [m, C]
        mean = p.mean(0, keepdim=True)  # [1, C]
        divergence = (torch.xlogy(p, p) - torch.xlogy(p, mean)).sum(1)  # [m]
        scores.append(float(divergence.mean().exp()))
    return student_mean(scores)


def _radius(distances: Tensor, slack: float) -> Tensor:
    """Distance to the k-th neighbour, the point itself (distance 0) not counted, its square larger
    by `slack`; [b, n] -> [b]."""
    return (distances.kthvalue(NEIGHBOURS + 1, dim=1).values.square() + slack).sqrt()


def _require(least: int, **sets: Tensor) -> None:
    for name, rows in sets.items():
        if len(rows) < least:
            raise MetricError(f"{len(rows)} {name} images are too few: at least {least} are needed")
