"""Inception Score (Salimans et al., 1606.03498): exp of the mean KL(p(y | image) || p(y)), p(y) the
mean over images, in ten parts of the images in their order. It asks whether each image shows one
class of ImageNet and all together many; it knows no captions."""

from __future__ import annotations

import torch
from torch import Tensor

from metrics import MetricError
from metrics.stats import Interval, student_mean

SPLITS = 10


def inception_score(classes: Tensor) -> Interval:
    """The mean over the parts, with an interval over them (Student's t). classes: [n, C], rows sum
    to 1. Raises MetricError for fewer than two images per part."""
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
