"""The baseline: one target forward a code. As fast as the same model allows, nothing left slow.

Sampling reads the noise of (seed, prompt, position); temperature 0 is an argmax.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import (
    CodeKind,
    DecoderError,
    Generation,
    ImageModel,
    NumericalError,
    Sampling,
    TextFeatures,
)
from decoders.cache import BLOCK
from decoders.distribution import code_logits, probabilities
from decoders.noise import TARGET_SLOT, Noise, sample
from decoders.recording import Recorder
from decoders.timing import Stopwatch


def choose(logits: Tensor, sampling: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Guided logits [B, V], u [B] -> (codes [B], the distribution they came from [B, V])."""
    if sampling.greedy:
        return logits.argmax(-1), logits
    p = probabilities(logits, sampling)
    return sample(p, u), p


def require_finite(recorder: Recorder, where: str) -> None:
    if bool(recorder.bad):
        raise NumericalError(
            f"{where}: expected finite logits, found NaN or infinity while decoding; check the "
            "checkpoint and its dtype (float16 overflows where bfloat16 does not)"
        )


class Autoregressive:
    """Plain next-code decoding."""

    rule = None

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        drafter: Any = None,
        tree: Any = None,
        acceptance: Any = None,
    ) -> None:
        extra = [
            n for n, v in [("drafter", drafter), ("tree", tree), ("acceptance", acceptance)] if v
        ]
        if extra:
            raise DecoderError(
                f"the autoregressive loop has no {', '.join(extra)}; set "
                + " ".join(f"{n}=none" for n in extra)
            )
        self.model, self.sampling = model, sampling

    @torch.inference_mode()
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: int = 0) -> Generation:
        del pairs  # nothing is verified
        target, sampling = self.model.target, self.sampling
        watch = Stopwatch(self.model.device)
        noise = noise.to(self.model.device)
        batch, length, copies = text.batch, target.length, sampling.guidance_rows
        rows = batch * copies
        cache = target.new_cache(rows, target.prefix + min(BLOCK, length))
        record = Recorder(batch, length, 1, self.model.device)
        hidden = target.prefill(text, copies, cache)[:, -1:]  # [R, 1, D]
        seen = F.pad(text.row_mask(copies), (0, length))[:, None]  # [R, 1, P + L]
        places = torch.arange(length, device=seen.device).expand(rows, -1)  # [R, L]
        watch.lap("prefill")
        codes = torch.empty(0)  # [B], the code just chosen
        for j in range(length):
            if j:
                slot = target.prefix + j - 1
                if slot == cache.capacity:
                    cache = cache.widened(min(slot + BLOCK, target.prefix + length))
                seen[:, :, slot] = True
                grid = places[:, j - 1 : j]
                mask = seen[..., : cache.capacity]  # [R, 1, S]
                hidden = target.forward_codes(
                    codes.repeat(copies)[:, None], grid, grid + target.prefix, mask, cache
                )
            logits = code_logits(target, hidden, sampling.cfg, places[:batch, j : j + 1])[:, 0]
            codes, p = choose(logits, sampling, noise.uniform[:, j, TARGET_SLOT])
            record.check(p)
            record.codes[:, j] = codes
        watch.lap("verify")
        require_finite(record, "autoregressive decoding")
        calls = torch.full((batch,), length - 1)
        record.step[:, :length] = torch.arange(length, device=record.step.device)
        record.kind.fill_(int(CodeKind.TARGET))
        record.accepted = [torch.zeros(batch, dtype=torch.int16)] * (length - 1)
        trace = record.finish(watch.seconds(), calls, torch.zeros(batch), 0, 0, None)
        return Generation(record.codes[:, :length].cpu(), trace)
