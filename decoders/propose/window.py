"""The window of Jacobi decoding (2410.01699, METHODS2 (a)): drafts at the next W places, without a
drafter.

A forward over a window tells the target's law at every place, read after the drafts of that step.
The next window stands on what is left of these laws. Its codes are drawn from them (`draw`, which
the methods differ in), and where there is none yet from an initial law (`decoders.propose.fresh`).

A decoder of this family is exact (METHODS2, lemma J) if at every place the draft has the law that
is declared for it, given all that happened at earlier places. A place is tested once, with a
uniform of its own: that is the verifier's part. Rows of a batch advance alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, Draft, Seen, Start
from decoders.kinds import Within
from decoders.noise import OVERRUN
from decoders.propose.fresh import POINTS, Places, blank, copied, known_init
from decoders.propose.trees.static import Static, drop_impossible


@dataclass(frozen=True)
class Left:
    """What the last step left at the W places of the window."""

    p: Tensor  # [B, W, V], the target's law; zeros where it said nothing
    told: Tensor  # [B, W] bool, whether it said anything
    codes: Tensor  # [B, W] int64, the old draft
    q: Tensor  # [B, W, V], the law that was declared for it
    drafted: Tensor  # [B, W] bool, whether there was one
    last: Tensor  # [B, V], the furthest law of the last step; zeros before the first
    greedy: bool  # temperature 0


class Window:
    """window: L, codes of a forward, the root with them; init: of drafts at new places, see
    `decoders.propose.fresh`. A subclass says how codes are drawn."""

    reads_laws = True
    couples = False  # whether a draft hangs on earlier drafts at its place
    candidates, levels = 1, 0  # K, on how many levels of the tree

    def __init__(
        self, model: Any, window: Annotated[int, Within(2, OVERRUN)] = 16, init: str = "uniform"
    ) -> None:
        del model  # a start has it
        self.init = known_init(init)
        self.depth = window - 1
        self.lattice = Static(None, lattice(self.depth, self.candidates, self.levels))
        self.nodes, self.branching = self.lattice.nodes, self.lattice.branching
        self.lines = lines_of(self.lattice.parent, self.lattice.level_of)  # [N + 1, D + 1]
        own = [(len(path) - 1) * self.candidates + path[-1] for path in self.lattice.paths]
        self.pick = torch.tensor(own)  # [N], of the level's candidates

    def begin(self, start: Start) -> WindowSession:
        return WindowSession(self, start)

    def draw(self, law: Tensor, left: Left, noise: Any, places: Tensor) -> Tensor:
        """Drafts [B, W] from law [B, W, V]."""
        raise NotImplementedError("a window says how its codes are drawn")

    def declared(self, law: Tensor, left: Left, codes: Tensor) -> Tensor:
        """The laws [B, W, V] that are declared for the drafts."""
        return law

    def siblings(
        self, codes: Tensor, law: Tensor, left: Left, noise: Any, places: Tensor
    ) -> Tensor:
        """Codes [B, W] -> [B, W, K], the first candidates and their siblings."""
        return codes[..., None]


class WindowSession:
    """It keeps nothing: all that it needs is in what was seen."""

    calls = 0

    def __init__(self, part: Window, start: Start) -> None:
        target, device = start.model.target, start.first.device
        if part.couples and start.noise.renewed:
            raise DecoderError(
                f"proposer {part} keeps drafts from step to step, and a verifier that looks ahead "
                "has selected them by then; use proposer=jacobi, or acceptance=exact"
            )
        self.part, self.greedy, self.first = part, start.sampling.greedy, start.law
        self.shape = part.lattice.shape_on(device)
        self.lines, self.pick = part.lines.to(device), part.pick.to(device)
        self.span = torch.arange(part.depth, device=device)  # [W]
        self.kind = Places.of(target)

    def propose(self, seen: Seen, noise: Any, place: Tensor) -> Draft:
        """See `decoders.api.ProposerSession`."""
        part = self.part
        assert seen.image is not None  # `Proposer.reads_laws`
        left = self.left(seen)
        places = place[:, None] + self.span  # [B, W]
        law = torch.where(left.told[..., None], left.p, blank(part.init, left.last, self.first))
        if self.greedy:
            likeliest = left.told | (part.init == "sample")
            law = torch.where(likeliest[..., None], certain(law.argmax(-1), law), law)
        root = seen.codes.gather(1, seen.count[:, None] - 1)  # [B, 1]
        fresh = ~left.told
        codes = part.draw(law, left, noise, places)
        codes, known = copied(part.init, self.kind, codes, fresh, root, seen.image, places)
        point = known | (fresh & (part.init in POINTS))  # drafts that were not drawn from `law`
        declared = part.declared(law, left, codes)
        declared = torch.where(point[..., None], certain(codes, law), declared)
        every = part.siblings(codes, declared, left, noise, places)  # [B, W, K]
        return self.draft(root, every, declared)

    def left(self, seen: Seen) -> Left:
        """What the last step says of the places after its root. Level i of the new window stood on
        level count + 1 + i; its law is read on the committed row, or on the main row below it."""
        old, p = seen.draft, seen.p
        assert old is not None and p is not None and seen.nodes is not None
        depth = self.part.depth
        level = seen.count[:, None] + self.span  # [B, W], of the node that a law is read at
        row = self.lines[seen.nodes[:, -1]]  # [B, D + 1]
        main, below = (self.lines[0][i.clamp_max(depth)] for i in (level, level + 1))  # [B, W]
        laws = pick_rows(p, row.gather(1, level.clamp_max(depth)))
        told = (level <= depth) & (laws.sum(-1) > 0)
        drafted = told & (level < depth)
        laws = torch.where(told[..., None], laws, 0.0)
        last = pick_rows(p, row[:, -1:])[:, 0]
        codes = old.codes.gather(1, below)
        q = torch.zeros_like(laws) if old.q is None else pick_rows(old.q, main)
        return Left(laws, told, codes, q, drafted, last, self.greedy)

    def draft(self, root: Tensor, every: Tensor, law: Tensor) -> Draft:
        """root [B, 1], candidates [B, W, K], law [B, W, V] of each level."""
        codes = torch.cat([root, every.flatten(1).index_select(1, self.pick)], 1)  # [B, N + 1]
        children = self.shape.children.expand(len(codes), -1, -1)
        if self.greedy:
            return self.shape.draft(codes, children, None)
        q = F.pad(law, (0, 0, 0, 1)).index_select(1, self.shape.depth[0])  # [B, N + 1, V]
        if self.part.branching > 1:
            children = drop_impossible(children, codes, q)
        return self.shape.draft(codes, children, q)


def certain(codes: Tensor, like: Tensor) -> Tensor:
    """Codes [...] -> laws [..., V] that are 1 there."""
    return torch.zeros_like(like).scatter(-1, codes[..., None], 1.0)


def pick_rows(values: Tensor, rows: Tensor) -> Tensor:
    """values [B, N, V], rows [B, n] -> [B, n, V]."""
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[-1]))


def fresh_uniforms(noise: Any, places: Tensor, slot: int, count: int = 1) -> Tensor:
    """Uniforms [B, W, count], new ones in every step."""
    return noise.at(places, slot, count, noise.round[:, None])


def lattice(depth: int, candidates: int, levels: int) -> list[tuple[int, ...]]:
    """Paths of the draft tree: `candidates` children of every node on the first levels, then a
    chain below first candidates."""
    if levels > depth:
        raise DecoderError(
            f"the window has {depth} levels of drafts, found {levels} with several candidates; "
            "raise proposer.window or lower proposer.levels"
        )
    paths: list[tuple[int, ...]] = []
    above: Sequence[tuple[int, ...]] = [()]
    for _ in range(levels):
        above = [(*path, rank) for path in above for rank in range(candidates)]
        paths += above
    return paths + [(0,) * size for size in range(levels + 1, depth + 1)]


def lines_of(parent: Sequence[int], level: Sequence[int]) -> Tensor:
    """[N + 1, D + 1]: a row through every node: what is above it, then first children, and where
    these end the main row, that of first candidates."""
    depth = max(level)
    main = [level.index(d) for d in range(depth + 1)]
    below: dict[int, int] = {}
    for node in range(len(parent) - 1, 0, -1):
        below[parent[node]] = node  # the first child comes last
    rows = []
    for node in range(len(parent)):
        row, here = list(main), node
        while here:
            row[level[here]], here = here, parent[here]
        here = node
        while here in below:
            here = below[here]
            row[level[here]] = here
        rows.append(row)
    return torch.tensor(rows)
