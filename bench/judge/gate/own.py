"""The decoder's own drafter and tree, on small models: what is said of drafts, and what is drawn.

The enumerated laws have a table drafter in the place of the decoder's own. Exactness asks three
things of that one. Its q is a function of the committed prefix and of the path alone: numbers at a
place are read again after a rejection, so that a q that remembers the rejected draft is no law of
the next one. Its drafts are drawn from the q that is declared. It is a distribution. Many images of
one caption come to the same prefix by other ways, after other rejected drafts, and are compared.

What shows in many codes alone (residuals that are cut, sums in half precision) is looked for in the
first step of images of as many codes as the real model has, in its dtype. All are of one caption
and have the same first code: so the second code of thousands has one law, as has the first draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bench.judge.gate.reference import processed, teacher_logits
from bench.judge.gate.report import Finding, joined, known
from bench.judge.gate.small import Asked, fresh_noise, prompts, same_prompt
from bench.judge.gate.statistics import alarm, draw_pvalues, pearson, tested
from decoders.api import Draft, Sampling, Settled
from decoders.distribution import drop_sibling, probabilities
from decoders.verify.children import at_node

WATCHED = (6, 3, 16)  # (V, grid, seed)
FEWEST, MOST, NODES = 512, 4096, 8192  # images of one caption, by the nodes of a draft
MORE = 10  # times as many, where how they are drawn cannot be followed
CODES, SEED, LENGTH = 1024, 16, 4  # of wide images: codes at most; places
FLAT = 0.2  # scale of the target's logits there: random ones leave a few likely codes
IMAGES, BRANCHES, BATCH = 4096, 2**15, 2**12  # images at most; nodes of their drafts; of a batch's
SAME = 1e-4  # of a probability: float32 rounding between two ways to one prefix


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
    proposer = asked.decoder(model).proposer
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


class SeenError(Exception):
    """The first step is over, and what comes after it is of no interest."""


class Steps:
    """The first steps of a decoder: the law p of the second code, [V] (None where it has no
    verifier), the first two codes of a batch's images [B, 2], and their drafts."""

    def __init__(self, decoder: Any, rows: int) -> None:
        self.law: Tensor | None = None
        self.images: list[Tensor] = []
        self.draws: list[Draws] = []
        self.apart = False  # whether first codes differ, as the decoder has numbers of its own
        proposer, verifier = decoder.proposer, decoder.verifier
        if proposer is None or verifier is None:
            return
        begin, decide = proposer.begin, verifier.decide

        def beginning(start: Any) -> Any:
            self.draws.append(Draws(rows, LENGTH))
            return watched_begin(begin, None, self.draws[-1])(start)

        def deciding(law: Any, draft: Draft, *rest: Any) -> Any:
            made: Settled = decide(law, draft, *rest)
            self.law = law.p[:, 0].double().mean(0)
            drafted = draft.codes.gather(1, made.nodes[:, 1:2])[:, 0]
            second = torch.where(made.count > 0, drafted, made.last_code)
            self.images.append(torch.stack([draft.codes[:, 0], second], 1))
            raise SeenError

        proposer.begin, verifier.decide = beginning, deciding


def wide_check(asked: Asked) -> Finding:
    """The first step of images of many codes: is the second code drawn from the p that it was
    verified with, and are drafts drawn from the q that is declared?"""
    vocab, dtype, asked = min(asked.real.codebook, CODES), asked.real.dtype, asked.plain
    if asked.spec.acceptance is None:  # there p is that of teacher forcing
        dtype = torch.float32
    model = asked.model((vocab, 2, SEED), dtype=dtype)
    target: Any = model.target
    with torch.no_grad():
        target.output.weight.mul_(FLAT)
    decoder: Any = asked.decoder(model)
    nodes = 1 if decoder.proposer is None else decoder.proposer.nodes
    rows = max(64, min(1024, BATCH // nodes))
    batches = max(2 * rows, min(IMAGES, BRANCHES // nodes)) // rows
    text = same_prompt(prompts(model, 1, SEED), rows)
    generator = torch.Generator().manual_seed(SEED)
    steps = Steps(decoder, rows)

    def sample(_: bool) -> Steps:
        steps.images, steps.draws = [], []
        for batch in range(batches):
            noise = fresh_noise(rows, LENGTH, generator)
            noise.uniform[:, 0] = 0.5
            try:
                steps.images.append(decoder.generate(text, noise).codes)
            except SeenError:
                steps.draws[batch:] = steps.draws[-1:]  # a loop may try a draft first
        return steps

    def pvalues(steps: Steps) -> list[float]:
        law = steps.law
        if law is None:
            steps.apart = len(torch.cat(steps.images)[:, 0].unique()) > 1
            if steps.apart:
                return [1.0]
            logits = teacher_logits(model, text, steps.images[0], asked.sampling.cfg)[0, 1]
            law = processed(logits, asked.filters(vocab))
        found = [pearson(law / law.sum(), torch.cat(steps.images)[:, 1])]
        first = [draws.parts[0] for draws in steps.draws if draws.parts]
        if first:
            q, x = (torch.cat(part) for part in zip(*first, strict=True))
            found += [pearson(q.mean(0), x), *draw_pvalues(steps.draws[0].parts[1:])]
        return found

    _, adjusted = tested(sample, pvalues)
    if steps.apart:
        own = "its numbers are not the noise's, so images do not begin alike"
        return Finding("wide", evidence={"not looked at": own})
    kind, images = str(dtype).removeprefix("torch."), batches * rows
    fault = alarm(
        adjusted,
        f"images of {vocab} codes in {kind}: codes are not drawn from their p, or drafts not from "
        "the q that is declared",
    )
    evidence = {"codes": vocab, "images": images, "dtype": kind, "p_value": adjusted}
    says = f"only sampled: the first step with {vocab} codes in {kind}, {images} times"
    return Finding("wide", fault, evidence, says=says)
