"""Improved precision and recall (Kynkaanniemi et al. 1904.06991): shares of points in balls.

A ball of radius "distance to the k-th neighbour" (k = 3) around every point of a set is its
manifold. Precision: generated images in the reference's; recall: reference images in the generated
ones'. Both equal torch-fidelity's (a test holds them to it), but distances are taken in blocks of
rows: two matrices, generated x generated and reference x generated, are all that is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.moments import check_features, check_widths
from metrics.stats import Interval, bootstrap_mean, jackknife

NEIGHBOURS = 3  # k
_BLOCK = 1024  # rows of distances taken together


def precision_recall(
    generated: Tensor, reference: Tensor, *, groups: int = 32, seed: int = 0
) -> tuple[Interval, Interval]:
    """Precision and recall with 95 % intervals from features [n, E] and [m, E].

    Precision is a mean over generated images of "lies in some reference ball" (bootstrap); recall
    changes with the generated set as a whole (its balls), hence the jackknife. Memory: 8 n (n + m)
    bytes. Raises MetricError for fewer than k + 2 rows, NaN, or different E.
    """
    for name, rows in (("generated", generated), ("reference", reference)):
        check_features(name, rows, NEIGHBOURS + 2)
    check_widths(generated.shape[1], reference.shape[1])
    fake, real = generated.double().cpu(), reference.double().cpu()
    within = torch.cat([torch.cdist(rows, fake) for rows in fake.split(_BLOCK)])  # [n, n]
    across = torch.cat([torch.cdist(rows, fake) for rows in real.split(_BLOCK)])  # [m, n]
    real_radius = torch.cat([_radius(torch.cdist(rows, real)) for rows in real.split(_BLOCK)])
    blocks = zip(across.split(_BLOCK), real_radius.split(_BLOCK), strict=True)
    inside = torch.zeros(len(fake), dtype=torch.bool)  # [n]
    for distances, radius in blocks:
        inside |= (distances <= radius[:, None]).any(0)

    def recall_of(rows: object) -> float:
        kept = torch.as_tensor(rows)
        own = torch.cat([_radius(within[part][:, kept]) for part in kept.split(_BLOCK)])  # [kept]
        hits = sum(int((part[:, kept] <= own).any(1).sum()) for part in across.split(_BLOCK))
        return hits / len(real)

    recall = jackknife(len(fake), recall_of, groups=groups, seed=seed)
    return (
        bootstrap_mean(inside.double().numpy(), seed=seed),
        Interval(recall.value, max(recall.lo, 0.0), min(recall.hi, 1.0)),
    )


def _radius(distances: Tensor) -> Tensor:
    """Distance to the k-th neighbour, the point itself (distance 0) not counted; [b, n] -> [b]."""
    return distances.kthvalue(NEIGHBOURS + 1, dim=1).values
