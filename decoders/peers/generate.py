"""transformers' `generate` as a decoder, so that it runs on the harness's clock.

Why: a speed-up says little if the baseline is slow, and transformers is what most people would run.
Everything a call needs is inside `generate`: our caption network, the prefix, the loop. Guidance is
what its users do: rows [conditional; unconditional] in one forward, mixed by a logits processor
that also gives both rows the same code. At temperature 0 it is an argmax; else codes are drawn with
torch.multinomial, so they differ from ours, from the same law.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.configuration_utils import CompileConfig
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decoders.api import (
    CodeKind,
    DecoderError,
    Generation,
    ImageModel,
    Sampling,
    TextFeatures,
    Trace,
    guided,
)
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.start import one_at_a_time
from decoders.models.transformer import Transformer
from decoders.noise import Noise
from decoders.peers.convert import PeerError, llama_of, prompt_of
from decoders.training.states import transformer_of

TOLERANCE = 1e-4  # of logits in `prove`
log = logging.getLogger(__name__)
logging.getLogger("transformers").setLevel(logging.ERROR)  # its hints are not ours to follow


class GuidedHead(LogitsProcessor):
    """Scores [2 B, V], rows [conditional; unconditional] -> the guided ones, twice. Where codes are
    drawn, it draws (one code a pair) and leaves that one possible."""

    def __init__(self, sampling: Sampling) -> None:
        self.cfg, self.greedy = sampling.cfg, sampling.greedy
        # transformers' own filters in our order: temperature, top-k, top-p.
        found: list[LogitsProcessor] = []
        if not sampling.greedy and sampling.temperature != 1:
            found.append(TemperatureLogitsWarper(sampling.temperature))
        if not sampling.greedy and sampling.top_k:
            found.append(TopKLogitsWarper(sampling.top_k))
        if not sampling.greedy and sampling.top_p < 1:
            found.append(TopPLogitsWarper(sampling.top_p))
        self.warpers: Any = LogitsProcessorList(found)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        mixed = guided(scores, self.cfg)  # [B, V]
        mixed = self.warpers(input_ids[: len(mixed)], mixed)
        if not self.greedy:
            drawn = torch.multinomial(mixed.softmax(-1), 1)  # [B, 1]
            mixed = torch.full_like(mixed, float("-inf")).scatter_(1, drawn, 0.0)
        return mixed.repeat(2, 1)  # [2 B, V]


class Generate:
    """`generate` of the library. cache: transformers'; compiled: a static one, and the forward is
    compiled. prove: before its first image, it is shown that both libraries run the same model
    (`prove`). Raises PeerError for a model that transformers' Llama cannot be.
    """

    exercised: ClassVar = {"cache": "dynamic", "prove": False}  # on the gate's small models

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        proposer: Any = None,
        verifier: Any = None,
        *,
        cache: Literal["dynamic", "static", "compiled"] = "dynamic",
        prove: bool = True,
    ) -> None:
        if proposer is not None or verifier is not None:
            raise DecoderError(
                "generate takes no parts: set drafter=none tree=none acceptance=none"
            )
        self.model, self.sampling, self.unproved, self.cache = model, sampling, prove, cache
        self.target: Transformer = transformer_of(model)
        self.llama: Any = llama_of(self.target)
        self.copies = sampling.guidance_rows
        draws = not sampling.greedy and self.copies == 1  # guided codes are drawn by `GuidedHead`
        filters = ("temperature", "top_k", "top_p") if draws else ()
        everywhere = CompileConfig()  # transformers' own, on the CPU too, where one has to ask
        everywhere._compile_all_devices = True  # type: ignore[assignment]
        self.config = GenerationConfig(
            max_new_tokens=self.target.length,
            do_sample=draws,
            cache_implementation=None if cache == "dynamic" else "static",
            disable_compile=cache != "compiled",
            compile_config=everywhere if cache == "compiled" else None,
            **{name: getattr(sampling, name) for name in filters},
        )
        self.processors = LogitsProcessorList([GuidedHead(sampling)] if self.copies == 2 else [])

    def __str__(self) -> str:
        return f"generate({self.cache} cache)"

    def on(self, model: ImageModel, sampling: Sampling) -> Generate:
        """The same way to call it, not compiled, on another model."""
        return Generate(
            model, sampling, cache="dynamic" if self.cache == "dynamic" else "static", prove=False
        )

    @one_at_a_time
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: float = 0) -> Generation:
        """See `decoders.api.Decoder`. The random numbers are torch's, seeded by the image's."""
        del pairs  # nothing is verified by us
        if self.unproved:
            log.info("%s: logits differ by at most %.1e", self, prove(self, text))
            self.unproved = False
        prompt, length = prompt_of(self.target, text, self.copies), self.target.length
        with seeded(noise):
            out = self.llama.generate(
                inputs_embeds=prompt.embeds,
                attention_mask=prompt.mask,
                position_ids=prompt.positions,
                generation_config=self.config,
                logits_processor=self.processors,
            )  # [R, L]
        if self.cache == "compiled" and not hasattr(self.llama, "_compiled_call"):
            raise PeerError("generate ran without compiling: its static cache was not taken up")
        return Generation(out[: text.batch].cpu(), trace_of(text.batch, length))


@contextmanager
def seeded(noise: Noise) -> Iterator[None]:
    """torch's generator set from the image's noise for the block, and put back afterwards."""
    device = noise.uniform.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(noise.uniform.flatten()[0] * 2**31))
        yield


def trace_of(batch: int, length: int) -> Trace:
    """The trace of a code per target forward; the first code is the prefill's."""
    nothing, calls = torch.zeros(batch, length), length - 1
    return Trace(
        kind=torch.full_like(nothing, CodeKind.TARGET).byte(),
        step=torch.arange(length).int().expand(batch, -1),
        depth=nothing.byte(),
        tv_shift=nothing,
        bound=nothing,
        accepted=torch.zeros(batch, calls).short(),
        target_calls=torch.full((batch,), calls, dtype=torch.int32),
        drafter_calls=torch.zeros(batch, dtype=torch.int32),
        seconds={"step": 0.0},  # of its phases nothing is known
    )


@torch.inference_mode()
def prove(made: Generate, text: TextFeatures) -> float:
    """Shows that both libraries run the same model, in float32 and on the first prompt: greedy
    codes are our AR's to the last one, and logits along them agree place by place. Returns their
    largest difference. A ratio of two different models would be worth nothing: raises PeerError.
    """
    target = Transformer(made.target.cfg).to(made.model.device).eval().requires_grad_(False)
    target.load_state_dict(made.target.state_dict())
    model = replace(made.model, target=target, dtype=torch.float32, execution=None)
    first = TextFeatures(text.features[:1].float(), text.mask[:1])
    greedy = replace(made.sampling, temperature=0.0)
    noise = Noise.for_prompts(0, [""], target.length).to(model.device)
    ours = Autoregressive(model, greedy).generate(first, noise).codes  # [1, L]
    theirs = made.on(model, greedy).generate(first, noise).codes
    if not torch.equal(ours, theirs):
        at = int((ours != theirs).flatten().nonzero()[0])
        raise PeerError(
            f"greedy codes differ at place {at} of {ours.numel()} (guidance {greedy.cfg:g}): ours "
            f"{int(ours[0, at])}, generate {int(theirs[0, at])}: the two libraries do not run the "
            "same model"
        )
    difference = _difference(target, llama_of(target), first, ours.to(model.device))
    if not difference <= TOLERANCE:
        raise PeerError(
            f"the converted model's logits differ by up to {difference:.3g} in float32, at most "
            f"{TOLERANCE:g} is allowed: the two libraries do not run the same model"
        )
    return difference


def _difference(target: Transformer, llama: Any, text: TextFeatures, codes: Tensor) -> float:
    """Largest absolute difference of the logits along `codes` [1, L], without guidance."""
    drop = torch.zeros(1, dtype=torch.bool, device=codes.device)
    expected = target.logits(target(text, codes, drop)).float()  # [1, L, V]
    prompt = prompt_of(target, text, 1)
    found = llama(
        inputs_embeds=torch.cat([prompt.embeds, target.embed(codes[:, :-1])], 1),
        attention_mask=torch.cat([prompt.mask, torch.ones_like(codes[:, :-1])], 1),
        position_ids=torch.arange(target.prefix + target.length - 1, device=codes.device)[None],
        use_cache=False,
    ).logits[:, target.prefix - 1 :]  # [1, L, V]
    return float((found.float() - expected).abs().max())
