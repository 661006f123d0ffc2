"""Plug-ins of the referee's exam (issue of the gate): wrong ones, which no verdict may call exact,
and right ones, which none may call broken. At least two for every contract."""

from copy import copy
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from decoders.cache import CLOSED, added
from decoders.distribution import drop_sibling, normalised, pick
from decoders.loops.speculative import Speculative
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, OWN_SLOT, TARGET_SLOT, sample
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.jacobi import Jacobi as Window
from decoders.propose.trees.static import Static
from decoders.verify.token_verifier import at_node
from tests.exact.planted import changed, finds, judging

# ---- drafters -----------------------------------------------------------------------------------


def remembering(level: int, weight: float = 1.5) -> Any:
    """A drafter that is told less likely what it drafted `level` places on, once the root has come
    there: the draft was rejected, or stands now."""

    def begin(usual: Any, *args: Any) -> Any:
        session, old = usual(*args), dict[str, Any]()
        advance, expand = session.advance, session.expand

        def advanced(hidden: Any, codes: Any, count: Any, start: Any) -> Any:
            logits, place = advance(hidden, codes, count, start).clone(), start + count
            for code, where in old.get("drafts", []):
                held = weight * (where == place).float()
                logits.scatter_add_(1, code[:, None], -held[:, None].to(logits))
            old["drafts"], old["place"] = [], place
            return logits

        def expanded(codes: Any, nodes: Any, parents: Any, depth: int) -> Any:
            if depth >= level:
                old["drafts"] = [*old["drafts"], (codes[:, 0], old["place"] + depth - 1)]
            return expand(codes, nodes, parents, depth)

        session.advance, session.expand = advanced, expanded
        return session

    return changed(Eagle, begin=begin)


OwnRejected = remembering(1)  # (t2) q depends on the drafter's own rejected draft at that place
DeepRejected = remembering(2)  # the same of what was drafted at that place as a second level
Counting = remembering(1, 0.0)  # right: keeps a count of what it drafted, and does not use it


class Adaptive(Eagle):
    """(right, and breaks the contract) q is flatter where the last step accepted nothing. Numbers
    of places behind the rejected one are new ones then, so that the output is exact."""

    def begin(self, *args: Any) -> Any:
        session = super().begin(*args)
        advance = session.advance

        def advanced(hidden: Any, codes: Any, count: Any, start: Any) -> Any:
            logits = advance(hidden, codes, count, start)
            return torch.where((count == 1)[:, None], 0.5 * logits, logits)

        session.advance = advanced
        return session


class LastCode(Eagle):
    """(right) A table of pairs: q depends on the last code alone, and its memory is reused."""

    def begin(self, start: Any, most: int, nodes: int) -> Any:
        return LastCodeSession(start.model.target.vocab_size, start.batch)


class LastCodeSession:
    def __init__(self, vocab: int, batch: int) -> None:
        self.table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(4))
        self.root_code, self.calls = torch.zeros(batch, dtype=torch.long), 0
        self.memory = torch.zeros(batch, vocab)

    def advance(self, hidden: Any, codes: Any, count: Any, start: Any) -> Any:
        self.root_code = codes.gather(1, count[:, None] - 1)[:, 0]
        return self.memory.copy_(self.table[self.root_code])

    def expand(self, codes: Any, nodes: Any, parents: Any, depth: int) -> Any:
        self.memory.zero_()
        return self.table[codes]


# ---- trees --------------------------------------------------------------------------------------


def with_rows(power: float) -> Any:
    """Drafts are drawn from q^power with Gumbel rows, q is declared."""

    def draw(_: Any, dist: Any, level: Any, noise: Any, place: Any) -> Any:
        rows = noise.gumbel(place, dist.shape[-1], DRAFT_SLOT)[:, None]  # [B, 1, V]
        return (power * dist.log() + rows).topk(level.count, -1).indices

    return changed(Static, draw=draw)


Sharper = with_rows(1.05)  # (t3)
Rows = with_rows(1.0)  # right, and not to be enumerated


class HalfSums(Static):
    """(w4) Drafts are drawn by sums in the model's dtype; q is declared in float32."""

    def __init__(self, model: Any, choices: Any) -> None:
        super().__init__(model, choices)
        self.dtype = model.dtype

    def draw(self, dist: Any, level: Any, noise: Any, place: Any) -> Any:
        drawn = []
        for u in self.numbers(level, noise, place).unbind(-1):
            sums = dist.to(self.dtype).cumsum(-1)
            limit = u.expand(dist.shape[:-1])[..., None].to(self.dtype) * sums[..., -1:]
            drawn.append((sums > limit).int().argmax(-1))
            dist = drop_sibling(dist, drawn[-1])
        return torch.stack(drawn, -1)


def best_first(usual: Any, dist: Any, *rest: Any) -> Any:
    drawn = usual(dist, *rest)
    return drawn.gather(-1, dist.gather(-1, drawn).argsort(-1, descending=True))


# Siblings are drawn, and then tested in the order of their probability.
BestFirst = changed(Static, draw=best_first)
# A draft is the drafter's likeliest code, and the soft q is declared.
Argmax = changed(Static, draw=lambda _, dist, level, *rest: dist.topk(level.count, -1).indices)

# ---- loops --------------------------------------------------------------------------------------


class StaleRow(Speculative):
    """(t4) After step 11 the keys and values of row 1 stay where the tree wrote them."""

    def verify_and_commit(self, run: Any, *rest: Any) -> Any:
        commit, data = run.cache.commit, run.cache.data
        if int(run.record.steps.max()) < 11 or data.shape[2] < 2:
            return super().verify_and_commit(run, *rest)

        def stale(source: Any, destination: Any) -> None:
            kept = data[:, :, 1].clone()
            commit(source, destination)
            data[:, :, 1] = kept

        with mock.patch.object(run.cache, "commit", stale):
            return super().verify_and_commit(run, *rest)


class ForgetsFullPath(Speculative):
    """A path that reaches the deepest level is not moved in the cache."""

    def _commit(self, run: Any, settled: Any, hidden: Any) -> Any:
        full = settled.count == self.proposer.depth
        nodes = torch.where(full[:, None], run.record.span, settled.nodes)
        states = super()._commit(run, replace(settled, nodes=nodes), hidden)
        copies = self.sampling.guidance_rows
        index = settled.nodes.repeat(copies, 1)[..., None].expand_as(states)
        return hidden.gather(1, index)


class LateBlindness(Speculative):
    """From place 30 on attention does not see the first code."""

    def draft(self, run: Any) -> Any:
        draft, mask = super().draft(run)
        late = (run.length >= 30).repeat(self.sampling.guidance_rows)
        mask[late, :, self.model.target.prefix] = CLOSED
        return draft, mask


class Last96(Speculative):
    """(w5) Attention sees the prefix, the last 96 codes and the draft."""

    def draft(self, run: Any) -> Any:
        draft, mask = super().draft(run)
        slots, prefix = torch.arange(mask.shape[-1]), self.model.target.prefix
        first = (prefix + run.length - 96).repeat(self.sampling.guidance_rows)  # [R]
        seen = (slots < prefix) | (slots >= first[:, None])  # [R, S]
        return draft, torch.minimum(mask, added(seen)[:, None])


class Rewritten(Speculative):
    """(right) Drafts in its own way: the mask is made a second time."""

    def draft(self, run: Any) -> Any:
        return self.masked(run, super().draft(run)[0])


# ---- proposers ----------------------------------------------------------------------------------


class OldDraftsNewLaw(Window):
    """Drafts of the last window stay, and the target's newest laws are declared."""

    def draw(self, law: Any, left: Any, noise: Any, places: Any) -> Any:
        return torch.where(left.drafted, left.codes, super().draw(law, left, noise, places))


class TargetsNumber(Window):
    """A draft is drawn with the number of the place's last code."""

    def draw(self, law: Any, left: Any, noise: Any, places: Any) -> Any:
        return sample(law, noise.at(places, TARGET_SLOT)[..., 0])


class KeptTwice(Window):
    """(w1) A draft that came out alike in two windows running stays; the newest law is declared."""

    def begin(self, start: Any) -> Any:
        made = copy(self)
        size = start.model.target.length + 2 * self.nodes
        made.codes = torch.full((len(start.first), size), -1)  # by place
        made.alike = torch.zeros_like(made.codes)  # windows in a row with that code
        return super(KeptTwice, made).begin(start)

    def draw(self, law: Any, left: Any, noise: Any, places: Any) -> Any:
        codes, alike = self.codes.gather(1, places), self.alike.gather(1, places)
        fresh = super().draw(law, left, noise, places)
        new = torch.where(left.drafted & (alike >= 2), codes, fresh)
        self.alike.scatter_(1, places, torch.where(new == codes, alike + 1, 1))
        self.codes.scatter_(1, places, new)
        return new


# ---- verifiers ----------------------------------------------------------------------------------


def largest(p: Any, count: int = 64) -> Any:
    """p without all but its largest entries."""
    return torch.where(p < p.topk(min(count, p.shape[-1])).values[..., -1:], 0.0, p)


def level_above(_: Any, noise: Any, places: Any, count: int) -> Any:
    depth = torch.arange(places.shape[1])  # of a chain's parents
    return noise.at(places - (depth >= 3).long(), ACCEPT_SLOT, count)


def generous(usual: Any, law: Any, draft: Any, *rest: Any) -> Any:
    found = usual(law, draft, *rest)
    more = torch.where(draft.depth >= 2, 1.2, 1.0)[..., None]
    return replace(found, accept=(found.accept * more).clamp_max(1))


def tested_number(_: Any, law: Any, verdicts: Any, path: Any, noise: Any, place: Any) -> Any:
    u = noise.at((place + path.count)[:, None], ACCEPT_SLOT)[:, 0, 0]
    return sample(at_node(verdicts.residual, path.last), u)


def largest_last(usual: Any, law: Any, verdicts: Any, *rest: Any) -> Any:
    return usual(law, replace(verdicts, residual=largest(verdicts.residual)), *rest)


def repeating(period: int) -> Any:
    return judging(tests=lambda _, noise, at, count: noise.at(at % period, ACCEPT_SLOT, count))


# (t1) From depth 4 on, the acceptance number is that of the level above.
DeepTwin = judging(tests=level_above)
# A fifth more is accepted from the third level on.
DeepGenerous = judging(verdicts=generous)
# The code behind the path is drawn with the number that rejected its draft.
TestedNumber = judging(last_code=tested_number)
# (w2) The residual is cut to its 64 largest codes, once the path is known.
LargestLast = judging(last_code=largest_last)
# (w3) Acceptance numbers repeat within an image.
SixteenNumbers = repeating(16)
# Right: tests read a plug-in's own numbers.
OwnNumbers = judging(tests=lambda _, noise, places, count: noise.at(places, OWN_SLOT, count))

# ---- rules --------------------------------------------------------------------------------------


def in_logs(found: Any, p: Any, q: Any, x: Any) -> Any:
    """The ratio as a difference of logarithms."""
    if q is None:
        return found.accept
    ratio = (pick(p, x).clamp_min(1e-30).log() - pick(q, x).clamp_min(1e-30).log()).exp()
    return torch.where(pick(q, x) > 0, ratio.clamp_max(1), 0.0)


# Every entry of the residual gets 0.002 more.
Padded = finds(residual=lambda found, p, q, x: normalised(found.residual + 0.002, p))
# (w2) The residual is cut to its 64 largest codes.
LargestLeft = finds(residual=lambda found, p, q, x: normalised(largest(found.residual), p))
InLogs = finds(accept=in_logs, strict=in_logs)  # right
# Right: min(1, p / q)^1, which is exact but for the rounding of its bound.
Power = finds(bound=lambda found, *_: torch.full_like(found.bound, 5e-9))
