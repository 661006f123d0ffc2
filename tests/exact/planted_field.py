"""Errors that released code or papers of the field make, one planted in each decoder here."""

from dataclasses import replace
from typing import Any

import torch

from decoders.api import Draft
from decoders.cache import added
from decoders.distribution import pick
from decoders.loops.duo import Duo
from decoders.loops.speculative import Speculative
from decoders.noise import DRAFT_SLOT
from decoders.propose.jacobi import Jacobi
from decoders.verify.token_verifier import at_node, children_of
from tests.exact.planted import finds, judging


class KeptRow(Speculative):
    """(19) Keys and values of the rejected draft stay: the corrected code is never run."""

    def forward(self, run: Any, draft: Draft, mask: Any) -> Any:
        root = getattr(run, "rejected", draft.codes[:, 0])
        stale = replace(draft, codes=torch.cat([root[:, None], draft.codes[:, 1:]], 1))
        return draft, *super().forward(run, stale, mask)[1:]

    def verify_and_commit(self, run: Any, draft: Draft, *rest: Any) -> Any:
        done = super().verify_and_commit(run, draft, *rest)
        codes, valid = children_of(draft)
        nodes, count = done[3], done[4]
        last = nodes.gather(1, count[:, None])[:, 0]
        root = run.output.codes.gather(1, run.output.count[:, None] - 1)[:, 0]
        tested = at_node(valid, last)[:, 0]
        run.rejected = torch.where(tested, at_node(codes, last)[:, 0], root)
        return done


def even_place(usual: Any, law: Any, verdicts: Any, path: Any, noise: Any, place: Any) -> Any:
    odd = (place + path.count) % 2
    return usual(law, verdicts, path, noise, place - odd)


# (20) Two places in a row read the same number for their last code.
RowTwice = judging(last_code=even_place)
# (22) Commits a code of probability zero now and then.
Outside = finds(accept=lambda found, p, q, x: torch.where(pick(p, x) == 0, 0.2, found.accept))


class EmptySlot(Speculative):
    """(23) The slot behind the draft, which was never written, is visible to attention."""

    def masked(self, run: Any, draft: Draft) -> Any:
        draft, mask = super().masked(run, draft)
        behind = self.model.target.prefix + run.length - 1 + draft.codes.shape[1]  # [B]
        slot = torch.arange(mask.shape[-1]) == behind.repeat(self.sampling.guidance_rows)[:, None]
        return draft, torch.maximum(mask, added(slot)[:, None])


class KeptOn(Duo):
    """(24) What the drafter went on with is kept after a rejection, where it stands."""

    def stands(self, run: Any, count: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(count).bool()

    def verify_and_commit(self, run: Any, *given: Any) -> Any:
        done = super().verify_and_commit(run, *given)
        run.session.stands.copy_(self.stands(run, done[4]))
        return done


class KeptBehind(KeptOn):
    """Not wrong: what goes on from a last draft that was rejected is kept under the corrected code.
    Its law was fixed before the test, and is declared as it was."""

    def stands(self, run: Any, count: torch.Tensor) -> torch.Tensor:
        root = run.output.codes.gather(1, run.output.count[:, None] - 1)
        run.session.codes[:, :1] = root
        return count == self.proposer.depth


class Squared(Jacobi):
    """Not wrong, but a number goes through a function that has no threshold to be seen."""

    def draw(self, law: Any, left: Any, noise: Any, places: torch.Tensor) -> torch.Tensor:
        noise.at(places, DRAFT_SLOT).square()
        return super().draw(law, left, noise, places)
