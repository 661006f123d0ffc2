"""Node-level checks of an acceptance rule: the enumerated output law, and p_A by its definition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.judge.gate.enumerate import MAX_DRAWS, Spot, draw_count, node_law
from bench.judge.gate.nodes import Node, random_pairs
from bench.judge.gate.reference import ReferenceRule
from bench.judge.gate.report import Finding, holding, known
from bench.judge.gate.sampled import TREE, Recorded
from bench.judge.gate.small import Real, drafter_names, small_model, small_rule
from decoders.api import AcceptRule, ImageModel
from decoders.compose import DecoderSpec
from metrics.node_law import spot_of

SLACK = 1e-5  # float32 rounding of a TV
LARGEST, SMALLEST = 64, 7  # vocabularies of random nodes
EACH = 3  # random nodes of each kind and number of children
VISITED = 40  # recorded nodes of each model
OUTSIDE = 1e-6  # mass on codes with p(x) = 0 that rounding may leave
COUNTS = 6  # numbers of children that are enumerated at most


@dataclass
class Worst:
    """The node at which a TV is furthest beyond a bound; NaN is beyond every bound."""

    over: float = -math.inf
    here: dict[str, Any] = field(default_factory=dict)

    def see(self, over: float, here: dict[str, Any]) -> None:
        over = over if math.isfinite(over) else math.inf
        if not self.here or over > self.over:
            self.over, self.here = over, here

    @property
    def holds(self) -> bool:
        """Is the bound kept at every node?"""
        return self.over <= SLACK


def law_check(spec: DecoderSpec, real: Real, recorded: Recorded) -> tuple[Finding, bool]:
    """The law of the committed code at every node -> finding with the worst TV, and whether the
    rule declares any bound at all (if not, it claims to be exact). Fault: TV beyond what the rule
    declares, or anything that is not finite. Evidence "holds": which bounds are kept."""
    declared, single, seen, outside = 0.0, 0.0, 0, 0.0
    most, beyond, output = Worst(), Worst(), Worst()
    rules: dict[int, AcceptRule] = {}
    for node, spot in _placed(spec, real, recorded, rules):
        vocab = len(node.p)
        q = node.q if recorded.drawn else None
        law = node_law(rules[vocab], node.p, q, node.children, real.native, spot)
        count = node.children if isinstance(node.children, int) else len(node.children)
        outside = max(outside, float(law.out[node.p == 0].sum()))
        here = {
            "tv": law.tv,
            "bound": law.declared,
            "output_bound": law.limit,
            "vocab": vocab,
            "children": count,
            "node": node.origin,
        } | ({} if spot is None else {"depth": spot.depth, "place": spot.place})
        seen, declared = seen + 1, max(declared, known(law.declared))
        single = max(single, known(law.tv) if count == 1 else 0.0)
        most.see(law.tv, here)
        beyond.see(law.tv - law.declared, here)
        output.see(law.tv - law.limit, here)
    evidence: dict[str, Any] = {"nodes": seen, "max_tv_of_one_child": single}
    evidence |= {"max_bound": declared, "max_tv": min(known(most.over), 1.0) if seen else 0.0}
    for name, place in (
        ("worst", most),
        ("worst beyond its bound", beyond),
        ("worst beyond its output bound", output),
    ):
        evidence |= {name: place.here} if seen else {}
    evidence["holds"] = holding(beyond.holds, output.holds) if seen and declared > 0 else ""
    fault = "" if beyond.holds or not seen else _fault(most, beyond, recorded.drawn)
    if fault and declared > 0:
        fault += f"; {_output_words(beyond, output)}"
    evidence["outside the support"] = outside
    if outside > OUTSIDE and not any(getattr(r, "beyond_support", False) for r in rules.values()):
        fault += (
            f"{'; ' * bool(fault)}codes with p(x) = 0 are committed (up to {outside:.4f} of a "
            "node's law), and the rule does not say so (`beyond_support`)"
        )
    return Finding("node law", fault, evidence["max_tv"], evidence), declared > 0


def _fault(most: Worst, beyond: Worst, drawn: bool) -> str:
    """That a node's law is beyond what is declared there."""
    at = beyond.here
    where = (
        f"({at['children']} {'drawn' if drawn else 'deterministic'} children, V={at['vocab']}, "
        f"{at['node']} node{_where(at)})"
    )
    if not (math.isfinite(at["tv"]) and math.isfinite(at["bound"])):
        return (
            f"no finite law or bound: output TV {at['tv']:.4f} where {at['bound']:.4f} is declared "
            f"{where}; accept, residual, bound and q must be finite"
        )
    fault = f"output TV {at['tv']:.4f} where {at['bound']:.4f} is declared {where}"
    if most.here["tv"] > at["tv"]:
        other = most.here
        fault += f", at another {other['tv']:.4f} where {other['bound']:.4f} is declared"
    return fault


def _where(at: dict[str, Any]) -> str:
    return f" at depth {at['depth']}" if "depth" in at else ""


def _output_words(beyond: Worst, output: Worst) -> str:
    """Whether the output bound of lemma R holds; `beyond`: the node that the fault is about."""
    at = output.here
    if output.holds:
        return (
            "the declared bound is on TV(p, p_A); the output bound, sum (q a - p)+, holds at every "
            f"node ({beyond.here['output_bound']:.4f} at this one)"
        )
    return (
        f"the output bound, sum (q a - p)+, is exceeded too ({at['tv']:.4f} where it is "
        f"{at['output_bound']:.4f}): after a rejection the rule does not go on with "
        "norm((p - q a)+)"
    )


def _placed(
    spec: DecoderSpec, real: Real, recorded: Recorded, rules: dict[int, AcceptRule]
) -> Iterator[tuple[Node, Spot | None]]:
    """Every node, and where it stands if the rule asks: a recorded one where it stood, a random one
    at every depth, at places in turn. Adds the rules of its vocabularies to `rules`."""
    for turn, node in enumerate(_nodes(recorded)):
        vocab = len(node.p)
        if vocab not in rules:
            rules[vocab] = rule_of(spec, vocab, real)
        if not hasattr(rules[vocab], "at"):
            yield node, None
        elif node.spot is not None:
            yield node, node.spot
        else:
            for depth in range(recorded.levels):
                place = 1 + (turn + depth) % (TREE[1] ** 2 - 1)
                yield node, Spot(depth, place, recorded.levels)


def rule_of(spec: DecoderSpec, vocab: int, real: Real) -> AcceptRule:
    """The composition's rule for so many codes; one that depends on the place knows the images on
    which nodes are recorded."""
    names = drafter_names(spec)
    rule = small_rule(spec, small_model(vocab, 2, 0, names), real)
    if hasattr(rule, "at"):
        rule = small_rule(spec, small_model(vocab, TREE[1], 0, names), real)
    return rule


def _nodes(recorded: Recorded) -> Iterator[Node]:
    """Nodes the decoder visited, then random ones with as many children as its tree gives."""
    for vocab, every in recorded.pairs.items():
        for made in every:
            for i in range(min(VISITED, len(made.p))):
                tested = made.children[i][made.valid[i]]
                spot = spot_of(made, i)
                if made.q is None:
                    yield Node(made.p[i], made.p[i], tested, "recorded", spot)
                elif len(tested) and draw_count(vocab, len(tested)) <= MAX_DRAWS:
                    yield Node(made.p[i], made.q[i], len(tested), "recorded", spot)
    counts = recorded.counts()
    if len(counts) > COUNTS:  # the smallest, the largest and some between
        counts = sorted(
            {counts[round(i * (len(counts) - 1) / (COUNTS - 1))] for i in range(COUNTS)}
        )
    for count in counts:
        vocab = _vocabulary(count) if recorded.drawn else LARGEST
        for kind, p, q in random_pairs(vocab, EACH, seed=count):
            drawn = min(count, SMALLEST)
            best = q.topk(min(count, vocab)).indices
            yield Node(p, q, drawn if recorded.drawn else best, kind)


def _vocabulary(count: int) -> int:
    """The largest vocabulary on which `count` drawn children are enumerable in time."""
    fitting = [
        v for v in (LARGEST, 24, 12, 8) if v > count and draw_count(v, count) <= MAX_DRAWS // 3
    ]
    return fitting[0] if fitting else SMALLEST


def definition_check(spec: DecoderSpec, real: Real) -> Finding:
    """p_A by the rule against p_A by its definition: every draft, random p. For rules of the
    LANTERN family; others have no definition here, and only their laws are measured."""
    model: ImageModel = small_model(24, 2, 1, drafter_names(spec))
    rule = small_rule(spec, model, real)
    reference = None if rule is None else ReferenceRule.of(rule, model)
    if reference is None:
        return Finding("definition", "", 0.0, {})
    worst, over = 0.0, 0.0
    for _, p, _ in random_pairs(24, EACH, seed=5):
        every = torch.arange(24)
        test = rule.test(p.expand(24, -1), None, every)
        plain = p.double().numpy()
        for x in range(24):
            wanted = reference.at(plain, x)
            if wanted.near_edge:
                continue
            over = max(over, known(float(test.moved[x]) - wanted.bound))
            gaps = (
                float(test.moved[x]) - wanted.moved,
                float(test.accept[x]) - min(1.0, wanted.raised),
            )
            worst = max(worst, *(known(abs(gap)) for gap in gaps))
    fault = "" if worst <= SLACK else f"p_A differs by {worst:.4f} from its definition"
    if over > SLACK:
        fault += f"{'; ' * bool(fault)}the mass moved exceeds the bound by {over:.4f}"
    return Finding("definition", fault, 0.0, {"definition": {"largest_difference": worst}})
