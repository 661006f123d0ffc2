"""Temperature 0: are a decoder's codes those of AR (exact rules), or is every code justified by its
relaxed rule? Both are recomputed by teacher forcing."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.gate.reference import ReferenceRule, teacher_logits, teacher_probs
from bench.gate.report import CheckResult, finite_or_inf
from bench.gate.small import GateCase, Trial
from decoders.api import CodeKind, Generation, Sampling
from decoders.loops.autoregressive import Autoregressive

SIZES, PROMPTS = (64, 6, 22), 64  # (V, grid, seed)
TIE = 1e-4  # logits nearer than this may swap between two float32 forwards
MASS = 1e-5  # rounding of a probability
DRAFTED = (CodeKind.DRAFT, CodeKind.RELAXED)


def greedy_check(case: GateCase) -> tuple[CheckResult, CheckResult]:
    """-> what must hold of any loop (tv: the largest TV shift of an accepted draft; evidence
    "bound": declared there, None where no bound is), and what AR or the rule asks for."""
    run, fault, differences = case.trial(SIZES, PROMPTS), "", list[str]()
    done = run.generate()
    ar = Autoregressive(run.model, case.sampling).generate(run.text, run.noise).codes
    logits = teacher_logits(run.model, run.text, ar, case.sampling.cfg)
    equal = equal_images(logits, done.codes, ar)
    declared, tv_shift, bound = not bool((done.trace.bound == 0).all()), 0.0, 0.0
    if declared:
        tv_shift, bound, differences = _justified(run, done, case.sampling)
    elif equal < PROMPTS:
        differences = [f"{PROMPTS - equal} of {PROMPTS} images differ from greedy AR"]
    if not bool(torch.isfinite(torch.stack([done.trace.bound, done.trace.tv_shift])).all()):
        fault = "the rule's TV shift or its bound is not finite"
    evidence = {
        "images_equal_to_ar": equal,
        "share_of_drafts": float((done.trace.depth > 0).double().mean()),
        # lambda p(x) may be more than a TV can be
        "bound": min(finite_or_inf(bound), 1.0) if declared else None,
    }
    tv = min(finite_or_inf(tv_shift), 1.0)
    result = CheckResult("greedy", fault, evidence, tv, f"{PROMPTS} images of {SIZES[0]} codes")
    return result, CheckResult("greedy codes", "; ".join(differences))


def equal_images(logits: Tensor, codes: Tensor, ar: Tensor) -> int:
    """How many images codes [B, L] are those of AR, whose logits are given, [B, L, V]. A first
    difference at a tie counts as equal, since two float32 forwards need not agree on it."""
    row, differ = torch.arange(len(codes)), codes != ar
    first = differ.int().argmax(-1)  # [B]
    both = torch.stack([codes[row, first], ar[row, first]], -1)  # [B, 2]
    gap = logits[row, first].gather(-1, both).diff(dim=-1)[:, 0].abs()
    return int((~differ.any(-1) | (gap < TIE)).sum())


def _justified(run: Trial, done: Generation, sampling: Sampling) -> tuple[float, float, list[str]]:
    """Recomputes from a teacher-forced forward: every accepted draft has the largest entry of p_A
    and a TV shift within its bound, and every other code is the argmax. -> the largest TV shift,
    the bound of that draft, faults."""
    trace, faults = done.trace, list[str]()
    p = teacher_probs(run.model, run.text, done.codes, sampling)
    at = p.gather(-1, done.codes[..., None])[..., 0]  # [B, L]
    missing: Tensor = p.amax(-1) - at - MASS  # [B, L], above 0 where another code is likelier
    drafted = torch.isin(trace.kind, torch.tensor(DRAFTED, dtype=torch.uint8))
    if not bool((missing <= 0)[~drafted].all()):
        faults.append("a code that was not drafted is not the argmax")
    claimed, bound, missing = (t[drafted] for t in (trace.tv_shift, trace.bound, missing))  # [n]
    tv_shift, reference = claimed, ReferenceRule.of(run.decoder.rule, run.model)
    if reference is not None:
        tv_shift, bound, near_edge = reference.at(p[drafted], done.codes[drafted])
        # Others are the argmax itself, or have a bound that rounding decides.
        decisive = ~near_edge & (missing > 0)
        claimed, tv_shift, bound = (t[decisive] for t in (claimed, tv_shift, bound))
        if not bool((tv_shift >= missing[decisive]).all()):
            faults.append("an accepted draft's p_A(x) is not the largest entry of p_A")
    if not bool((claimed <= bound + MASS).all()):
        faults.append("an accepted draft has a TV shift above its bound")
    pairs = zip(tv_shift.tolist(), bound.tolist(), strict=True)
    return *max(pairs, default=(0.0, 0.0)), faults
