"""The window of Jacobi decoding (2410.01699, decoders.md (a)): drafts at the next W positions,
without a drafter.

A forward over a window gives the target's distribution at every position, given the drafts before
it. The next window reaches further, and its codes are drawn from those of these distributions that
lie within it (`draw`, in which the methods differ). Where there is no distribution yet a draft is
drawn from the uniform distribution of the codes that may stand there, which is declared: 1 / V
where all may, so it is accepted with min(1, V p(x)). So a structural code (Lumina's row ends) is
certain at its position, and is drafted nowhere else.

A decoder of this family is exact (decoders.md, lemma J) if at every position the draft has the
distribution that is declared for it, given all that happened at earlier positions. A position is
tested once, with a uniform of its own: that is the verifier's part. Rows of a batch advance alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, Draft, Prefill, Proposer, ProposerSession, StepOutput
from decoders.distribution import take
from decoders.kinds import Within
from decoders.noise import OVERRUN
from decoders.propose.trees.static import Static, drop_impossible

Codes = Annotated[int, Within(2, OVERRUN)]


@dataclass(frozen=True)
class OldWindow:
    """The window of the last step at the W positions of the new one."""

    p: Tensor  # [B, W, V], the target's distributions; zeros where the last forward gave none
    has_probs: Tensor  # [B, W] bool, whether it gave one
    codes: Tensor  # [B, W] int64, the old drafts
    q: Tensor  # [B, W, V], the distributions that were declared for them
    drafted: Tensor  # [B, W] bool, whether there was a draft
    image: Tensor  # [B, >= L] int64, codes by position, see `StepOutput.image`
    greedy: bool  # temperature 0


@dataclass(eq=False, repr=False)
class Window(Proposer):
    """window: L, codes of a forward, with the root and the tree of candidates. Exact as long as a
    subclass draws its codes (`draw`) from the distributions that it declares."""

    model: InitVar[Any]
    window: Codes = 16

    reads_probs = True
    couples = False  # whether a draft hangs on earlier drafts at its position
    candidates, levels = 1, 0  # K, on how many levels of the tree

    def __post_init__(self, model: Any) -> None:
        del model  # a session takes it from its prefill
        extra = sum(self.candidates**level - 1 for level in range(1, self.levels + 1))
        self.depth = self.window - 1 - extra
        self.lattice = Static(None, lattice(self.depth, self.candidates, self.levels))
        self.nodes, self.branching = self.lattice.nodes, self.lattice.branching
        self.lines = lines_of(self.lattice.parent, self.lattice.level_of)  # [N + 1, D + 1]
        ranks = [(len(path) - 1) * self.candidates + path[-1] for path in self.lattice.paths]
        self.pick = torch.tensor(ranks)  # [N], of the level's candidates

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}(window={self.depth + 1})"

    def begin(self, prefill: Prefill) -> WindowSession:
        return WindowSession(self, prefill)

    def draw(self, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor) -> Tensor:
        """Drafts [B, W], drawn from probs [B, W, V]."""
        raise NotImplementedError("a window says how its codes are drawn")

    def declared(self, probs: Tensor, old: OldWindow, codes: Tensor) -> Tensor:
        """The distributions [B, W, V] that are declared for the drafts."""
        return probs

    def siblings(
        self, codes: Tensor, probs: Tensor, old: OldWindow, noise: Any, positions: Tensor
    ) -> Tensor:
        """Codes [B, W] -> [B, W, K], the first candidates and their siblings."""
        return codes[..., None]


class WindowSession(ProposerSession):
    """Keeps nothing from step to step: all that it needs is in the last step's output."""

    def __init__(self, part: Window, prefill: Prefill) -> None:
        target, device = prefill.model.target, prefill.first.device
        if part.couples and prefill.noise.renewed:
            raise DecoderError(
                f"proposer {part} keeps drafts from step to step, and a verifier that looks ahead "
                "has selected them by then; use proposer=jacobi, or acceptance=exact"
            )
        self.part, self.greedy = part, prefill.sampling.greedy
        self.shape = part.lattice.shape_on(device)
        self.lines, self.pick = part.lines.to(device), part.pick.to(device)
        self.span = torch.arange(part.depth, device=device)  # [W]
        self.uniform = uniform_probs(target, prefill.probs.dtype, device)

    def propose(self, output: StepOutput, noise: Any, position: Tensor) -> Draft:
        part = self.part
        old = self.old_window(output)
        positions = position[:, None] + self.span  # [B, W]
        probs = draft_probs(old.p, old.has_probs, self.uniform, positions, self.greedy)
        root = output.codes.gather(1, output.count[:, None] - 1)  # [B, 1]
        codes = part.draw(probs, old, noise, positions)
        declared = part.declared(probs, old, codes)
        every = part.siblings(codes, declared, old, noise, positions)  # [B, W, K]
        return self.draft(root, every, declared)

    def old_window(self, output: StepOutput) -> OldWindow:
        """The last step's window at the new positions: level i of the new window was level
        count + 1 + i of the old one. Its distribution is read on the committed path, and past its
        end on the chain of first children."""
        p = output.p
        assert output.draft_codes is not None and p is not None and output.nodes is not None
        depth = self.part.depth
        # [B, W]: of the node at which a distribution is read.
        level = output.count[:, None] + self.span
        row = self.lines[output.nodes[:, -1]]  # [B, D + 1]
        main, below = (self.lines[0][i.clamp_max(depth)] for i in (level, level + 1))  # [B, W]
        probs = take(p, row.gather(1, level.clamp_max(depth)))
        has_probs = (level <= depth) & (probs.sum(-1) > 0)
        drafted = has_probs & (level < depth)
        probs = torch.where(has_probs[..., None], probs, 0.0)
        codes = output.draft_codes.gather(1, below)
        q = torch.zeros_like(probs) if output.draft_q is None else take(output.draft_q, main)
        return OldWindow(probs, has_probs, codes, q, drafted, output.image, self.greedy)

    def draft(self, root: Tensor, every: Tensor, probs: Tensor) -> Draft:
        """root [B, 1]; every [B, W, K]: the candidates of each level; probs [B, W, V]: the
        distributions that are declared for them."""
        codes = torch.cat([root, every.flatten(1).index_select(1, self.pick)], 1)  # [B, N + 1]
        children = self.shape.children.expand(len(codes), -1, -1)
        if self.greedy:
            return self.shape.draft(codes, children, None)
        q = F.pad(probs, (0, 0, 0, 1)).index_select(1, self.shape.depth[0])  # [B, N + 1, V]
        if self.part.branching > 1:
            children = drop_impossible(children, codes, q)
        return self.shape.draft(codes, children, q)


def certain(codes: Tensor, like: Tensor) -> Tensor:
    """Codes [...] -> distributions [..., V] that are 1 there."""
    return torch.zeros_like(like).scatter(-1, codes[..., None], 1.0)


def draft_probs(
    p: Tensor, has_probs: Tensor, uniform: Tensor, positions: Tensor, greedy: bool
) -> Tensor:
    """The distributions [B, n, V] from which drafts at positions [B, n] are drawn: the last ones,
    p [B, n, V], or where greedy their argmax; `uniform_probs` where has_probs [B, n] is False."""
    last = certain(p.argmax(-1), p) if greedy else p
    return torch.where(has_probs[..., None], last, uniform[positions % len(uniform)])


def step_uniforms(noise: Any, positions: Tensor, slot: int, count: int = 1) -> Tensor:
    """Uniforms [B, W, count], new ones in every step."""
    return noise.at(positions, slot, count, noise.round[:, None])


def lattice(depth: int, candidates: int, levels: int) -> list[tuple[int, ...]]:
    """Paths of the draft tree: `candidates` children of every node on the first levels, then a
    chain below first candidates."""
    if levels > depth:
        raise DecoderError(
            f"the window has room for {depth} levels of drafts, found {levels} with several "
            "candidates; raise proposer.window or lower proposer.levels"
        )
    paths: list[tuple[int, ...]] = []
    above: Sequence[tuple[int, ...]] = [()]
    for _ in range(levels):
        above = [(*path, rank) for path in above for rank in range(candidates)]
        paths += above
    return paths + [(0,) * size for size in range(levels + 1, depth + 1)]


def lines_of(parent: Sequence[int], level: Sequence[int]) -> Tensor:
    """[N + 1, D + 1]: of every node, the nodes on a line through it: those above it, then first
    children, and past the last of these the main line, that of first candidates."""
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


def uniform_probs(target: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[W, V]: the uniform distribution of the codes that may stand at a position; row n % W is that
    of position n."""
    if target.barred is None:
        size = target.vocab_size
        return torch.full((1, size), 1 / size, dtype=dtype, device=device)
    open_ = (~target.barred).to(dtype)
    return open_ / open_.sum(-1, keepdim=True)
