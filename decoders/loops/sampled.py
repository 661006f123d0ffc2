"""Training on codes that the target sampled: a drafter will continue such codes, not those of
photographs. The papers' released data are of this kind for Lumina ("self-distilled").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoders.api import ImageModel, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.noise import Noise, image_key
from decoders.training.sources import Listed
from decoders.training.states import Images


def sampled(
    model: ImageModel,
    prompts: Sequence[str],
    sampling: Sampling,
    held_out: float = 0.05,
    seed: int = 0,
    rounds: int = 1,
) -> Listed:
    """Codes that the target draws, `rounds` images a prompt, each with noise of its own."""
    decoder = Autoregressive(model, sampling)
    count = len(prompts)

    def make(numbers: list[int]) -> Images:
        words = [prompts[n % count] for n in numbers]
        keys = [image_key(seed + n // count, w) for n, w in zip(numbers, words, strict=True)]
        text = model.text.encode(words).to(model.device)
        codes = decoder.generate(text, Noise.of_keys(torch.stack(keys), model.target.length)).codes
        return Images(text, codes.to(model.device).clone())  # no inference tensor

    return Listed(count * rounds, held_out, seed, make)
