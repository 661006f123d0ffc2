"""A GPT-like target that is none of the project's own, and wrong ones with one error each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.cache import KVCache
from decoders.models.small import FixedText, RandomTokenizer
from tests.exact.planted import changed

VOCAB, SIDE, WIDTH, HEADS, PREFIX, BEYOND = 24, 4, 32, 2, 4, 16


class Block(nn.Module):
    """LayerNorm, attention over a cache, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, layer: int, index: Tensor, mask: Tensor, cache: Any) -> Tensor:
        heads = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        cache.write(layer, index, heads[1:])  # [2, R, H, T, d]
        keys, values = cache.read(layer)
        bias = mask if mask.dtype == torch.bool else mask.to(x.dtype)
        seen = F.scaled_dot_product_attention(heads[0], keys, values, bias[:, None])
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    """Learned places, two blocks. `decoders.api.Target`, with names of its own."""

    vocab_size, width, length, prefix, barred = VOCAB, WIDTH, SIDE**2, PREFIX, None

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.text = nn.Embedding(VOCAB, WIDTH), nn.Linear(8, WIDTH)
        self.places = nn.Embedding(PREFIX + SIDE**2 + BEYOND, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.head.weight, std=0.4)

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        weight = self.head.weight
        return KVCache(2, rows, capacity, HEADS, WIDTH // HEADS, weight.dtype, weight.device)

    def run(self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: Any) -> Tensor:
        x = x + self.places(places.clamp_max(PREFIX + SIDE**2 + BEYOND - 1))
        index = cache.flat_index(slots)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, index, mask, cache)
        return self.last(x)

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: Any) -> Tensor:
        rows, drop = text.paired(guidance_rows)
        valid = rows.valid(drop)
        x = rows.features.masked_fill(drop[:, None, None], 0.0).to(self.text.weight.dtype)
        x = self.text(x)
        slots = torch.arange(PREFIX, device=x.device).expand(len(drop), -1)
        eye = torch.eye(PREFIX, dtype=torch.bool, device=x.device)
        mask = (valid[:, None] & (slots[:1, :, None] >= slots[:1, None])) | eye
        return self.run(x, slots, slots, F.pad(mask, (0, cache.capacity - PREFIX)), cache)

    def forward_codes(
        self, codes: Tensor, grid_index: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        return self.run(self.codes(codes), PREFIX + grid_index, slots, mask, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


def given(change):
    """A target whose `forward_codes` is given what `change` makes of its arguments."""
    return changed(Gpt, forward_codes=lambda usual, *args: usual(*change(*args)))


def causal(codes, places, slots, mask, cache):
    order = torch.arange(cache.capacity, device=slots.device)
    # The prompt's first place is padding.
    return codes, places, slots, (order <= slots[..., None]) & (order > 0), cache


def unmoved(usual, rows, capacity):
    cache = usual(rows, capacity)
    cache.commit = lambda source, destination: None
    return cache


# A forward of several codes stands one place off; AR is right.
OnePlaceOff = given(lambda codes, places, *rest: (codes, places + int(codes.shape[1] > 1), *rest))
# A code stands where its slot says: right for chains, wrong for trees.
PlacesOfSlots = given(lambda codes, _, slots, *rest: (codes, slots - PREFIX, slots, *rest))
# Codes of a forward stay in the row of its first one: wrong where a row ends.
OneRow = given(
    lambda codes, places, *rest: (codes, places[:, :1] // SIDE * SIDE + places % SIDE, *rest)
)
# All rows stand where the first one does.
PlacesOfFirstRow = given(lambda codes, at, *rest: (codes, at[:1].expand_as(at), *rest))
# Sees all codes in earlier slots, whatever the mask says.
OwnMask = given(causal)
# Takes a mask of floats, where 0 is open, for one of bools.
BoolMask = given(lambda codes, at, slots, mask, cache: (codes, at, slots, mask.bool(), cache))
# Normalises over the batch.
MixedRows = changed(Gpt, logits=lambda usual, h: usual(h - 0.5 * h.mean(0, keepdim=True)))
# Forgets to move what is committed.
StaleCache = changed(Gpt, new_cache=unmoved)


class BarredApart(Gpt):
    """Bars half of its codes by itself, and says that it bars the other half."""

    def __init__(self) -> None:
        super().__init__()
        half = torch.arange(VOCAB) < VOCAB // 2
        self.barred = half.expand(SIDE, -1)
        self.register_buffer("own", ~half, persistent=False)

    def logits(self, hidden):
        return super().logits(hidden).masked_fill(self.own, float("-inf"))


class Wrapped:
    """A right target that is no module itself."""

    vocab_size, width, length, prefix, barred = VOCAB, WIDTH, SIDE**2, PREFIX, None

    def __init__(self) -> None:
        self.net = Gpt().eval()
        self.new_cache, self.prefill = self.net.new_cache, self.net.prefill
        self.forward_codes, self.logits = self.net.forward_codes, self.net.logits

    def to(self, dtype: torch.dtype) -> Wrapped:
        self.net.to(dtype)
        return self


def gpt_model(
    kind: Any = Gpt, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> ImageModel:
    """With random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target, book = kind(), F.normalize(torch.randn(VOCAB, 3), dim=-1)
    place, number = torch.device(device), getattr(torch, dtype)
    return ImageModel(
        name="gpt",
        target=target.to(number),
        text=FixedText(PREFIX, 8, place, number),
        tokenizer=RandomTokenizer(book),
        sampling=Sampling(cfg=2.0),
        device=place,
        dtype=number,
        weights_sha256={},
    )


def load_wrong(**kwargs: Any) -> ImageModel:
    return gpt_model(OnePlaceOff, **kwargs)
