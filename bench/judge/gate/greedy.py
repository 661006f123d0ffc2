"""Temperature 0: tokens equal to AR (exact rules), or every code justified by its relaxed rule."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.judge.gate.reference import ReferenceRule, processed, teacher_logits
from bench.judge.gate.report import Finding, known
from bench.judge.gate.small import (
    Real,
    build_small,
    drafter_names,
    fresh_noise,
    prompts,
    small_model,
)
from decoders.api import CodeKind, Generation, ImageModel, Sampling, TextFeatures
from decoders.compose import DecoderSpec
from decoders.loops.autoregressive import Autoregressive

MODELS = ((24, 6, 21), (64, 6, 22))  # (V, grid, seed)
PROMPTS = 64
TIE = 1e-4  # logits nearer than this may swap between two float32 forwards
MASS = 1e-5
DRAFTED = (CodeKind.DRAFT, CodeKind.RELAXED)


def greedy_check(spec: DecoderSpec, sampling: Sampling, real: Real) -> tuple[Finding, bool]:
    """-> finding (figure: most mass moved onto an accepted draft; evidence "bound": declared
    there), and whether tokens equalled AR's with no bound declared."""
    moved, bound, faults, exact = 0.0, 0.0, [], True
    evidence: dict[str, object] = {}
    for vocab, grid, seed in MODELS:
        model = small_model(vocab, grid, seed, drafter_names(spec), native=real.native)
        text = prompts(model, PROMPTS, seed)
        noise = fresh_noise(PROMPTS, grid * grid, torch.Generator().manual_seed(seed))
        decoder = build_small(spec, sampling, model, real)
        made = decoder.generate(text, noise)
        wanted = Autoregressive(model, sampling).generate(text, noise).codes
        faults += _argmax_fault(model, text, wanted, sampling)
        same = _images_equal(model, text, made.codes, wanted, sampling)
        declared = not bool((made.trace.bound == 0).all())
        drafted = (made.trace.depth > 0).double().mean()
        evidence[f"greedy V={vocab}"] = {
            "prompts": PROMPTS,
            "images_equal_to_ar": same,
            "share_of_drafts": float(drafted),
        }
        exact &= same == PROMPTS and not declared
        if same < PROMPTS and not declared:
            faults.append(f"{PROMPTS - same} of {PROMPTS} images (V={vocab}) differ from greedy AR")
        elif declared:
            most, allowed, wrong = _justified(decoder, model, text, made, sampling)
            faults += wrong
            if not most <= moved:
                moved, bound = most, allowed
        if not bool(torch.isfinite(torch.stack([made.trace.bound, made.trace.moved])).all()):
            faults.append("the rule's moved mass or its bound is not finite")
    moved = min(known(moved), 1.0)
    evidence["bound"] = min(
        known(bound), 1.0
    )  # lambda p(x) may be more than a total variation can be
    return Finding("greedy", "; ".join(dict.fromkeys(faults)), moved, evidence), exact


def _argmax_fault(
    model: ImageModel, text: TextFeatures, codes: Tensor, sampling: Sampling
) -> list[str]:
    """Is the AR baseline itself the argmax of teacher forcing?"""
    logits = teacher_logits(model, text, codes, sampling.cfg)
    short = logits.amax(-1) - logits.gather(-1, codes[..., None])[..., 0]
    worst = float(short.max())
    return [] if worst <= TIE else [f"AR is {worst:.2g} below the argmax"]


def _images_equal(
    model: ImageModel, text: TextFeatures, codes: Tensor, wanted: Tensor, sampling: Sampling
) -> int:
    """Images equal to AR's, token for token; a first difference at a tie of two logits counts as
    equal, since two float32 forwards need not agree on it."""
    differ = codes != wanted
    first = differ.int().argmax(-1)  # [B]
    logits = teacher_logits(model, text, wanted, sampling.cfg)[torch.arange(len(codes)), first]
    both = torch.stack([codes, wanted], -1)[torch.arange(len(codes)), first]  # [B, 2]
    gap = logits.gather(-1, both).diff(dim=-1)[:, 0].abs()
    return int((~differ.any(-1) | (gap < TIE)).sum())


def _justified(
    decoder: object, model: ImageModel, text: TextFeatures, made: Generation, sampling: Sampling
) -> tuple[float, float, list[str]]:
    """Every accepted draft's moved mass within the bound and p_A(x) the largest entry of p_A, every
    other code the argmax: recomputed from a teacher-forced forward. -> the most mass moved, the
    bound of that draft, faults."""
    p = processed(teacher_logits(model, text, made.codes, sampling.cfg), sampling)  # [B, L, V]
    at = p.gather(-1, made.codes[..., None])[..., 0]
    peak = p.amax(-1)
    drafted = torch.isin(made.trace.kind, torch.tensor(DRAFTED, dtype=torch.uint8))
    wrong = []
    if not bool((at >= peak - MASS)[~drafted].all()):
        wrong.append("a code that was not drafted is not the argmax")
    reference = ReferenceRule.of(getattr(decoder, "rule", None), model)
    if reference is None:
        within = made.trace.moved <= made.trace.bound + MASS
        wrong += ["moved mass exceeds the bound"] * (not bool(within[drafted].all()))
        if not bool(drafted.any()):
            return 0.0, 0.0, wrong
        moved, bound = made.trace.moved[drafted], made.trace.bound[drafted]
        place = int(moved.argmax())
        return float(moved[place]), float(bound[place]), wrong
    most = (0.0, 0.0)
    for b, j in drafted.nonzero().tolist():
        found = reference.at(p[b, j].numpy(), int(made.codes[b, j]))
        if found.near_edge or float(at[b, j]) >= float(peak[b, j]) - MASS:
            continue  # the argmax itself, or a bound that rounding decides
        most = max(most, (found.moved, found.bound))
        if not found.raised >= float(peak[b, j]) - MASS:
            wrong.append("an accepted draft's p_A(x) is not the largest entry of p_A")
        if not float(made.trace.moved[b, j]) <= found.bound + MASS:
            wrong.append("an accepted draft moved more mass than its bound")
    return *most, list(dict.fromkeys(wrong))
