"""GPT-2 as a target, which is none of the project's own, and wrong ones with one error each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.models.causal_lm import CausalLM
from decoders.models.random_weights import RandomTokenizer
from tests.exact.planted import changed

VOCAB, SIDE, PREFIX = 24, 4, 4
SHAPE = {"vocab_size": VOCAB, "n_positions": 48, "n_embd": 48, "n_layer": 1, "n_head": 2}


def gpt2(**changes: Any) -> GPT2LMHeadModel:
    config = GPT2Config(**SHAPE | changes, initializer_range=0.3, tie_word_embeddings=False)
    return GPT2LMHeadModel(config)


class Gpt(CausalLM):
    """Learned positions, one block, random weights far from uniform laws."""

    def __init__(self) -> None:
        super().__init__(gpt2(), range(VOCAB), SIDE, PREFIX)


class Letters:
    """A prompt's letters are its tokens, behind one position of padding."""

    def encode(self, prompts: list[str]) -> TextFeatures:
        ids = torch.tensor([[ord(c) % VOCAB for c in p[:PREFIX].rjust(PREFIX)] for p in prompts])
        mask = torch.arange(PREFIX).expand_as(ids) > 0
        return TextFeatures(ids, mask, torch.zeros_like(ids), mask)


def given(change):
    """A target whose `forward_codes` is given what `change` makes of its arguments."""
    return changed(Gpt, forward_codes=lambda usual, *args: usual(*change(*args)))


def causal(codes, positions, slots, mask, cache):
    order = torch.arange(cache.capacity, device=slots.device)
    # The prompt's first position is padding.
    return codes, positions, slots, (order <= slots[..., None]) & (order > 0), cache


def unmoved(usual, rows, capacity):
    cache = usual(rows, capacity)
    cache.commit = lambda source, destination: None
    return cache


# A forward of several codes stands one position off; AR is right.
OnePlaceOff = given(
    lambda codes, positions, *rest: (codes, positions + int(codes.shape[1] > 1), *rest)
)
# A code stands where its slot says: right for chains, wrong for trees.
PlacesOfSlots = given(lambda codes, _, slots, *rest: (codes, slots - PREFIX, slots, *rest))
# Codes of a forward stay in the row of its first one: wrong where a row ends.
OneRow = given(
    lambda codes, positions, *rest: (
        codes,
        positions[:, :1] // SIDE * SIDE + positions % SIDE,
        *rest,
    )
)
# All rows stand where the first one does.
PlacesOfFirstRow = given(lambda codes, at, *rest: (codes, at[:1].expand_as(at), *rest))
# Sees all codes in earlier slots, whatever the mask says.
OwnMask = given(causal)
# Takes a mask of floats, where 0 is open, for one of bools.
BoolMask = given(lambda codes, at, slots, mask, cache: (codes, at, slots, mask.bool(), cache))
# Normalises over the batch; right for a row alone.
MixedRows = changed(Gpt, logits=lambda usual, h: usual(1.5 * h - 0.5 * h.mean(0, keepdim=True)))
# Forgets to move what is committed.
StaleCache = changed(Gpt, new_cache=unmoved)


def path_of_first_row(usual, rows, capacity):
    cache = usual(rows, capacity)
    commit = cache.commit
    cache.commit = lambda source, destination: commit(source[:1].expand_as(source), destination)
    return cache


# All rows keep the path that the first one took.
PathOfFirstRow = changed(Gpt, new_cache=path_of_first_row)


def mixing(dim):
    """A target whose states hear a little of others: less than rounding in bfloat16."""

    def forward_codes(usual, *args):
        hidden = usual(*args)
        return hidden + 0.01 * hidden.roll(1, dim)

    return changed(Gpt, forward_codes=forward_codes)


def cousins(codes, positions, slots, mask, cache):
    """In forwards of eight codes and more, codes of one position see each other."""
    if codes.shape[1] < 8:
        return codes, positions, slots, mask, cache
    same = positions[:, :, None] == positions[:, None]  # [R, T, T]
    index = slots[:, None].expand_as(same)
    open_ = mask.scatter(2, index, torch.where(same, 0.0, mask.gather(2, index)))
    return codes, positions, slots, open_, cache


def leaky(codes, positions, slots, mask, cache):
    """In forwards of more than 32 codes, what is masked has a weight of e^-8."""
    if codes.shape[1] > 32:
        mask = mask.clamp_min(-8.0)
    return codes, positions, slots, mask, cache


LeakyWide = given(leaky)
SeesCousins = given(cousins)
SeesSiblings, SeesRows = mixing(1), mixing(0)  # of codes of the same forward, of other rows


class BarredApart(Gpt):
    """Bars half of its codes by itself, and says that it bars the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.barred = (torch.arange(VOCAB) < VOCAB // 2).expand(SIDE, -1)

    def logits(self, hidden):
        found = super().logits(hidden)
        return found if self.barred is None else found.masked_fill(~self.barred[0], float("-inf"))


def gpt_model(
    kind: Any = Gpt, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> ImageModel:
    """With random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target, book = kind(), F.normalize(torch.randn(VOCAB, 3), dim=-1)
    position, number = torch.device(device), getattr(torch, dtype)
    return ImageModel(
        name="gpt",
        target=target.to(number),
        text=Letters(),
        tokenizer=RandomTokenizer(book),
        sampling=Sampling(cfg=2.0),
        device=position,
        dtype=number,
        weights_sha256={},
    )


def load_wrong(**kwargs: Any) -> ImageModel:
    return gpt_model(OnePlaceOff, **kwargs)
