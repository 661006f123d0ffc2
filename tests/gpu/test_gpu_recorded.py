"""Recorded steps and launches on a GPU: the cases of the pretended card again, compiled, at full
sizes, 100,000 launches each."""

from __future__ import annotations

import pytest
import torch

from tests.decoders.kernels.cases_recorded import *  # noqa: F403

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
