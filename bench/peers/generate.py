"""transformers' `generate` behind our `Decoder` protocol, so that it runs on the harness's clock.

Everything a call needs is inside `generate`: our caption network, the prefix, the loop. Guidance is
what its users do: rows [conditional; unconditional] in one forward, mixed by a logits processor
that also gives both rows the same code. At temperature 0 it is an argmax; else codes are drawn with
torch.multinomial, so they differ from ours, from the same law.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import CompileConfig
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from bench.peers.convert import PeerError, prompt_of, with_prompt_tokens
from decoders.api import CodeKind, Generation, ImageModel, Sampling, TextFeatures, Trace
from decoders.distribution import guided
from decoders.models.transformer import Transformer
from decoders.noise import Noise
from decoders.training.states import transformer_of


class Guided(LogitsProcessor):
    """Scores [2 B, V], rows [conditional; unconditional] -> the guided ones, twice. Where codes are
    drawn, it draws (one code a pair) and leaves that one possible."""

    def __init__(self, sampling: Sampling) -> None:
        self.cfg, self.greedy = sampling.cfg, sampling.greedy
        self.warpers: Any = LogitsProcessorList() if sampling.greedy else warpers(sampling)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        mixed = guided(scores, self.cfg)  # [B, V]
        mixed = self.warpers(input_ids[: len(mixed)], mixed)
        if not self.greedy:
            drawn = torch.multinomial(mixed.softmax(-1), 1)  # [B, 1]
            mixed = torch.full_like(mixed, float("-inf")).scatter_(1, drawn, 0.0)
        return mixed.repeat(2, 1)  # [2 B, V]


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """transformers' own filters in our order: temperature, top-k, top-p."""
    found: list[LogitsProcessor] = []
    if sampling.temperature != 1:
        found.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        found.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList(found)


def compile_everywhere() -> CompileConfig:
    """transformers' own compile settings, on the CPU too (there it compiles on request only)."""
    config = CompileConfig()
    config._compile_all_devices = True  # type: ignore[assignment]
    return config


class Generate:
    """`generate` with a dynamic cache (its default), or a static one, compiled or not."""

    rule = None

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        llama: LlamaForCausalLM,
        *,
        static: bool = False,
        compiled: bool = False,
    ) -> None:
        self.model, self.sampling, self.compiled = model, sampling, compiled
        self.llama: Any = llama
        self.target: Transformer = transformer_of(model)
        self.copies = sampling.guidance_rows
        draws = not sampling.greedy and self.copies == 1  # guided codes are drawn by `Guided`
        filters: dict[str, Any] = {}
        if draws:
            filters = {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
            }
        self.config = GenerationConfig(
            max_new_tokens=self.target.length,
            do_sample=draws,
            cache_implementation="static" if static else None,
            disable_compile=not compiled,
            compile_config=compile_everywhere() if compiled else None,
            **filters,
        )
        self.processors = LogitsProcessorList([Guided(sampling)] if self.copies == 2 else [])

    @torch.inference_mode()
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: float = 0) -> Generation:
        """See `decoders.api.Decoder`. The random numbers are torch's, seeded by the image's."""
        del pairs  # nothing is verified by us
        with seeded(noise):
            out, calls = self._codes(text)
        if self.compiled and not hasattr(self.llama, "_compiled_call"):
            raise PeerError("generate ran without compiling: its static cache was not taken up")
        codes = out[: text.batch, -self.target.length :]
        return Generation(codes.cpu(), plain_trace(text.batch, self.target.length, calls))

    def _codes(self, text: TextFeatures) -> tuple[Tensor, int]:
        """Codes [R, L] and target forwards after the prefill."""
        prompt = prompt_of(self.target, text, self.copies)
        out = self.llama.generate(
            inputs_embeds=prompt.embeds,
            attention_mask=prompt.mask,
            position_ids=prompt.positions,
            generation_config=self.config,
            logits_processor=self.processors,
        )
        return out, self.target.length - 1


class Assisted(Generate):
    """Assisted generation: the assistant is the first layers of the target, `drafts` codes a round.

    transformers takes one row here, so there is no guidance: it raises a ValueError that says so.
    """

    def __init__(
        self,
        model: ImageModel,
        sampling: Sampling,
        llama: LlamaForCausalLM,
        assistant: LlamaForCausalLM,
        drafts: int,
    ) -> None:
        super().__init__(model, sampling, llama)
        self.table = with_prompt_tokens(self.target, llama, assistant)
        self.assistant = assistant
        settings = assistant.generation_config
        settings.num_assistant_tokens = drafts
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
        vocab = self.target.vocab_size
        self.ids = torch.arange(vocab, vocab + self.target.prefix, device=model.device)[None]

    def _codes(self, text: TextFeatures) -> tuple[Tensor, int]:
        prompt = prompt_of(self.target, text, self.copies)
        self.table.weight[self.target.vocab_size :] = prompt.embeds[0]
        calls: list[None] = []
        counter = self.llama.register_forward_pre_hook(lambda *_: calls.append(None))
        try:
            out = self.llama.generate(
                self.ids.expand(len(prompt.mask), -1),  # [R, P]
                attention_mask=prompt.mask,
                position_ids=prompt.positions,
                generation_config=self.config,
                logits_processor=self.processors,
                assistant_model=self.assistant,
            )
        finally:
            counter.remove()
        return out, len(calls) - 1


@contextmanager
def seeded(noise: Noise) -> Iterator[None]:
    """torch's generator set from the image's noise for the block, and put back afterwards."""
    device = noise.uniform.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(noise.uniform.flatten()[0] * 2**31))
        yield


def plain_trace(batch: int, length: int, calls: int) -> Trace:
    """A trace that says how many target forwards there were, and no more."""

    def filled(value: int, dtype: torch.dtype, *size: int) -> Tensor:
        return torch.full((batch, *size), value, dtype=dtype)

    return Trace(
        kind=filled(int(CodeKind.TARGET), torch.uint8, length),
        step=filled(0, torch.int32, length),
        depth=filled(0, torch.uint8, length),
        moved=filled(0, torch.float32, length),
        bound=filled(0, torch.float32, length),
        accepted=filled(0, torch.int16, calls),
        target_calls=filled(calls, torch.int32),
        drafter_calls=filled(0, torch.int32),
    )
