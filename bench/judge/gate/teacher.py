"""Comparison with teacher forcing. At temperature 0: are a decoder's codes those of AR (exact
rules), or is every code justified by its relaxed rule? Else: are drafts verified with the target's
own distributions?"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.judge.gate.reference import ReferenceRule, processed, shortfall, teacher_logits
from bench.judge.gate.report import CheckResult, finite_or_inf, joined
from bench.judge.gate.small import GateCase, Trial
from decoders.api import CodeKind, Generation, Sampling
from decoders.baselines import plain_decoding

GREEDY = ((24, 6, 21), (64, 6, 22))  # (V, grid, seed)
PROMPTS = 64
TIE = 1e-4  # logits nearer than this may swap between two float32 forwards
MASS = 1e-5  # rounding of a probability
LONG, ROWS = (12, 16, 18), 6  # (V, grid, seed) of images of many steps; rows of their batch
ENTRY = 2e-5  # largest difference of a probability between cached and teacher-forced float32
NUDGE = 1e-5, 1e-3  # a law that moves by more, if its logits move by that, lies at a filter's edge
DRAFTED = (CodeKind.DRAFT, CodeKind.RELAXED)


def greedy_check(case: GateCase) -> tuple[CheckResult, CheckResult, bool]:
    """-> what must hold of any loop (tv: most mass moved onto an accepted draft; evidence "bound":
    declared there), what AR or the rule asks for, and whether all codes are AR's."""
    moved, bound, exact = 0.0, 0.0, True
    faults, differences, evidence = list[str](), list[str](), dict[str, object]()
    for sizes in GREEDY:
        run, vocab = case.trial(sizes, PROMPTS), sizes[0]
        done = run.decoder.generate(run.text, run.noise)
        ar = plain_decoding(run.model, case.sampling).generate(run.text, run.noise).codes
        logits = teacher_logits(run.model, run.text, ar, case.sampling.cfg)
        if not (worst := shortfall(logits, ar)) <= TIE:
            faults.append(f"AR is {worst:.2g} below the argmax")
        equal = equal_images(logits, done.codes, ar)
        declared = not bool((done.trace.bound == 0).all())
        drafted = float((done.trace.depth > 0).double().mean())
        evidence[f"greedy V={vocab}"] = {"images_equal_to_ar": equal, "share_of_drafts": drafted}
        exact &= equal == PROMPTS and not declared
        if declared:
            most, allowed, wrong = _justified(run, done, case.sampling)
            differences += wrong
            if not most <= moved:
                moved, bound = most, allowed
        elif equal < PROMPTS:
            differences.append(
                f"{PROMPTS - equal} of {PROMPTS} images (V={vocab}) differ from greedy AR"
            )
        if not bool(torch.isfinite(torch.stack([done.trace.bound, done.trace.moved])).all()):
            faults.append("the rule's moved mass or its bound is not finite")
    evidence["bound"] = min(finite_or_inf(bound), 1.0)  # lambda p(x) may be more than a TV can be
    tv = min(finite_or_inf(moved), 1.0)
    result = CheckResult("greedy", joined(*dict.fromkeys(faults)), evidence, tv)
    return result, CheckResult("greedy codes", joined(*dict.fromkeys(differences))), exact


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
    and moved no more mass than its bound, and every other code is the argmax. -> the most mass
    moved, the bound of that draft, faults."""
    trace = done.trace
    p = processed(teacher_logits(run.model, run.text, done.codes, sampling.cfg), sampling)
    at = p.gather(-1, done.codes[..., None])[..., 0]  # [B, L]
    peak: Tensor = p.amax(-1)
    drafted = torch.isin(trace.kind, torch.tensor(DRAFTED, dtype=torch.uint8))
    wrong = []
    if not bool((at >= peak - MASS)[~drafted].all()):
        wrong.append("a code that was not drafted is not the argmax")
    reference = ReferenceRule.of(run.decoder.rule, run.model)
    if reference is None:
        within = trace.moved <= trace.bound + MASS
        wrong += ["moved mass exceeds the bound"] * (not bool(within[drafted].all()))
        pairs = list(zip(trace.moved[drafted].tolist(), trace.bound[drafted].tolist(), strict=True))
        return *max(pairs, default=(0.0, 0.0)), wrong
    most = (0.0, 0.0)
    for b, j in drafted.nonzero().tolist():
        relaxed = reference.at(p[b, j].numpy(), int(done.codes[b, j]))
        if relaxed.near_edge or float(at[b, j]) >= float(peak[b, j]) - MASS:
            continue  # the argmax itself, or a bound that rounding decides
        most = max(most, (relaxed.moved, relaxed.bound))
        if not relaxed.raised >= float(peak[b, j]) - MASS:
            wrong.append("an accepted draft's p_A(x) is not the largest entry of p_A")
        if not float(trace.moved[b, j]) <= relaxed.bound + MASS:
            wrong.append("an accepted draft moved more mass than its bound")
    return *most, list(dict.fromkeys(wrong))


def rows_check(case: GateCase) -> CheckResult:
    """The target distribution p of every visited node, in every row and step of long images."""
    run = case.trial(LONG, ROWS)
    done = run.decoder.generate(run.text, run.noise, pairs=2 * LONG[1] ** 2)
    nodes = done.trace.pairs
    if nodes is None or nodes.image is None or nodes.place is None or nodes.depth is None:
        return CheckResult("rows")
    place, filters = nodes.place + nodes.depth, case.filters(LONG[0])
    logits = teacher_logits(run.model, run.text, done.codes, case.sampling.cfg)[nodes.image, place]
    expected = processed(logits, filters)  # [M, V]
    nudged = logits + NUDGE[0] * torch.randn(
        logits.shape, generator=torch.Generator().manual_seed(0)
    )
    firm = (processed(nudged, filters) - expected).abs().amax(-1) <= NUDGE[1]
    gap = (nodes.p.double() - expected).abs().amax(-1)
    wrong, steps = ~(gap <= ENTRY) & firm, int(done.trace.target_calls.max())
    fault = ""
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        fault = (
            f"the p that drafts were verified with is off by {float(gap[wrong].max()):.2g} from "
            f"float32 teacher forcing at {int(wrong.sum())} of {len(gap)} nodes, first at place "
            f"{int(place[first])} of row {int(nodes.image[first])}"
        )
    summary = f"{ROWS} rows of {LONG[1] ** 2} codes compared over {steps} steps"
    return CheckResult("rows", fault, {"nodes": len(gap), "steps": steps}, summary=summary)
