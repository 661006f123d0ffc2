"""The law of whole images of a proposer and a verifier, by enumeration over the states between two
steps: the codes so far, and the draft with its laws. Equal states are one, whose probabilities are
added.

The gate (`bench.judge.gate.whole_law`) follows every way to an image through the real loop; the
ways of a window of several codes are too many for it. Here the loop is twenty lines and all is
complete, in float64, at images of five codes. Drafts and tests are those of the real parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.judge.gate.reference import ImageLaw
from bench.judge.gate.table import table_model
from decoders.api import Draft, ImageModel, Law, Seen, Settled, Start
from decoders.loops.speculative_run import first_seen
from decoders.loops.start import begin
from decoders.noise import Noise
from tests.exact.splitting import Unknown, branched

CHUNK = 256  # states of one enumeration
DIGITS = 10  # laws that agree to so many are one


@dataclass(frozen=True)
class Exhausted:
    """law [V**L] float64: of whole images; tv: its distance to the target's; forwards: expected
    steps of an image."""

    law: Tensor
    tv: float
    forwards: float


@dataclass
class States:
    """R states: codes so far and how many, the draft under the last one."""

    image: Tensor  # [R, L + W] int64
    length: Tensor  # [R]
    draft: Draft
    weight: Tensor  # [R] float64

    def take(self, rows: Tensor) -> States:
        return States(self.image[rows], self.length[rows], taken(self.draft, rows), self.weight)


def taken(draft: Draft, rows: Tensor) -> Draft:
    names = ("codes", "parents", "depth", "children", "q")
    return replace(draft, ancestry=None, **{name: getattr(draft, name)[rows] for name in names})


def exhaust(proposer: Any, verifier: Any, length: int = 4, seed: int = 7) -> Exhausted:
    """Enumerates the images of `length` codes of a proposer that reads laws (`Proposer.reads_laws`)
    and keeps nothing from step to step, and of a verifier without a state, on a table of 3 codes.
    """
    model = table_model(3, length, seed)
    return Walk(model, proposer, verifier, table_law(model)).images()


def table_law(model: ImageModel) -> ImageLaw:
    """The table's own law of images, and of every code."""
    target: Any = model.target
    vocab, length = target.vocab_size, target.length
    images = torch.cartesian_prod(*[torch.arange(vocab)] * length).view(-1, length)
    p = target.net(target.context(images)[:, :-1]).softmax(-1)  # [V**n, n, V]
    probability = p.gather(-1, images[..., None])[..., 0].prod(-1)
    each = [p[:: vocab ** (length - i), i] for i in range(length)]
    return ImageLaw(probability, torch.cat(each), vocab, length)


class Walk:
    def __init__(self, model: ImageModel, proposer: Any, verifier: Any, wanted: ImageLaw) -> None:
        self.wanted, self.verifier, self.proposer = wanted, verifier, proposer
        self.vocab, self.length = wanted.vocab, wanted.length
        self.table = torch.cat([wanted.conditionals, torch.ones(1, self.vocab).double()])
        self.table /= self.table.sum(-1, keepdim=True)
        self.noise = Unknown(self.length)
        self.start = self._start(model)
        self.session = proposer.begin(self.start)

    def _start(self, model: ImageModel) -> Start:
        """One row a first code, with the law in float64."""
        count = self.vocab
        text = model.text.encode(["x"] * count)
        key = torch.zeros(count, 2, dtype=torch.long)
        noise = Noise.of_keys(key, self.length)
        made = begin(model, model.sampling, text, noise, model.target.prefix + self.length)
        return replace(made, first=torch.arange(count), law=self.table[:1])

    def images(self) -> Exhausted:
        found = torch.zeros(self.vocab**self.length, dtype=torch.float64)
        states, forwards = self._first(), 0.0
        while len(states.weight):
            forwards += float(states.weight.sum())
            parts = []
            for rows in torch.arange(len(states.weight)).split(CHUNK):
                done, weight, left = self._step(states, rows)
                found.index_add_(0, done, weight)
                parts.append(left)
            states = merged(parts)
        tv = 0.5 * float((found - self.wanted.probability).abs().sum())
        return Exhausted(found, tv, forwards)

    def _first(self) -> States:
        start, width = self.start, self.proposer.depth + 1
        image = F.pad(start.first[:, None], (0, self.length + width))
        seen = first_seen(start, self.proposer, image)
        assert seen.draft is not None and seen.draft.q is not None and seen.p is not None
        length = torch.ones_like(start.first)
        return self._proposed(image, length, seen, self.table[0])

    def _step(self, states: States, rows: Tensor) -> tuple[Tensor, Tensor, States]:
        """Finished images, their weights, and the states of the others after a step."""
        laws = Law(*[self._laws(states.take(rows))] * 2, greedy=False)
        first = int(rows[0])

        def judge(index: Tensor, noise: Unknown) -> Settled:
            here, own = states.take(index), laws.p[index - first]
            law = Law(own.log(), own, greedy=False)
            return self.verifier.decide(law, here.draft, noise, here.length, None)

        settled, index, weight = branched(judge, rows, states.weight[rows], self.noise)
        key = torch.cat([index[:, None], settled.nodes, settled.last_code[:, None]], 1)
        one, weight = distinct(key, weight)
        index, nodes, last = index[one], settled.nodes[one], settled.last_code[one]
        count, here = settled.count[one], states.take(index)
        drafted = F.pad(here.draft.codes.gather(1, nodes[:, 1:]), (0, 1))  # [R, D + 1]
        span = torch.arange(drafted.shape[1])
        new = torch.where(span < count[:, None], drafted, last[:, None])
        places = here.length[:, None] + span
        image = here.image.scatter(1, places, new)
        length = (here.length + count + 1).clamp_max(self.length)
        done = length == self.length
        whole = self.wanted.index(image[:, : self.length], self.length)
        p = laws.p[index - first]
        seen = Seen(Tensor(), new, count + 1, here.length, here.draft, p, nodes, image)
        left = self._proposed(image[~done], length[~done], picked(seen, ~done), weight[~done])
        return whole[done], weight[done], left

    def _proposed(self, image: Tensor, length: Tensor, seen: Seen, weight: Tensor) -> States:
        if not len(length):
            return States(image, length, seen.draft, weight)  # type: ignore[arg-type]

        def propose(rows: Tensor, noise: Unknown) -> Draft:
            return self.session.propose(picked(seen, rows), noise, length[rows])

        draft, rows, weight = branched(propose, torch.arange(len(length)), weight, self.noise)
        image, length = image[rows], length[rows]
        place = length[:, None] - 1 + draft.depth  # [R, N + 1]
        codes = torch.where(place < self.length, draft.codes, 0)
        assert draft.q is not None  # sampling, from declared laws
        q = torch.where((place + 1 < self.length)[..., None], draft.q, 0.0)
        children = torch.where((place + 1 < self.length)[..., None], draft.children, 0)
        past = torch.arange(image.shape[1]) >= length[:, None]
        made = replace(draft, codes=codes, q=q, children=children)
        states = States(image.masked_fill(past, 0), length, taken(made, slice(None)), weight)  # type: ignore[arg-type]
        return merged([states])

    def _laws(self, states: States) -> Tensor:
        """The target's laws at the draft's nodes, [R, N + 1, V]."""
        draft, vocab = states.draft, self.vocab
        number = torch.zeros_like(states.length)  # of the committed prefix
        for place in range(self.length):
            further = number * vocab + states.image[:, place]
            number = torch.where(place < states.length, further, number)
        every = [number]
        for node in range(1, draft.codes.shape[1]):
            above = torch.stack(every, 1).gather(1, draft.parents[:, node, None])[:, 0]
            every.append(above * vocab + draft.codes[:, node])
        size = states.length[:, None] + draft.depth  # [R, N + 1], codes before
        begins = torch.tensor([(vocab**n - 1) // (vocab - 1) for n in range(self.length)])
        at = begins[size.clamp_max(self.length - 1)] + torch.stack(every, 1)
        return self.table[torch.where(size < self.length, at, len(self.table) - 1)]


def picked(seen: Seen, rows: Tensor) -> Seen:
    assert seen.draft is not None
    names = ("codes", "count", "start", "p", "nodes", "image")
    values = {name: getattr(seen, name)[rows] for name in names}
    return replace(seen, draft=taken(seen.draft, rows), **values)


def distinct(key: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """key [R, n]: one row of each kind, and the weights of all of its kind."""
    kinds, kind = key.unique(dim=0, return_inverse=True)
    total = torch.zeros(len(kinds), dtype=weight.dtype).index_add(0, kind, weight)
    one = torch.empty(len(kinds), dtype=torch.long).scatter(0, kind, torch.arange(len(kind)))
    return one, total


def merged(parts: list[States]) -> States:
    """All states, equal ones as one."""
    image, length, weight = (
        torch.cat([getattr(s, n) for s in parts]) for n in ("image", "length", "weight")
    )
    names = ("codes", "parents", "depth", "children", "q")
    joined = {name: torch.cat([getattr(s.draft, name) for s in parts]) for name in names}
    draft = replace(parts[0].draft, ancestry=None, **joined)
    if not len(length):
        return States(image, length, draft, weight)
    assert draft.q is not None
    exact = [length[:, None], image, draft.codes, draft.children.flatten(1)]
    laws = (draft.q.flatten(1) * 10**DIGITS).round().long()
    one, total = distinct(torch.cat([*exact, laws], 1), weight)
    return States(image[one], length[one], taken(draft, one), total)
