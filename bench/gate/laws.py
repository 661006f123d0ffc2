"""Node-level checks of an acceptance rule: the enumerated output law, and p_A by its definition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from bench.gate.enumerate import MAX_DRAWS, node_law
from bench.gate.nodes import Node, random_pairs
from bench.gate.reference import ReferenceRule
from bench.gate.report import Finding
from bench.gate.sampled import Recorded
from bench.gate.small import Real, drafter_names, small_model, small_rule
from decoders.api import AcceptRule, ImageModel
from decoders.compose import DecoderSpec

SLACK = 1e-5  # float32 rounding of a TV
LARGEST, SMALLEST = 64, 7  # vocabularies of random nodes
EACH = 3  # random nodes of each kind and number of children
VISITED = 40  # recorded nodes of each model
COUNTS = 6  # numbers of children that are enumerated at most


def law_check(spec: DecoderSpec, real: Real, recorded: Recorded) -> tuple[Finding, bool]:
    """The law of the committed code at every node -> finding with the worst TV, and whether the
    rule declares any bound at all (if not, it claims to be exact). Fault: TV beyond the bound."""
    worst, beyond, declared, single, seen = 0.0, -1.0, 0.0, 0.0, 0
    place: dict[str, object] = {}
    rules: dict[int, AcceptRule] = {}
    for node in _nodes(recorded):
        vocab = len(node.p)
        if vocab not in rules:
            rules[vocab] = small_rule(spec, small_model(vocab, 2, 0, drafter_names(spec)), real)
        q = node.q if recorded.drawn else None
        law = node_law(rules[vocab], node.p, q, node.children, real.native)
        count = node.children if isinstance(node.children, int) else len(node.children)
        declared, seen = max(declared, law.bound), seen + 1
        here = {
            "tv": law.tv,
            "bound": law.bound,
            "vocab": vocab,
            "children": count,
            "node": node.origin,
        }
        single = max(single, law.tv if count == 1 else 0.0)
        if law.tv >= worst:
            worst = law.tv
            place["worst"] = here
        if law.tv - law.bound > beyond:
            beyond = law.tv - law.bound
            place["worst beyond its bound"] = here
    fault = ""
    if beyond > SLACK:
        at = place["worst beyond its bound"]
        assert isinstance(at, dict)
        fault = (
            f"output TV {at['tv']:.4f} where {at['bound']:.4f} is declared ({at['children']} "
            f"{'drawn' if recorded.drawn else 'deterministic'} children, V={at['vocab']}, "
            f"{at['node']} node)"
        )
        most = place["worst"]
        assert isinstance(most, dict)
        if most["tv"] > at["tv"]:
            fault += f", at another {most['tv']:.4f} where {most['bound']:.4f} is declared"
    evidence = {"nodes": seen, "max_tv": worst, "max_tv_of_one_child": single} | place
    evidence["max_bound"] = declared
    return Finding("node law", fault, worst, evidence), declared > 0


def _nodes(recorded: Recorded) -> Iterator[Node]:
    """Nodes the decoder visited, then random ones with as many children as its tree gives."""
    for vocab, every in recorded.pairs.items():
        for made in every:
            for i in range(min(VISITED, len(made.p))):
                tested = made.children[i][made.valid[i]]
                if made.q is None:
                    yield Node(made.p[i], made.p[i], tested, "recorded")
                elif len(tested) and _draws(vocab, len(tested)) <= MAX_DRAWS:
                    yield Node(made.p[i], made.q[i], len(tested), "recorded")
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


def _draws(vocab: int, count: int) -> int:
    """Ordered draws of `count` codes out of `vocab`."""
    return int(np.prod([vocab - i for i in range(min(count, vocab))], dtype=np.int64))


def _vocabulary(count: int) -> int:
    """The largest vocabulary on which `count` drawn children are enumerable in time."""
    fitting = [v for v in (LARGEST, 24, 12, 8) if v > count and _draws(v, count) <= MAX_DRAWS // 3]
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
            over = max(over, float(test.moved[x]) - wanted.bound)
            gaps = (
                float(test.moved[x]) - wanted.moved,
                float(test.accept[x]) - min(1.0, wanted.raised),
            )
            worst = max(worst, *map(abs, gaps))
    fault = "" if worst <= SLACK else f"p_A differs by {worst:.4f} from its definition"
    if over > SLACK:
        fault += f"{'; ' * bool(fault)}the mass moved exceeds the bound by {over:.4f}"
    return Finding("definition", fault, 0.0, {"definition": {"largest_difference": worst}})
