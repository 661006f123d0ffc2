"""The decoder's own parts, on small models: what its drafter says, what is drawn from it, and the
target's laws that drafts were verified with.

The enumerated laws have a table drafter in the place of the decoder's own. Exactness asks three
things of that one. Its q is a function of the committed prefix and of the path alone: numbers at a
place are read again after a rejection, so that a q that remembers the rejected draft is no law of
the next one. Its drafts are drawn from the q that is declared. It is a distribution. Many images of
one caption come to the same prefix by other ways, after other rejected drafts, and are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bench.judge.gate.reference import ENTRY, processed, teacher_logits
from bench.judge.gate.report import Finding, joined, known
from bench.judge.gate.small import Asked, fresh_noise, prompts, same_prompt
from bench.judge.gate.statistics import alarm, draw_pvalues, tested
from decoders.api import Draft, Sampling
from decoders.baselines import EXACT
from decoders.distribution import drop_sibling, probabilities
from decoders.verify.children import at_node

WATCHED = (6, 3, 16)  # (V, grid, seed)
FEWEST, MOST, NODES = 512, 4096, 8192  # images of one caption, by the nodes of a draft
MORE = 10  # times as many, where how they are drawn cannot be followed
SAME = 1e-4  # of a probability: float32 rounding between two ways to one prefix
LONG, ROWS = (12, 16, 18), 6  # (V, grid, seed) of images of many steps; rows of their batch
UNTESTED = 1e-6  # a bound of the loop's own, where the exact rule declares none
SHAKEN = 1e-5, 1e-3  # a law that moves by more, where its logits move by that, stands at a filter


@dataclass
class Laws:
    """What a drafter's session says, by committed prefix and path. A code is a digit of the key."""

    base: int  # V + 1
    length: int
    sampling: Sampling
    keys: list[Tensor] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)
    finite: bool = True

    def watch(self, session: Any) -> None:
        """From now on notes what `session` (`decoders.api.DraftSession`) is asked and answers."""
        advance, expand = session.advance, session.expand
        state: dict[str, Tensor] = {}

        def advanced(hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Tensor:
            logits: Tensor = advance(hidden, codes, count, start)
            key = state.get("root", torch.zeros_like(count))
            for i, code in enumerate(codes.unbind(1)):
                key = torch.where(i < count, key * self.base + code + 1, key)
            state["root"], state["size"] = key, start + count
            state["nodes"] = key[:, None]  # [B, nodes + 1], by session index
            self._note(logits[:, None], key[:, None], state["size"])
            return logits

        def expanded(codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
            logits: Tensor = expand(codes, nodes, parents, depth)
            above = state["nodes"]
            key = above.gather(1, parents) * self.base + codes + 1  # [B, w]
            grown = pad(above, (0, int(nodes.max()) + 1 - above.shape[1]))
            state["nodes"] = grown.index_copy(1, nodes, key)
            self._note(logits, key, state["size"])
            return logits

        session.advance, session.expand = advanced, expanded

    def _note(self, logits: Tensor, keys: Tensor, size: Tensor) -> None:
        """logits [B, w, V], keys [B, w], size [B]: codes that are committed."""
        live = size < self.length
        q = probabilities(logits[live].float(), self.sampling)
        self.finite &= bool(torch.isfinite(q).all())
        self.keys.append((keys * (self.length + 1) + size[:, None])[live].flatten())
        self.laws.append(logits[live].float().softmax(-1).flatten(0, 1))

    def apart(self) -> tuple[float, int]:
        """The largest difference of a probability between two calls with one prefix and one path,
        and how many calls had a twin."""
        if not self.keys:
            return 0.0, 0
        keys, laws = torch.cat(self.keys), torch.cat(self.laws)
        _, group, count = keys.unique(return_inverse=True, return_counts=True)
        index = group[:, None].expand_as(laws)
        blank = laws.new_zeros(len(count), laws.shape[1])
        most, least = (
            blank.scatter_reduce(0, index, laws, how, include_self=False)
            for how in ("amax", "amin")
        )
        return known(float((most - least).max())), int(count[count > 1].sum())


class Draws:
    """Drafts and the laws [m, V] that were declared for them. A number is looked at where it is
    read first: from then on it has been selected. First children are followed, with siblings. The
    first part is the first child of every row's first root."""

    def __init__(self, rows: int, length: int) -> None:
        self.used = torch.zeros(rows, length + 1, dtype=torch.bool)  # [B, places]
        self.length = length
        self.parts: list[tuple[Tensor, Tensor]] = []

    def note(self, draft: Draft, place: Tensor) -> None:
        if draft.q is None:
            return
        rows, node = torch.arange(len(place)), torch.zeros_like(place)
        alive = torch.ones_like(place, dtype=torch.bool)
        for depth in range(draft.levels):
            here = (place + depth).clamp_max(self.length)
            kids, q = draft.children[rows, node], at_node(draft.q, node)  # [B, K], [B, V]
            alive = alive & (kids[:, 0] > 0) & (here < self.length)
            fresh = alive & ~self.used[rows, here]
            self.used[rows[fresh], here[fresh]] = True
            for child in kids.unbind(1):
                x = draft.codes[rows, child]
                fresh = fresh & (child > 0)
                law = q[fresh].double()
                self.parts.append((law / law.sum(-1, keepdim=True), x[fresh]))
                q = drop_sibling(q, x)
            node = kids[:, 0]


def drafter_check(asked: Asked, followed: bool = True) -> Finding:
    """The decoder's own drafter and tree, or its own proposer. followed: whether an enumeration
    followed how drafts are drawn; else ten times as many are."""
    (vocab, grid, seed), asked = WATCHED, asked.plain
    model, length = asked.model(WATCHED), grid * grid
    proposer = getattr(asked.decoder(model), "proposer", None)
    if proposer is None:
        return Finding("drafter")
    images = max(FEWEST, min(MOST, NODES // proposer.nodes))
    text = same_prompt(prompts(model, 1, seed), images)
    generator = torch.Generator().manual_seed(seed)
    laws = Laws(vocab + 1, length, asked.filters(vocab))

    def sample(_: bool) -> list[tuple[Tensor, Tensor]]:
        decoder: Any = asked.decoder(model)
        begin, parts = decoder.proposer.begin, []
        for batch in range(1 if followed else MORE):
            draws = Draws(images, length)
            decoder.proposer.begin = watched_begin(begin, None if batch else laws, draws)
            decoder.generate(text, fresh_noise(images, length, generator))
            parts += draws.parts
        return parts

    drawn, adjusted = tested(sample, draw_pvalues)
    apart, twins = laws.apart()
    count = sum(len(codes) for _, codes in drawn)
    nan = "the drafter's logits hold NaN or infinity: its q is no distribution" * (not laws.finite)
    skewed = alarm(adjusted, "drafts are not drawn from the q that is declared")
    evidence: dict[str, Any] = {"apart": apart, "calls compared": twins}
    evidence |= {"draws": count, "p_value": adjusted}
    if not apart <= SAME:
        evidence["forbidden"] = (
            f"the drafter's q is no function of the committed prefix and the path: two calls with "
            f"the same ones differ by {apart:.2g}. The contract (DraftSession) forbids q that "
            "depends on earlier drafts: numbers at a place are read again in later steps"
        )
    compared = f"its own drafter says the same in {twins} calls" * bool(twins)
    says = joined(compared, f"{count} drafts are drawn from their q" * bool(count))
    return Finding("drafter", joined(nan, skewed), evidence, says=says)


def watched_begin(begin: Callable[..., Any], laws: Laws | None, draws: Draws) -> Callable[..., Any]:
    """`Proposer.begin` whose sessions are watched."""

    def begun(start: Any) -> Any:
        session = begin(start)
        propose = session.propose

        def proposed(seen: Any, noise: Any, place: Tensor) -> Draft:
            draft: Draft = propose(seen, noise, place)
            draws.note(draft, place)
            return draft

        session.propose = proposed
        if laws is not None and hasattr(session, "session"):  # a drafter's
            laws.watch(session.session)
        return session

    return begun


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
    if asked.spec.acceptance == EXACT and bool((bound := done.trace.bound > UNTESTED).any()):
        evidence["untested"] = float(bound.double().mean())  # codes of which the loop declares it
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
