"""Parts of decoders with one planted error each, which no verdict may call exact, and right ones,
which none may call broken.

They are the real parts with methods that the contracts name overridden (`changed`, `judging`,
`finds`); everything else stays as it is.
"""

from copy import copy
from dataclasses import replace
from types import new_class
from unittest import mock

import torch

from decoders.cache import additive_mask
from decoders.distribution import drop_sibling, probabilities
from decoders.loops import speculative
from decoders.loops.duo import Duo
from decoders.loops.speculative import Speculative
from decoders.noise import ACCEPT_SLOT, DRAFT_SLOT, sample
from decoders.propose.drafters.eagle import Eagle
from decoders.propose.jacobi import Jacobi
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.propose.window import step_uniforms
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import TokenVerifier


def changed(base, **own):
    """`base` with methods of one's own, which are given the usual one, and then its arguments."""

    def method(name, change):
        return lambda self, *args, **kwargs: change(
            getattr(super(made, self), name), *args, **kwargs
        )

    methods = {name: method(name, change) for name, change in own.items()}
    methods["__module__"] = base.__module__
    made = new_class(base.__name__, (base,), exec_body=lambda body: body.update(methods))
    return made


def judging(**own):
    """The loop with a verifier around the rule that has these methods."""
    kind = changed(TokenVerifier, **own)

    def make(model, sampling, proposer=None, verifier=None):
        rule = getattr(verifier, "rule", None)  # none: a verifier of whole drafts stays
        return Speculative(model, sampling, proposer, verifier if rule is None else kind(rule))

    return make


def finds(base=Exact, **fields):
    """The rule with what it finds changed: functions of that, p, q and x."""

    def test(usual, p, q, x):
        found = usual(p, q, x)
        return replace(found, **{name: own(found, p, q, x) for name, own in fields.items()})

    return changed(base, test=test)


def settling(probabilities):
    """The loop with another law of the target."""

    def verify_and_commit(usual, *args):
        with mock.patch.object(speculative, "probabilities", probabilities):
            return usual(*args)

    return changed(Speculative, verify_and_commit=verify_and_commit)


# ---- drafters -----------------------------------------------------------------------------------


def answering(change):
    """A drafter whose logits after the root are what `change` makes of them."""

    def begin(usual, *args):
        session = usual(*args)
        advance = session.advance
        session.advance = lambda *given: change(advance(*given), *given)
        return session

    return changed(Eagle, begin=begin)


def without_first(logits, *_):
    return logits.clone().index_fill_(1, torch.tensor([0]), torch.nan)


def flatter(logits, hidden, codes, count, position):
    return torch.where((count == 1)[:, None], 0.5 * logits, logits)


NoLogit = answering(without_first)  # one of the drafter's logits is NaN
# Right, and breaks the contract: q is flatter where the last step accepted nothing. Numbers of
# positions behind the rejected one are new ones then, so that the output is exact.
Adaptive = answering(flatter)


def indexed(usual, *args):
    session = usual(*args)
    session.rows, advance = torch.arange(args[0].batch), session.advance
    session.advance = lambda *given: advance(*given)[session.rows]
    return session


# Where a row is refilled, its index becomes that of the new image alone, 0.
RowIndex = changed(Eagle, begin=indexed)


def remembering(usual, *args):
    session, old = usual(*args), {}
    advance, expand = session.advance, session.expand

    def advanced(hidden, codes, count, position):
        logits, root = advance(hidden, codes, count, position).clone(), position + count
        for code, where in old.get("drafts", []):
            held = 1.5 * (where == root).float()
            logits.scatter_add_(1, code[:, None], -held[:, None].to(logits))
        old["drafts"], old["position"] = [], root
        return logits

    def expanded(codes, nodes, parents, depth):
        if depth >= 2:
            old["drafts"] = [*old["drafts"], (codes[:, 0], old["position"] + depth - 1)]
        return expand(codes, nodes, parents, depth)

    session.advance, session.expand = advanced, expanded
    return session


# (t2) What was drafted at a position as a second level, and was rejected or stands now, is told
# less likely there once the root has come to it.
DeepRejected = changed(Eagle, begin=remembering)


def shaken(numbers):
    """A drafter whose logits are shaken by the generator that `numbers` gives a batch, and whose q
    is what they give."""

    def begin(usual, *args):
        session, generator = usual(*args), numbers()
        advance = session.advance

        def advanced(*given):
            logits = advance(*given)
            return logits + torch.randn(logits.shape, generator=generator)

        session.advance = advanced
        return session

    return changed(Eagle, begin=begin)


GENERATOR = torch.Generator().manual_seed(3)
OwnGenerator = shaken(lambda: GENERATOR)  # right, with random numbers of its own
OwnSeed = shaken(lambda: torch.Generator().manual_seed(3))  # right: the same ones in every batch

# ---- trees --------------------------------------------------------------------------------------


def with_rows(power):
    """Drafts are drawn from q^power with Gumbel rows, q is declared."""

    def draw(_, dist, level, noise, position):
        rows = noise.gumbel(position, dist.shape[-1], DRAFT_SLOT)[:, None]  # [B, 1, V]
        return (power * dist.log() + rows).topk(level.count, -1).indices

    return changed(Static, draw=draw)


Sharper = with_rows(1.05)  # (t3)
Rows = with_rows(1.0)  # right, and not to be enumerated


class HalfSums(Static):
    """(w4) Drafts are drawn by sums in the model's dtype; q is declared in float32."""

    def __init__(self, model, choices):
        super().__init__(model, choices)
        self.dtype = model.dtype

    def draw(self, dist, level, noise, position):
        drawn = []
        for u in noise.of_nodes(position, DRAFT_SLOT, dist.shape[1], level.count).unbind(-1):
            sums = dist.to(self.dtype).cumsum(-1)
            limit = u.expand(dist.shape[:-1])[..., None].to(self.dtype) * sums[..., -1:]
            drawn.append((sums > limit).int().argmax(-1))
            dist = drop_sibling(dist, drawn[-1])
        return torch.stack(drawn, -1)


def noisy(usual, session, root_logits, sampling, noise, position):
    u = noise.at(position, ACCEPT_SLOT).expand_as(root_logits)
    shift = 4 * torch.sin(40 * u + torch.arange(root_logits.shape[-1]))
    return usual(session, root_logits + shift, sampling, noise, position)


# A draft is the drafter's likeliest code, and the soft q is declared.
Argmax = changed(Static, draw=lambda _, dist, level, *rest: dist.topk(level.count, -1).indices)
# (10) Children that depend on the uniform they are tested with.
RandomDynamic = changed(Dynamic, grow=noisy)

# ---- loops --------------------------------------------------------------------------------------


class StaleCache(Speculative):
    """(9) The accepted path's keys and values stay where the tree wrote them."""

    def verify_and_commit(self, state, *args):
        with mock.patch.object(state.cache, "commit"):
            return super().verify_and_commit(state, *args)


class StaleRow(Speculative):
    """(t4) After step 11 the keys and values of row 1 stay where the tree wrote them."""

    def verify_and_commit(self, state, *rest):
        commit, data = state.cache.commit, state.cache.data
        if int(state.trace.steps.max()) < 11 or data.shape[2] < 2:
            return super().verify_and_commit(state, *rest)

        def stale(source, destination):
            kept = data[:, :, 1].clone()
            commit(source, destination)
            data[:, :, 1] = kept

        with mock.patch.object(state.cache, "commit", stale):
            return super().verify_and_commit(state, *rest)


class TakesOver(Speculative):
    """An image that takes over a row of another sees the padding of its caption."""

    def generate(self, text, noise, *, pairs=0, rows=None):
        self.refilled = rows is not None and rows < text.batch
        return super().generate(text, noise, pairs=pairs, rows=rows)

    def begin(self, text, *rest):
        if self.refilled and text.batch == 1:
            text = replace(text, mask=torch.ones_like(text.mask))
        return super().begin(text, *rest)


class Last96(Speculative):
    """(w5) Attention sees the prefix, the last 96 codes and the draft."""

    def draft(self, state):
        draft, mask = super().draft(state)
        slots, prefix = torch.arange(mask.shape[-1]), self.model.target.prefix
        first = (prefix + state.length - 96).repeat(self.sampling.guidance_rows)  # [R]
        seen = (slots < prefix) | (slots >= first[:, None])  # [R, S]
        return draft, torch.minimum(mask, additive_mask(seen)[:, None])


class KeptOn(Duo):
    """(24) What the drafter went on with is kept after a rejection, where it stands."""

    def verify_and_commit(self, state, *given):
        done = super().verify_and_commit(state, *given)
        state.session.all_accepted.fill_(True)
        return done


def half(p):
    return None if p is None else p.bfloat16().float()


def half_law(logits, sampling):
    p = half(probabilities(logits, sampling))
    return p / p.sum(-1, keepdim=True)


# (6) The loop hands over the target's distribution rounded to bf16, then normalised.
HalfTarget = settling(half_law)
# (7) top-k and top-p for the drafter only.
UnfilteredTarget = settling(
    lambda logits, sampling: probabilities(logits, replace(sampling, top_k=0, top_p=1.0))
)

# ---- proposers ----------------------------------------------------------------------------------


class KeptTwice(Jacobi):
    """(w1) A draft that came out alike in two windows running stays; the newest law is declared."""

    def begin(self, prefill):
        made = copy(self)
        size = prefill.model.target.length + 2 * self.nodes
        made.codes = torch.full((len(prefill.first), size), -1)  # by position
        made.alike = torch.zeros_like(made.codes)  # windows in a row with that code
        return super(KeptTwice, made).begin(prefill)

    def draw(self, law, old, noise, positions):
        codes, alike = self.codes.gather(1, positions), self.alike.gather(1, positions)
        fresh = super().draw(law, old, noise, positions)
        new = torch.where(old.drafted & (alike >= 2), codes, fresh)
        self.alike.scatter_(1, positions, torch.where(new == codes, alike + 1, 1))
        self.codes.scatter_(1, positions, new)
        return new


class LevelsTwice(Jacobi):
    """At levels 9 to 12 of the window a draft is drawn with the number of the level above."""

    def draw(self, law, old, noise, positions):
        level = 1 + torch.arange(positions.shape[1])
        at = torch.where((level >= 9) & (level <= 12), positions - 1, positions)
        return sample(law, step_uniforms(noise, at, DRAFT_SLOT)[..., 0])


class Squared(Jacobi):
    """Right, but a number goes through a function that has no threshold to be seen."""

    def draw(self, law, old, noise, positions):
        noise.at(positions, DRAFT_SLOT).square()
        return super().draw(law, old, noise, positions)
