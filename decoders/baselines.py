"""Plain decoding: what decoders are held against, and the codes that drafters are trained on; and
the exact parts that may stand in a composition for its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import PartSpec
from decoders.loops.autoregressive import Autoregressive
from decoders.noise import Noise, image_key
from decoders.training.sources import Listed
from decoders.training.states import Images

EXACT = PartSpec("decoders.verify.exact.Exact")
DRAFTER = PartSpec("decoders.propose.drafters.eagle.Eagle")  # every small model has weights for it


def plain_decoding(model: ImageModel, sampling: Sampling) -> Decoder:
    """AR."""
    return Autoregressive(model, sampling)


def sampled(
    model: ImageModel,
    prompts: Sequence[str],
    sampling: Sampling,
    held_out: float = 0.05,
    seed: int = 0,
    rounds: int = 1,
) -> Listed:
    """A training's codes as the target draws them, `rounds` images per prompt, each with noise of
    its own: a drafter will continue such codes, not those of photographs."""
    decoder = plain_decoding(model, sampling)
    count = len(prompts)

    def make(numbers: list[int]) -> Images:
        words = [prompts[n % count] for n in numbers]
        keys = [image_key(seed + n // count, w) for n, w in zip(numbers, words, strict=True)]
        text = model.text.encode(words).to(model.device)
        codes = decoder.generate(text, Noise.of_keys(torch.stack(keys), model.target.length)).codes
        return Images(text, codes.to(model.device).clone())  # no inference tensor

    return Listed(count * rounds, held_out, seed, make)
