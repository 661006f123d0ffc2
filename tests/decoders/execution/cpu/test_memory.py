"""Memory in huge pages is like any other."""

import mmap

import pytest
import torch

from decoders.cache import HUGE, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [3, HUGE // 4 + 1])
def test_zeros_of_any_size_are_zero_and_their_own(dtype, rows):
    one, other = zeros((rows, 2), dtype, CPU), zeros((rows, 2), dtype, CPU)
    assert one.shape == (rows, 2) and one.dtype == dtype and one.is_contiguous()
    assert not one.any()
    one[-1] = 1
    assert not other.any()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages here")
def test_large_ones_begin_at_a_huge_page():
    assert zeros((HUGE,), torch.bfloat16, CPU).data_ptr() % HUGE == 0


def test_other_devices_have_their_own_memory():
    assert zeros((HUGE,), torch.float32, torch.device("meta")).device.type == "meta"
