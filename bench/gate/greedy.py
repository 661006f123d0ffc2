"""Temperature 0: are a decoder's codes those of AR (exact rules), or is every code justified by its
relaxed rule? Both are recomputed by teacher forcing."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from bench.gate.reference import reference_rule, teacher_logits
from bench.gate.result import Check, finite_or_inf
from bench.gate.small import GateCase
from decoders.api import CodeKind
from decoders.loops.autoregressive import Autoregressive
from decoders.models.random_weights import random_noise, random_prompts

VOCAB, SEED, PROMPTS = 64, 22, 64
TIED_GRID = 6  # of images with ties
TIED_LOGITS = 1e-4  # nearer ones than this may swap between two float32 forwards
ROUNDED_MASS = 1e-5  # of a probability
DRAFTED_KINDS = (CodeKind.DRAFT, CodeKind.RELAXED)


def greedy_check(case: GateCase) -> tuple[Check, Check]:
    """-> what must hold of any loop (tv: the largest TV shift of an accepted draft; bound: declared
    there, None where no bound is; count: images that equal AR's), and what AR or the rule asks for:
    every accepted draft has the largest entry of p_A and a TV shift within its bound, and every
    other code is the argmax."""
    begin, fault, differences = time.perf_counter(), "", list[str]()
    grid = min(math.isqrt(case.real.length - 1) + 1, case.sizes.greedy)
    run = case.trial((VOCAB, grid, SEED), PROMPTS)
    done = run.generate()
    trace, codes = done.trace, done.codes
    ar = Autoregressive(run.model, case.sampling).generate(run.text, run.noise).codes
    logits = teacher_logits(run.model, run.text, codes, case.sampling.cfg)  # [B, L, V]
    row, differ = torch.arange(PROMPTS), codes != ar
    first = differ.int().argmax(-1)  # [B]
    both = torch.stack([codes[row, first], ar[row, first]], -1)  # [B, 2]
    gap = logits[row, first].gather(-1, both).diff(dim=-1)[:, 0].abs()
    # Two float32 forwards need not agree on a tie.
    equal = int((~differ.any(-1) | (gap < TIED_LOGITS)).sum())
    declares, worst = not bool((trace.bound == 0).all()), (0.0, 0.0)
    if declares:
        p = logits.double().softmax(-1)
        likelier = (
            p.amax(-1) - p.gather(-1, codes[..., None])[..., 0] - ROUNDED_MASS
        )  # [B, L]; > 0: one is
        drafted = torch.isin(trace.kind, torch.tensor(DRAFTED_KINDS, dtype=torch.uint8))
        if not bool((likelier <= 0)[~drafted].all()):
            differences.append("a code that was not drafted is not the argmax")
        fields = trace.tv_shift, trace.bound, likelier
        claimed, bound, behind = (field[drafted] for field in fields)  # [n]
        tv_shift, reference = claimed, reference_rule(run.decoder.rule, run.model)
        if reference is not None:
            tv_shift, bound, near_edge = reference(p[drafted], codes[drafted])
            # Others are the argmax itself, or have a bound that rounding decides.
            decisive = ~near_edge & (behind > 0)
            claimed, tv_shift, bound = (t[decisive] for t in (claimed, tv_shift, bound))
            if not bool((tv_shift >= behind[decisive]).all()):
                differences.append("an accepted draft's p_A(x) is not the largest entry of p_A")
        if not bool((claimed <= bound + ROUNDED_MASS).all()):
            differences.append("an accepted draft has a TV shift above its bound")
        worst = max(zip(tv_shift.tolist(), bound.tolist(), strict=True), default=worst)
    elif equal < PROMPTS:
        differences = [f"{PROMPTS - equal} of {PROMPTS} images differ from greedy AR"]
    elif wrong := wrong_ties(case):
        differences = [f"{wrong} codes are not the first of two that tie in {case.real.dtype}"]
    if not bool(torch.isfinite(torch.stack([trace.bound, trace.tv_shift])).all()):
        fault = "the rule's TV shift or its bound is not finite"
    tv, most = (min(finite_or_inf(figure), 1.0) for figure in worst)  # lambda p(x) may be above 1
    drafts = float((trace.depth > 0).double().mean())
    limit = most if declares else None
    summary = f"{PROMPTS} images of {grid**2} codes"
    seconds = time.perf_counter() - begin
    result = Check("greedy", fault, tv, summary, equal, bound=limit, drafts=drafts, seconds=seconds)
    return result, Check("greedy codes", "; ".join(differences))


def wrong_ties(case: GateCase) -> int:
    """How many codes are the second of two with one logit, on a model of the run's dtype in which
    each odd code has the logits of the even one before it: the lowest index wins (METHODS 6)."""
    model = case.model((VOCAB, TIED_GRID, SEED), case.real.dtype)
    target: Any = model.target
    with torch.no_grad():
        target.output.weight[1::2] = target.output.weight[::2]
    noise = random_noise(PROMPTS, target.length, torch.Generator().manual_seed(SEED))
    done = case.decoder(model).generate(random_prompts(model, PROMPTS, SEED), noise)
    return int((done.codes % 2).sum())
