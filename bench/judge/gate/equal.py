"""Against teacher forcing. At temperature 0: are a decoder's codes those of AR (exact rules), or is
every code justified by its relaxed rule? Else: are drafts verified with the target's laws?"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.judge.gate.reference import (
    ENTRY,
    ReferenceRule,
    equal_images,
    processed,
    shortfall,
    teacher_logits,
)
from bench.judge.gate.report import Finding, joined, known
from bench.judge.gate.small import Asked, Trial
from decoders.api import CodeKind, Generation, Sampling
from decoders.baselines import plain_decoding

GREEDY = ((24, 6, 21), (64, 6, 22))
PROMPTS = 64
TIE = 1e-4  # logits nearer than this may swap between two float32 forwards
MASS = 1e-5
LONG, ROWS = (12, 16, 18), 6  # (V, grid, seed) of images of many steps; rows of their batch
SHAKEN = 1e-5, 1e-3  # a law that moves by more, where its logits move by that, stands at a filter
DRAFTED = (CodeKind.DRAFT, CodeKind.RELAXED)


def greedy_check(asked: Asked) -> tuple[Finding, Finding, bool]:
    """-> finding (figure: most mass moved onto an accepted draft; evidence "bound": declared
    there), what is not as AR or the rule has it, and whether tokens equalled AR's with no bound
    declared."""
    moved, bound, exact = 0.0, 0.0, True
    faults: list[str] = []
    apart: list[str] = []
    evidence: dict[str, object] = {}
    for sizes in GREEDY:
        run, vocab = asked.trial(sizes, PROMPTS), sizes[0]
        made = run.decoder.generate(run.text, run.noise)
        wanted = plain_decoding(run.model, asked.sampling).generate(run.text, run.noise).codes
        logits = teacher_logits(run.model, run.text, wanted, asked.sampling.cfg)
        if not (worst := shortfall(logits, wanted)) <= TIE:  # is AR the argmax of teacher forcing?
            faults.append(f"AR is {worst:.2g} below the argmax")
        same = equal_images(logits, made.codes, wanted, TIE)
        declared = not bool((made.trace.bound == 0).all())
        drafted = float((made.trace.depth > 0).double().mean())
        evidence[f"greedy V={vocab}"] = {"images_equal_to_ar": same, "share_of_drafts": drafted}
        exact &= same == PROMPTS and not declared
        if same < PROMPTS and not declared:
            apart.append(f"{PROMPTS - same} of {PROMPTS} images (V={vocab}) differ from greedy AR")
        elif declared:
            most, allowed, wrong = _justified(run, made, asked.sampling)
            apart += wrong
            if not most <= moved:
                moved, bound = most, allowed
        if not bool(torch.isfinite(torch.stack([made.trace.bound, made.trace.moved])).all()):
            faults.append("the rule's moved mass or its bound is not finite")
    evidence["bound"] = min(known(bound), 1.0)  # lambda p(x) may be more than a TV can be
    moved = min(known(moved), 1.0)
    found = Finding("greedy", joined(*dict.fromkeys(faults)), evidence, moved)
    return found, Finding("greedy codes", joined(*dict.fromkeys(apart))), exact


def _justified(run: Trial, made: Generation, sampling: Sampling) -> tuple[float, float, list[str]]:
    """Every accepted draft's moved mass within the bound and p_A(x) the largest entry of p_A, every
    other code the argmax: recomputed from a teacher-forced forward. -> the most mass moved, the
    bound of that draft, faults."""
    trace = made.trace
    logits = teacher_logits(run.model, run.text, made.codes, sampling.cfg)
    p = processed(logits, sampling)  # [B, L, V]
    at = p.gather(-1, made.codes[..., None])[..., 0]
    peak: Tensor = p.amax(-1)
    drafted = torch.isin(trace.kind, torch.tensor(DRAFTED, dtype=torch.uint8))
    wrong = []
    if not bool((at >= peak - MASS)[~drafted].all()):
        wrong.append("a code that was not drafted is not the argmax")
    reference = ReferenceRule.of(run.decoder.rule, run.model)
    if reference is None:
        within = trace.moved <= trace.bound + MASS
        wrong += ["moved mass exceeds the bound"] * (not bool(within[drafted].all()))
        if not bool(drafted.any()):
            return 0.0, 0.0, wrong
        place = int(trace.moved[drafted].argmax())
        return float(trace.moved[drafted][place]), float(trace.bound[drafted][place]), wrong
    most = (0.0, 0.0)
    for b, j in drafted.nonzero().tolist():
        found = reference.at(p[b, j].numpy(), int(made.codes[b, j]))
        if found.near_edge or float(at[b, j]) >= float(peak[b, j]) - MASS:
            continue  # the argmax itself, or a bound that rounding decides
        most = max(most, (found.moved, found.bound))
        if not found.raised >= float(peak[b, j]) - MASS:
            wrong.append("an accepted draft's p_A(x) is not the largest entry of p_A")
        if not float(trace.moved[b, j]) <= found.bound + MASS:
            wrong.append("an accepted draft moved more mass than its bound")
    return *most, list(dict.fromkeys(wrong))


def rows_check(asked: Asked) -> Finding:
    """Images of many steps: the law p of every node that was visited, in every row and every step,
    against teacher forcing."""
    made = asked.trial(LONG, ROWS)
    done = made.decoder.generate(made.text, made.noise, pairs=2 * LONG[1] ** 2)
    seen = done.trace.pairs
    if seen is None or seen.image is None or seen.place is None or seen.depth is None:
        return Finding("rows")
    logits = teacher_logits(made.model, made.text, done.codes, asked.sampling.cfg)
    logits, small = logits[seen.image, seen.place + seen.depth], asked.filters(LONG[0])  # [M, V]
    wanted = processed(logits, small)
    shift = SHAKEN[0] * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    firm = (processed(logits + shift, small) - wanted).abs().amax(-1) <= SHAKEN[1]
    gap = (seen.p.double() - wanted).abs().amax(-1)
    wrong = ~(gap <= ENTRY) & firm
    steps = int(done.trace.target_calls.max())
    evidence = {"rows": ROWS, "steps": steps, "nodes": len(gap), "largest": float(gap[firm].max())}
    fault = ""
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        fault = (
            f"the p that drafts were verified with is off by {float(gap[wrong].max()):.2g} from "
            f"float32 teacher forcing at {int(wrong.sum())} of {len(gap)} nodes, first at place "
            f"{int(seen.place[first] + seen.depth[first])} of row {int(seen.image[first])}"
        )
    says = f"{ROWS} rows of {LONG[1] ** 2} codes compared over {steps} steps"
    return Finding("rows", fault, evidence, says=says)
