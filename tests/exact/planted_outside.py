"""Parts with one planted error each that shows outside of the middle of a small image: in the first
code, at the deepest level, in the code behind the draft, in late steps and in other rows (see
`tests.exact.planted`)."""

from dataclasses import replace
from unittest import mock

import torch

from decoders.distribution import guided, normalised
from decoders.loops import base_loop, speculative
from decoders.loops.speculative import Speculative
from decoders.propose.trees.static import Static
from decoders.verify.block import Block
from decoders.verify.corrected import Corrected
from decoders.verify.exact import Exact
from decoders.verify.token_verifier import children_of
from tests.exact.planted import answering, changed, judging

# ---- guidance and top-k -------------------------------------------------------------------------


def first_code(**changes):
    """The loop whose first code has another setting of sampling."""

    def begin(usual, *args, **options):
        choose = base_loop.choose
        other = lambda logits, sampling, u: choose(logits, replace(sampling, **changes), u)  # noqa: E731
        with mock.patch.object(base_loop, "choose", other):
            return usual(*args, **options)

    return changed(Speculative, begin=begin)


def unguided_first(usual, *args, **options):
    conditional = lambda logits, cfg: guided(logits, 1.0).chunk(2)[0]  # noqa: E731
    with mock.patch("decoders.distribution.guided", conditional):
        return usual(*args, **options)


def unguided_at(where):
    """The loop with the conditional logits at the nodes of a draft that `where` selects, [B, N +
    1]."""

    def verify_and_commit(usual, state, draft, hidden, logits):
        loop = usual.__self__
        alone = loop.model.target.logits(hidden.chunk(loop.sampling.guidance_rows)[0]).float()
        there = where(draft)[..., None]
        return usual(state, draft, hidden, torch.where(there, alone, logits))

    return changed(Speculative, verify_and_commit=verify_and_commit)


def leaves(draft):
    return ~children_of(draft)[1].any(-1)


def unfiltered_bonus(usual, probs, verdicts, path, *rest):
    every = torch.where(
        (path.count == path.order.shape[1])[:, None, None],
        probs.logits.softmax(-1),
        verdicts.residual,
    )
    return usual(probs, replace(verdicts, residual=every), path, *rest)


def late_unguided(usual, state, draft, hidden, logits):
    loop = usual.__self__
    alone = loop.model.target.logits(hidden.chunk(loop.sampling.guidance_rows)[0]).float()
    late = (state.length[:, None] + draft.depth >= 150)[..., None]
    return usual(state, draft, hidden, torch.where(late, alone, logits))


def third_row(usual, probs, draft, noise, position, state):
    side = int(noise.uniform.shape[1] ** 0.5)
    there = (position[:, None] + draft.depth) // side == 2
    every = torch.where(there[..., None], probs.logits.softmax(-1), probs.p)
    return usual(replace(probs, p=every), draft, noise, position, state)


UnguidedFirst = changed(Speculative, begin=unguided_first)
LateUnguided = changed(Speculative, verify_and_commit=late_unguided)  # from position 150 on
UnfilteredThirdRow = judging(verify=third_row)  # of the image
UnfilteredFirst = first_code(top_k=0)
UnguidedDeepest = unguided_at(lambda draft: draft.depth == draft.levels - 1)
UnguidedFifth = unguided_at(lambda draft: draft.depth == 4)
UnguidedBonus = unguided_at(leaves)
UnfilteredBonus = judging(last_code=unfiltered_bonus)

# ---- corrections, siblings ----------------------------------------------------------------------


def late_correction(usual, probs, draft, codes, valid, position):
    found = usual(probs, draft, codes, valid, position)
    other = normalised(probs.p.scatter(-1, codes[..., :1], 0.0), probs.p)
    late = (position[:, None] + draft.depth >= 4) & valid[..., 0]
    return replace(found, residual=torch.where(late[..., None], other, found.residual))


# The residual of a chain from position 4 on is p without the draft.
LateCorrection = judging(verdicts=late_correction)


def forgetting_the_third(depth):
    """From this depth on the residual forgets the third sibling."""

    def verdicts(usual, probs, draft, codes, valid, position):
        found = usual(probs, draft, codes, valid, position)
        before = usual(probs, draft, codes, valid & (torch.arange(valid.shape[-1]) < 2), position)
        wrong = valid[..., 2:].any(-1) & (draft.depth >= depth)
        residual = torch.where(wrong[..., None], before.residual, found.residual)
        return replace(found, residual=residual)

    return judging(verdicts=verdicts)


ThirdBelow, ThirdDeep = forgetting_the_third(1), forgetting_the_third(2)


def sharing(number, begin=0):
    """Block verification in which, from the position `begin` on, a level's number is that of the
    level before."""

    def judge(usual, p, draft, noise, position):
        at = noise.at

        def other(positions, slot, *rest):
            if positions.ndim == 2 and positions.shape[-1] > number:
                wrong = (torch.arange(positions.shape[-1]) == number) & (positions >= begin)
                positions = torch.where(wrong, positions - 1, positions)
            return at(positions, slot, *rest)

        with mock.patch.object(type(noise), "at", lambda _, *given: other(*given)):
            return usual(p, draft, noise, position)

    return changed(Block, judge=judge)


FourthOfBlock, LateSecond = sharing(3), sharing(1, begin=32)


# ---- late steps, deep commits, other rows -------------------------------------------------------


def committing(change):
    """The loop whose cache is given what `change` makes of rows, sources and destinations."""

    def verify_and_commit(usual, state, draft, *rest):
        commit = state.cache.commit

        def other(source, destination):
            commit(*change(usual.__self__, state, source.clone(), destination, draft))

        with mock.patch.object(state.cache, "commit", other):
            return usual(state, draft, *rest)

    return changed(Speculative, verify_and_commit=verify_and_commit)


def late_row(loop, state, source, destination, draft):
    late = int(state.trace.steps.max()) >= 60 and len(source) > 2
    source[1:2] = destination[1:2] if late else source[1:2]
    return source, destination


def deep_guidance(loop, state, source, destination, draft):
    half = len(source) // 2
    source[half:, 4:] = destination[half:, 4:]
    return source, destination


def path_of_row_0(loop, state, source, destination, draft):
    step = source - destination
    many = len(source) // loop.sampling.guidance_rows > 4
    return (destination + step[:1] if many else source), destination


def first_nodes(loop, state, source, destination, draft):
    half, root = len(source) // 2, destination[:, :1]
    for depth in range(3, source.shape[1]):
        first = (draft.depth == depth).int().argmax(-1)
        source[half:, depth] = root[half:, 0] + first
    return source, destination


def second_pad(usual, *args, **options):
    state = usual(*args, **options)
    state.open[:, 1 : usual.__self__.model.target.prefix] = 0.0
    return state


def seventh_row(usual, text, *args, **options):
    row = torch.arange(text.batch)
    text = replace(text, mask=text.mask[torch.where(row >= 6, 0, row)])
    return usual(text, *args, **options)


class ThirdRefilled(Speculative):
    """An image that takes over the third row sees its caption's padding."""

    def generate(self, text, noise, *, pairs=0, rows=None):
        put = speculative.put_row

        def other(state, row, spare):
            put(state, row, spare)
            if row == 2:
                state.open[row :: len(state.length), : self.model.target.prefix] = 0.0

        with mock.patch.object(speculative, "put_row", other):
            return super().generate(text, noise, pairs=pairs, rows=rows)


SeventhRow = changed(Speculative, begin=seventh_row)  # rows from it on are padded as the first
FirstNodes = committing(first_nodes)  # of each level from the third on, in the rows of guidance
SecondPad = changed(Speculative, begin=second_pad)  # padding is seen, but for its first column
LateRow = committing(late_row)
DeepGuidance = committing(deep_guidance)
PathOfRow0 = committing(path_of_row_0)


def fifth_row(usual, noise, at, count):
    numbers = usual(noise, at, count).clone()
    numbers[4:] = numbers[:1]
    return numbers


FifthRow = judging(tests=fifth_row)

# ---- drafts of another q ------------------------------------------------------------------------


class HalfDraws(Static):
    """Drafts are drawn from q in the model's dtype; q is declared in float32."""

    def __init__(self, model, choices):
        super().__init__(model, choices)
        self.dtype = model.dtype

    def draw(self, dist, *rest):
        return super().draw(dist.to(self.dtype).float(), *rest)


class HalfSiblings(HalfDraws):
    """The same of the drafts after a node's first."""

    def draw(self, dist, level, noise, position):
        usual = Static.draw(self, dist, level, noise, position)
        return torch.cat([usual[..., :1], super().draw(dist, level, noise, position)[..., 1:]], -1)


class HalfBelow(HalfDraws):
    """The same of the second level of a draft."""

    def grow(self, session, root_logits, sampling, noise, position):
        self.first = position
        return super().grow(session, root_logits, sampling, noise, position)

    def draw(self, dist, level, noise, position):
        other = Static if bool((position == self.first).all()) else HalfDraws
        return other.draw(self, dist, level, noise, position)


class NeverDrafted(Static):
    """A code of 1,024 is never drafted, though q declares it."""

    def draw(self, dist, *rest):
        never = torch.arange(dist.shape[-1]) == 700
        return super().draw(dist.masked_fill(never, 0.0), *rest)


class MoreThanQ(Corrected):
    """Says that it accepts omega p, also where that is more than q."""

    def __init__(self, model):
        del model

    def mass(self, p, q):
        return 1.2 * p


class Pair(Exact):
    """Returns acceptance and residual, and nothing else."""

    def test(self, p, q, x):
        found = super().test(p, q, x)
        return found.accept, found.residual


Probabilities = answering(lambda logits, *_: logits.softmax(-1))  # in place of logits; exact
