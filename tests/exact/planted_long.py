"""Parts with one planted error each that shows in long images, in many rows, at nodes of many
children or after certain steps (see `tests.exact.planted`)."""

from dataclasses import replace
from unittest import mock

import torch

from decoders.api import Acceptance, DecoderError
from decoders.distribution import code_logits
from decoders.loops import speculative
from decoders.loops.speculative import Speculative
from decoders.noise import DRAFT_SLOT, SLOTS, sample
from decoders.propose.trees import static
from decoders.propose.trees.static import Static
from decoders.verify.exact import Exact
from decoders.verify.lantern import Lantern
from decoders.verify.token_verifier import TokenVerifier
from tests.exact.planted import HalfSums, changed, finds, judging

# ---- numbers of one's own -----------------------------------------------------------------------


def numbers(of_positions, base=Speculative):
    """The loop with its own random numbers: `of_positions` makes [B, L', SLOTS] of a batch B."""

    def generate(usual, text, noise, **options):
        if noise.key is None:
            raise DecoderError("needs noise with a key")
        table = of_positions(text.batch, torch.arange(noise.uniform.shape[1]))
        return usual(text, replace(noise, uniform=table), **options)

    return changed(base, generate=generate)


def ring(batch, position):
    return torch.rand(batch, 16, SLOTS)[:, position % 16]


def rotations(batch, position):
    turn = (0.37 * (position // 4) ** 2)[:, None]
    return (torch.rand(batch, 4, SLOTS)[:, position % 4] + turn) % 1.0


Ring, Rotations = numbers(ring), numbers(rotations)
OwnNumbers = numbers(lambda batch, position: torch.rand(batch, len(position), SLOTS))  # right


class FourthLevel(Static):
    """Drafts by random numbers of its own, from level 4 on out of q^2."""

    def grow(self, session, root_logits, sampling, noise, position):
        self.first = position
        return super().grow(session, root_logits, sampling, noise, position)

    def draw(self, dist, level, noise, position):
        deep = bool((position - self.first >= 3).all())
        law = dist**2 if deep else dist
        return sample(law, torch.rand(law.shape[:-1]))[..., None]


class Float16Sums(HalfSums):
    """Drafts are drawn by sums in float16."""

    def __init__(self, model, choices):
        super().__init__(model, choices)
        self.dtype = torch.float16


# ---- siblings -----------------------------------------------------------------------------------


def first_for_fifth(usual, noise, at, count):
    u = usual(noise, at, count)
    return torch.cat([u[..., :4], u[..., :1], u[..., 5:]], -1) if count > 4 else u


FifthSibling = judging(tests=first_for_fifth)


def late_third(usual, probs, draft, codes, valid, position):
    found = usual(probs, draft, codes, valid, position)
    before = usual(probs, draft, codes, valid & (torch.arange(valid.shape[-1]) < 2), position)
    late = valid[..., 2:].any(-1) & (position[:, None] + draft.depth > 16)
    residual = torch.where(late[..., None], before.residual, found.residual)
    return replace(found, residual=residual)


LateThird = judging(verdicts=late_third)  # behind position 16 the residual forgets it


class Independent(Static):
    """Siblings are drawn independently, so that two of them may be alike."""

    def grow(self, *given):
        with mock.patch.object(static, "drop_impossible", lambda children, *_: children):
            return super().grow(*given)

    def draw(self, dist, level, noise, position):
        u = noise.of_nodes(position, DRAFT_SLOT, dist.shape[1], level.count)
        return torch.stack([sample(dist, each) for each in u.unbind(-1)], -1)


class WholeQ(TokenVerifier):
    """Right for these: each of them is tested with the whole q."""

    def __init__(self, model):
        super().__init__(Exact())

    def verdicts(self, probs, draft, codes, valid, position):
        p, columns = probs.p, []
        for j, one in enumerate(codes.unbind(-1)):
            test = self.rule.test(p, draft.q, one)
            columns.append([test.accept, test.strict, test.tv_shift, test.bound])
            p = torch.where(valid[..., j, None], test.residual, p)
        accept, strict, *away = (torch.stack(each, -1) for each in zip(*columns, strict=True))
        return Acceptance(accept, strict, p, *away)


# ---- histories, rows ----------------------------------------------------------------------------


class AfterFour(TokenVerifier):
    """After four steps that accept one draft each, the next accepts all of its drafts."""

    def __init__(self, model):
        super().__init__(Exact())

    def begin(self, prefill):
        return torch.zeros_like(prefill.first)

    def verify(self, probs, draft, noise, position, state):
        usual, streak = self.rule, (state >= 4)[:, None]
        self.rule = finds(accept=lambda found, *_: torch.where(streak, 1.0, found.accept))(None)
        found = super().verify(probs, draft, noise, position, state)
        self.rule = usual
        state.copy_(torch.where(found.count == 1, state + 1, 0))
        return found


def eight_rows_up(usual, noise, at, count):
    u = usual(noise, at, count).clone()
    u[8:] = u[:-8].clone() if len(u) > 8 else u[8:]
    return u


EightRows = judging(tests=eight_rows_up)  # rows r and r + 8 share the numbers of tests


class SecondRefill(Speculative):
    """The image that takes a row after its second one sees the padding of its caption."""

    def generate(self, text, noise, *, pairs=0, rows=None):
        put, times = speculative.put_row, {}

        def other(state, row, spare):
            put(state, row, spare)
            times[row] = times.get(row, 0) + 1
            if times[row] == 2:
                state.open[row :: len(state.length), : self.model.target.prefix] = 0.0

        with mock.patch.object(speculative, "put_row", other):
            return super().generate(text, noise, pairs=pairs, rows=rows)


# ---- barred codes, bounds -----------------------------------------------------------------------


def one_off(head, hidden, cfg, positions):
    return code_logits(head, hidden, cfg, positions + 1)


def barred_one_off(usual, *given):
    with mock.patch.object(speculative, "code_logits", one_off):
        return usual(*given)


BarredOneOff = changed(Speculative, forward=barred_one_off)
SmallBound = finds(Lantern, bound=lambda found, *_: torch.full_like(found.bound, 0.01))
SmallShift = finds(  # the same, and it does not say what it moves
    Lantern,
    bound=lambda found, *_: torch.full_like(found.bound, 0.01),
    tv_shift=lambda found, *_: torch.zeros_like(found.tv_shift),
)

# ---- temperature 0 ------------------------------------------------------------------------------


def late_greedy(usual, state, draft, hidden, logits):
    late = (state.length[:, None] + draft.depth >= 40)[..., None]
    return usual(state, draft, hidden, torch.where(late, logits.roll(1, -1), logits))


def last_of_ties(usual, probs, verdicts, path, *rest):
    if not probs.greedy:
        return usual(probs, verdicts, path, *rest)
    logits = probs.logits[torch.arange(len(path.last)), path.last]
    return logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)


LateGreedy = changed(Speculative, verify_and_commit=late_greedy)
LastOfTies = judging(last_code=last_of_ties)
