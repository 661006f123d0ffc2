"""Lemma R (METHODS2) from what a rule said while its decoder ran: recorded (p, q, a).

The law check enumerates the rule; this one looks at the loop's own calls of it. The acceptance that
the loop used must be the rule's for that node, at that depth and place. From (p, q, a) follows the
output bound sum_x (q(x) a(x) - p(x))+, by hand and in float64. It must be that of the enumerated
law, and of a rule that says so (`bounds_output`) the bound that it declares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.judge.gate.report import Finding, known
from decoders.api import AcceptRule, TextFeatures
from decoders.noise import Noise
from metrics.node_law import Spot, judge_at, node_law

CLOSE = 1e-6
NODES = 40  # that are looked at, spread over the run
ROWS = 8  # images of the run whose nodes are kept


@dataclass(frozen=True)
class Judged:
    """What the loop's verifier asked and got at one node. q None: deterministic children."""

    p: Tensor  # [V]
    q: Tensor | None  # [V]
    children: Tensor  # [K] int64, the real ones
    accept: Tensor  # [K]
    bound: Tensor  # [K]
    depth: int
    place: int  # of the root's children


def watched(decoder: Any, text: TextFeatures, noise: Noise) -> list[Judged]:
    """Decodes once more and keeps what the verifier's rule said of the nodes of some images.
    `decoder` is used up."""
    kept: list[Judged] = []
    verifier = decoder.verifier
    verdicts = verifier.verdicts

    def noting(law: Any, draft: Any, codes: Tensor, valid: Tensor, place: Tensor) -> Any:
        found = verdicts(law, draft, codes, valid, place)
        rows, nodes = valid[:ROWS].any(-1).nonzero(as_tuple=True)
        for b, n in zip(rows.tolist(), nodes.tolist(), strict=True):
            real = valid[b, n]
            q = None if draft.q is None else draft.q[b, n].clone()
            child, accept, bound = (
                t[b, n][real].clone() for t in (codes, found.accept, found.bound)
            )
            depth, first = int(draft.depth[b, n]), int(place[b])
            kept.append(Judged(law.p[b, n].clone(), q, child, accept, bound, depth, first))
        return found

    verifier.verdicts = noting
    decoder.generate(text, noise)
    return kept[:: max(1, len(kept) // NODES)][:NODES]


def by_hand(judge: Any, p: Tensor, q: Tensor | None, x: Tensor) -> float:
    """sum_x (q(x) a(x) - p(x))+ of one test in float64: all codes x where q [V] is given, else the
    single code x."""
    every = torch.arange(len(p)) if q is not None else x[None]  # [T]
    wide = [None if t is None else t.expand(1, len(every), -1) for t in (p, q)]
    codes = every[None, :, None]  # [1, T, 1]
    accept = judge(*wide, codes, torch.ones_like(codes, dtype=torch.bool)).accept[0, :, 0].double()
    drafted = torch.ones_like(accept) if q is None else q.double()
    mass = torch.where(drafted > 0, drafted * accept, 0.0)
    return float((mass - p.double()[every]).clamp_min(0).sum())


def lemma_check(rule: AcceptRule, judged: list[Judged], levels: int) -> Finding:
    """rule: built apart from the decoder's, on a model like its own; levels: of its drafts."""
    used = lemma = declared = 0.0
    for node in judged:
        spot = Spot(node.depth, node.place, levels)
        judge = judge_at(rule, spot)
        q = None if node.q is None else node.q[None, None]
        real = torch.ones_like(node.children, dtype=torch.bool)
        said = judge(node.p[None, None], q, node.children[None, None], real[None, None])
        used = max(used, known(float((said.accept[0, 0] - node.accept).abs().max())))
        first = node.children[0]
        bound = by_hand(judge, node.p, node.q, first)
        law = node_law(rule, node.p, node.q, 1 if node.q is not None else first[None], spot=spot)
        lemma = max(lemma, known(abs(law.limit - bound)))
        if getattr(rule, "bounds_output", False):
            declared = max(declared, known(abs(float(node.bound[0]) - bound)))
    faults = [
        (used, "the loop accepts with another probability than the rule says of that node"),
        (lemma, "the enumerated law's output bound is not sum (q a - p)+"),
        (declared, "the rule declares another output bound than sum (q a - p)+"),
    ]
    fault = "; ".join(f"{words} (off by {gap:.2g})" for gap, words in faults if not gap <= CLOSE)
    evidence = {"nodes": len(judged), "acceptance": used, "output bound": lemma}
    return Finding("lemma R", fault, 0.0, evidence | {"declared": declared})
