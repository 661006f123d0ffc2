"""The cases of recorded steps on a real card."""

import pytest
import torch

from tests.decoders.execution.test_recorded_graphs import *  # noqa: F403

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
