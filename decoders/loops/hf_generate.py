"""transformers' `generate` as a decoder, so that it runs on the harness's clock.

Why: a speed-up says little if the baseline is slow, and transformers is what most people would run.
Everything a call needs is inside `generate`: our caption network, the prefix, the loop. Guidance is
what its users do: rows [conditional; unconditional] in one forward, mixed by a logits processor
that also gives both rows the same code, drawn with torch.multinomial.

The model is transformers' Llama on our weights under other names (`llama_of`). Fused matrices are
split. Our rotation turns neighbours (2i, 2i + 1) of a head, Llama's the halves' positions (i, i +
d/2): the rows of query and key matrices are put in that order, which leaves every product q k as it
is. Llama's rotary module, which knows a line of positions only, is replaced by a look-up in our
table.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
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
)
from decoders.distribution import guided
from decoders.loops.autoregressive import Autoregressive
from decoders.loops.base_loop import one_at_a_time
from decoders.models.loading.layouts import released_layer
from decoders.models.nets.transformer import Transformer, transformer_of
from decoders.noise import Noise

logging.getLogger("transformers").setLevel(logging.ERROR)  # its hints are not ours to follow


class GuidedHead(LogitsProcessor):
    """Mixes scores [2 B, V], rows [conditional; unconditional], into the guided ones, twice. Where
    codes are drawn, it draws (one code per pair) and leaves that one possible."""

    def __init__(self, sampling: Sampling) -> None:
        self.cfg, self.greedy = sampling.cfg, sampling.greedy
        # transformers' own filters in our order: temperature, top-k, top-p.
        self.warpers: Any = LogitsProcessorList()
        if not sampling.greedy and sampling.temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(sampling.temperature))
        if not sampling.greedy and sampling.top_k:
            self.warpers.append(TopKLogitsWarper(sampling.top_k))
        if not sampling.greedy and sampling.top_p < 1:
            self.warpers.append(TopPLogitsWarper(sampling.top_p))

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
    (`prove`). Raises DecoderError for a model that transformers' Llama cannot be."""

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

    @one_at_a_time
    def generate(self, text: TextFeatures, noise: Noise, *, pairs: float = 0) -> Generation:
        """See `decoders.api.Decoder`. The random numbers are torch's, seeded by the image's."""
        del pairs  # nothing is verified by us
        if self.unproved:
            prove(self, text)
            self.unproved = False
        device = noise.uniform.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(noise.uniform.flatten()[0] * 2**31))
            out = self.llama.generate(
                **prompt_of(self.target, text, self.copies),
                generation_config=self.config,
                logits_processor=self.processors,
            )  # [R, L]
        if self.cache == "compiled" and not hasattr(self.llama, "_compiled_call"):
            raise DecoderError("generate ran without compiling: its static cache was not taken up")
        length, calls = self.target.length, self.target.length - 1
        nothing = torch.zeros(text.batch, length)
        trace = Trace(  # of a code per target forward; the first code is the prefill's
            kind=torch.full_like(nothing, CodeKind.TARGET).byte(),
            step=torch.arange(length).int().expand(text.batch, -1),
            depth=nothing.byte(),
            tv_shift=nothing,
            bound=nothing,
            accepted=torch.zeros(text.batch, calls).short(),
            target_calls=torch.full((text.batch,), calls, dtype=torch.int32),
            drafter_calls=torch.zeros(text.batch, dtype=torch.int32),
            seconds={"step": 0.0},  # of its phases nothing is known
        )
        return Generation(out[: text.batch].cpu(), trace)


# ---- our target as transformers' model -----------------------------------------------------------


class TableRotary(nn.Module):
    """Reads cos and sin of positions from our rotary table [T, d / 2] complex."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        twice = torch.cat([rope, rope], -1)  # [T, d], Llama's halves
        self.register_buffer("cos", twice.real.to(dtype).contiguous(), persistent=False)
        self.register_buffer("sin", twice.imag.to(dtype).contiguous(), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """position_ids [R, T] -> cos and sin, [R, T, d] each."""
        return self.cos[position_ids], self.sin[position_ids]


def prompt_of(target: Transformer, text: TextFeatures, copies: int) -> dict[str, Tensor]:
    """Returns the prefix of B prompts as `generate` takes it, R = copies * B rows: states of our
    caption network [R, P, D], the mask [R, P], and positions of the rotary table, where padding
    counts."""
    rows, drop = text.paired(copies)
    return {
        "inputs_embeds": target.cls_embedding(rows, drop),
        "attention_mask": rows.valid(drop).long(),
        "position_ids": torch.arange(target.prefix, device=drop.device).expand(len(drop), -1),
    }


def llama_of(target: Transformer) -> LlamaForCausalLM:
    """Makes a `LlamaForCausalLM` on the target's weights, frozen; whatever need not be reordered is
    shared. Raises DecoderError where Llama has no such part."""
    config, weight = target.config, target.output.weight
    parts = {
        "normalised queries and keys": config.qk_norm,
        "codes inside a larger vocabulary": config.conditioning == "tokens",
        "structural codes": config.row_end,
    }
    if lacking := [name for name, there in parts.items() if there]:
        raise DecoderError(
            f"the model has {' and '.join(lacking)}, which transformers' Llama has not, so there "
            "is nothing to compare with on equal weights; use a LlamaGen model or model=tiny"
        )
    llama_config = LlamaConfig(  # type: ignore[call-arg]  # the last two are of its base class
        vocab_size=config.vocab,
        hidden_size=config.width,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.prefix + config.length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,  # an image ends by its length
        pad_token_id=None,
        attn_implementation="sdpa",
        dtype=weight.dtype,
    )
    with torch.device("meta"):
        llama = LlamaForCausalLM(llama_config)
    llama.model.rotary_emb = TableRotary(target.rope, weight.dtype)
    named = {
        "model.embed_tokens.weight": target.tok_embeddings.weight,
        "model.norm.weight": target.norm.weight,
        "lm_head.weight": weight,
    }
    for i in range(config.layers):
        layer: Any = target.layers[i]
        named |= released_layer(layer, f"model.layers.{i}.")
    llama.load_state_dict(named, assign=True)
    return llama.eval().requires_grad_(False)


@torch.inference_mode()
def prove(decoder: Generate, text: TextFeatures) -> None:
    """Raises DecoderError unless both libraries run the same model: in float32, on the first
    prompt, greedy codes are our AR's to the last one. A ratio of two different models is worth
    nothing."""
    target = Transformer(decoder.target.config).to(decoder.model.device).requires_grad_(False)
    target.load_state_dict(decoder.target.state_dict())
    model = replace(decoder.model, target=target, dtype=torch.float32, execution=None)
    first = text.rows(slice(1))
    if first.features.is_floating_point():  # else class numbers
        first = replace(first, features=first.features.float())
    greedy = replace(decoder.sampling, temperature=0.0)
    noise = Noise.for_prompts(0, [""], target.length).to(model.device)
    codes = Autoregressive(model, greedy).generate(first, noise).codes  # [1, L]
    cache: Any = "dynamic" if decoder.cache == "dynamic" else "static"
    theirs = Generate(model, greedy, cache=cache, prove=False).generate(first, noise).codes
    if not torch.equal(codes, theirs):
        at = int((codes != theirs).flatten().nonzero()[0])
        raise DecoderError(
            f"greedy codes differ at position {at} of {codes.numel()} (guidance {greedy.cfg:g}): "
            f"ours {int(codes[0, at])}, generate {int(theirs[0, at])}: the two libraries do not "
            "run the same model"
        )
