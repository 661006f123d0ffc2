"""Proof that both libraries run the same model, before anything is timed.

In float32: the logits along an image agree place by place, and greedy `generate` gives exactly our
greedy codes, without guidance and with it. A ratio of two different models would be worth nothing,
so a disagreement stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from bench.peers.convert import PeerError, llama_of, prompt_of
from bench.peers.generate import Generate
from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec, build_decoder
from decoders.models.transformer import Transformer
from decoders.noise import Noise
from decoders.training.states import transformer_of


@dataclass(frozen=True)
class Proof:
    """What was compared: images, the largest difference of a logit, codes that were equal."""

    images: int
    difference: float
    codes: int

    def __str__(self) -> str:
        return (
            f"identical weights, shown in float32 on {self.images} images: logits differ by at "
            f"most {self.difference:.1e}, all {self.codes} greedy codes of generate are ours, with "
            "and without guidance"
        )


@torch.inference_mode()
def prove(
    model: ImageModel, spec: DecoderSpec, sampling: Sampling, prompts: Sequence[str], tol: float
) -> Proof:
    """Compares `spec` (our AR) on a float32 model with its conversion. sampling: its cfg is the
    guided one. Raises PeerError where they differ by more than `tol` or in one code."""
    if model.dtype != torch.float32:
        raise PeerError(f"models are compared in float32, found {model.dtype}")
    target = transformer_of(model)
    llama = llama_of(target)
    largest, equal = 0.0, 0
    for prompt in prompts:
        text = model.text.encode([prompt])
        noise = Noise.for_prompts(0, [prompt], target.length).to(model.device)
        for cfg in dict.fromkeys((1.0, sampling.cfg)):
            greedy = replace(sampling, temperature=0.0, cfg=cfg)
            ours = build_decoder(model, spec, greedy).generate(text, noise).codes  # [1, L]
            theirs = Generate(model, greedy, llama).generate(text, noise).codes
            _same_codes(ours, theirs, prompt, cfg)
            largest = max(largest, _difference(target, llama, text, ours.to(model.device)))
            equal += ours.numel()
    if not largest <= tol:
        raise PeerError(
            f"the converted model's logits differ by up to {largest:.3g} in float32, at most "
            f"{tol:g} is allowed (peers.tolerance): the two libraries do not run the same model"
        )
    return Proof(len(prompts), largest, equal)


def _same_codes(ours: Tensor, theirs: Tensor, prompt: str, cfg: float) -> None:
    if torch.equal(ours, theirs):
        return
    at = int((ours != theirs).flatten().nonzero()[0])
    raise PeerError(
        f"greedy codes differ at place {at} of {ours.numel()} (guidance {cfg:g}): ours "
        f"{int(ours.flatten()[at])}, generate {int(theirs.flatten()[at])}, prompt {prompt!r}: the "
        "two libraries do not run the same model"
    )


def _difference(
    target: Transformer, llama: LlamaForCausalLM, text: TextFeatures, codes: Tensor
) -> float:
    """Largest absolute difference of the logits along `codes` [1, L], without guidance."""
    drop = torch.zeros(1, dtype=torch.bool, device=codes.device)
    expected = target.logits(target(text, codes, drop)).float()  # [1, L, V]
    prompt = prompt_of(target, text, 1)
    embeds = torch.cat([prompt.embeds, target.embed(codes[:, :-1])], 1)  # [1, P + L - 1, D]
    places = torch.arange(embeds.shape[1], device=codes.device)
    found = llama(
        inputs_embeds=embeds,
        attention_mask=torch.cat([prompt.mask, torch.ones_like(codes[:, :-1])], 1),
        position_ids=places[None],
        use_cache=False,
    ).logits[:, target.prefix - 1 :]  # [1, L, V]
    return float((found.float() - expected).abs().max())
