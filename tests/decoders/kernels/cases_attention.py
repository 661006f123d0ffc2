"""What the tree attention kernel must do, on whatever device it runs: natively on a GPU
(tests/gpu), in Triton's interpreter on the CPU (test_kernels.py runs this file with the variable
set)."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from decoders.cache import KVCache
from decoders.kernels import candidates, reference
from decoders.kernels.reference import additive
from decoders.kernels.runtime import missing
from decoders.kernels.tree_attention import plan
from decoders.models.transformer import Attention, TransformerConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
if DEVICE.type == "cuda":  # products of three tf32 parts
    TOLERANCE[torch.float32] = 1e-5


@dataclass
class Given:
    qkv: Tensor
    rope: Tensor
    mask: Tensor
    slots: Tensor
    keys: Tensor
    values: Tensor

    def arguments(self) -> list[Tensor]:
        """With a cache of its own."""
        own = [self.keys.clone(), self.values.clone()]
        return [self.qkv, self.rope, self.mask, self.slots, *own]


def given(rows, queries, heads, slots, size, dtype=torch.float32, seed=0, group=1) -> Given:
    """Random trees behind prefixes of different lengths; padded at the left as captions are.
    group: heads that share keys and values."""
    random = torch.Generator().manual_seed(seed)
    angle = torch.randn(rows, queries, size // 2, generator=random)
    base = torch.randint(5, slots - queries + 1, (rows, 1), generator=random)  # [R, 1]
    pad = torch.randint(0, 4, (rows, 1, 1), generator=random)
    place = torch.arange(slots)
    mask = ((place < base[..., None]) & (place >= pad)).repeat(1, queries, 1)  # [R, T, S]
    above = torch.rand(rows, queries, queries, generator=random) < 0.4
    above = above.tril(-1) | torch.eye(queries, dtype=torch.bool)
    for row, start in enumerate(base[:, 0].tolist()):
        mask[row, :, start : start + queries] = above[row]
    shared = heads // group
    both = torch.randn(2, rows, shared, slots, size, generator=random).to(DEVICE, dtype)
    return Given(
        torch.randn(rows, queries, heads + 2 * shared, size, generator=random).to(DEVICE, dtype),
        torch.polar(torch.ones_like(angle), angle).to(DEVICE),
        mask.to(DEVICE),
        (base + torch.arange(queries)).to(DEVICE),
        both[0],
        both[1],
    )


def prepared(x: Given, splits: int | None = None):
    """What the kernel makes of mask and slots, its workspace and plan included."""
    rows, queries, every, size = x.qkv.shape
    heads = every - 2 * x.keys.shape[1]
    shape = candidates.AttentionShape(
        rows, queries, heads, x.keys.shape[2], size, x.qkv.dtype, x.qkv.device
    )
    return candidates.Triton(splits).prepare(shape, x.mask, x.slots)


def attended(x: Given, splits: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel's output, and the cache after it."""
    qkv, rope, _, _, keys, values = x.arguments()
    out = candidates.Triton().attend(qkv, rope, prepared(x, splits), keys, values)
    return out, keys, values


def by_reference(x: Given) -> tuple[Tensor, Tensor, Tensor]:
    arguments = x.arguments()
    return reference.tree_attention(*arguments), arguments[4], arguments[5]


def close(found: Tensor, right: Tensor) -> None:
    allowed = TOLERANCE[right.dtype]
    torch.testing.assert_close(found, right, atol=allowed, rtol=allowed)


SHAPES = [  # R, T, H, S, d, splits
    (2, 1, 3, 90, 24, None),
    (1, 1, 2, 200, 64, 4),
    (2, 7, 3, 200, 12, 3),
    (1, 26, 2, 193, 20, 2),
    (2, 58, 1, 150, 16, 1),
    (1, 64, 2, 320, 100, 5),
]


def test_the_kernel_runs_here_for_attention():
    assert missing(DEVICE) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_cache_equal_the_reference(shape):
    *sizes, splits = shape
    x = given(*sizes)
    (found, keys, values), right = attended(x, splits), by_reference(x)
    close(found, right[0])
    close(keys, right[1])
    assert torch.equal(values, right[2])
    assert not torch.equal(keys, x.keys)  # the new keys really were appended


@pytest.mark.parametrize(
    ("shape", "group"),
    [((2, 7, 6, 200, 12, 3), 3), ((1, 26, 8, 130, 16, 2), 4), ((2, 1, 2, 90, 24, 1), 2)],
)
def test_heads_that_share_keys_read_and_append_them(shape, group):
    *sizes, splits = shape
    x = given(*sizes, group=group)
    (found, keys, values), right = attended(x, splits), by_reference(x)
    close(found, right[0])
    close(keys, right[1])
    assert torch.equal(values, right[2])
    apart = [x.qkv[:, :, : sizes[2]]]  # each head with keys and values of its own
    apart += [each.repeat_interleave(group, 2) for each in x.qkv[:, :, sizes[2] :].chunk(2, 2)]
    whole = [each.repeat_interleave(group, 1) for each in (x.keys, x.values)]
    close(found, reference.tree_attention(torch.cat(apart, 2), x.rope, x.mask, x.slots, *whole))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 26])
def test_half_precision(dtype, queries):
    x = given(2, queries, 2, 130, 32, dtype)
    (found, keys, values), right = attended(x, 2), by_reference(x)
    assert found.dtype == dtype
    close(found, right[0])
    close(keys, right[1])
    assert torch.equal(values, right[2])


def test_new_keys_across_the_border_of_two_splits_are_seen_by_all_queries():
    """40 nodes at slots 44..83 in splits of 64: the second appends what the first did not."""
    x = given(1, 40, 1, 128, 16)
    x.slots[:] = torch.arange(44, 84)
    x.mask[:] = False
    x.mask[..., 44:84] = True
    chosen = plan(1, 40, 1, 128, 16, torch.float32, DEVICE, splits=2)
    assert chosen.splits == 2 and chosen.block == 32
    for ours, theirs in zip(attended(x, 2), by_reference(x), strict=True):
        close(ours, theirs)


def test_slots_outside_the_used_ones_are_never_read():
    x = given(2, 5, 2, 400, 16)
    last = x.slots.amax(-1) + 1  # [R]
    assert (last < 400).all()
    right = reference.tree_attention(*x.arguments())
    for row, end in enumerate(last.tolist()):
        x.keys[row, :, end:] = float("nan")
        x.values[row, :, end:] = float("nan")
    close(attended(x, 3)[0], right)


@pytest.mark.parametrize("splits", [1, 3])
def test_it_stands_in_for_the_transformer_s_attention(splits):
    """The module's own rotation, cache and products on a cache whose layers are views."""
    config = TransformerConfig(
        vocab=8, width=24, layers=2, heads=2, ffn=48, grid=3, prefix=4, text_width=8
    )
    torch.manual_seed(0)
    module = Attention(config).to(DEVICE)
    torch.nn.init.eye_(module.wo.weight)
    x = given(2, 6, 2, 150, 12)
    states = torch.randn(2, 6, 24, device=DEVICE)
    caches = []
    for _ in range(2):
        cache = KVCache(2, 2, 150, 2, 12, torch.float32, DEVICE)
        cache.data[1, 0], cache.data[1, 1] = x.keys, x.values
        caches.append(cache)
    with torch.inference_mode():
        bias = additive(x.mask, torch.float32)
        index = caches[0].flat_index(x.slots)
        right = module(states, x.rope[:, None], bias, 1, caches[0], index)
        qkv = module.wqkv(states).view(2, 6, 6, 12)
        found = candidates.Triton().attend(qkv, x.rope, prepared(x, splits), *caches[1].read(1))
    torch.testing.assert_close(found.flatten(2), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(caches[1].data, caches[0].data, atol=1e-6, rtol=1e-6)
