"""The parts of a decoder: proposers (drafters with trees among them), verifiers and rules, and what
goes between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from decoders.api.data import Sampling, TextFeatures
from decoders.api.model import ImageModel


@dataclass
class Draft:
    """A draft tree of N nodes plus the root (node 0), for B rows. Parents come before children.

    ``children[b, n, j]`` is the node index of the j-th child of n, 0 where there is none.
    ``q[b, n]`` is the drafter's processed distribution after node n, for every node that has
    children; None when the children are deterministic (q_j = 1 at the child, METHODS 3).
    Acceptance rules expect siblings that are drawn without replacement: the j-th from q without the
    codes of those before it. Only a verifier of one's own may expect others.
    A tree of fixed shape gives its ``ancestry``, which else follows from the parents, and
    ``inner``: level by level the nodes that have children, for a verifier that goes from level to
    level.

    Greedy decoding takes the longest accepted path. Of equally long ones it takes the first in the
    table of root-to-leaf paths (METHODS 6), which is sorted, or with ``by_leaf`` in the order of
    the leaves' numbers.
    """

    codes: Tensor  # [B, N + 1] int64; codes[:, 0] is the root
    parents: Tensor  # [B, N + 1] int64; parents[:, 0] == 0
    depth: Tensor  # [B, N + 1] int64; the root has 0
    children: Tensor  # [B, N + 1, K] int64
    q: Tensor | None  # [B, N + 1, V] float32
    levels: int  # D, the deepest that a node can be
    ancestry: Tensor | None = None  # [B, N + 1, N + 1] bool, row n: n and what is above it
    by_leaf: bool = False
    confidence: Tensor | None = None  # [B, N + 1] float32, as of `DraftSession`, by node
    inner: tuple[Tensor, ...] = ()  # [n] int64 each, root first; nothing where they vary


@dataclass(frozen=True)
class Prefill:
    """What every loop, proposer and verifier begins with: the prefill and the first code. Made by
    `decoders.loops.base_loop.run_prefill`."""

    model: ImageModel
    sampling: Sampling
    text: TextFeatures
    noise: Any  # decoders.noise.Noise of the same batch
    cache: Any  # decoders.cache.KVCache, filled up to the prefix
    hidden: Tensor  # [R, P, D], states of the prefix; padded ones are anything finite
    first: Tensor  # [B] int64, the first code
    probs: Tensor  # [B, V], the distribution that it came from

    @property
    def batch(self) -> int:
        return int(self.first.shape[0])


@dataclass
class StepOutput:
    """What the last step showed. T = 1 + the most drafts that a step accepts.

    ``count`` may reach past the image's end: in an image's last step position + count may be more
    than L. A finished image takes part in the steps of its batch: its position is L and its count
    means nothing. The loop cuts off what is drafted past the end, but an index that follows from
    position + count needs a clamp to L - 1.

    ``draft_codes``, ``draft_q``, ``p`` and ``nodes`` are codes and distributions of the last draft,
    the target's distributions at its nodes and the path that was taken, for a proposer that asks
    for them (`Proposer.reads_probs`); zeros before the first step, None where nobody asks.
    ``draft_q`` is None too where the children are deterministic.
    """

    hidden: Tensor  # [R, T, D], hidden[:, i] is the target state that predicted codes[:, i]
    codes: Tensor  # [B, T] int64, committed in the last step; the last real one is the root
    count: Tensor  # [B] int64, how many of them are real
    position: Tensor  # [B] int64, position in the image of the first
    image: Tensor  # [B, >= L] int64, the loop's codes by position; past the root any number
    draft_codes: Tensor | None = None  # [B, N + 1] int64, see `Draft.codes`
    draft_q: Tensor | None = None  # [B, N + 1, V] float32, see `Draft.q`
    p: Tensor | None = None  # [B, N + 1, V] float32
    nodes: Tensor | None = None  # [B, D + 1] int64, see `Verified.nodes`


class ProposerSession(Protocol):
    """A proposer at work on B images; what it keeps is tensors of static shapes."""

    @abstractmethod
    def propose(self, output: StepOutput, noise: Any, position: Tensor) -> Draft:
        """Drafts under the root, the last code of `output`; position [B]: that of the root's child.
        What it returns lasts until the next call.

        A position whose draft hangs on no earlier draft at that position may read the same numbers
        in every step. What decides on an earlier draft (a coupling) needs new ones in every step:
        ``noise.at(positions, COUPLE_SLOT, 1, noise.round[:, None])``, where noise.round [B] counts
        the steps of every image.
        """

    def require_finite(self) -> None:
        """Called once behind the last step. Raises NumericalError where a draft's distribution was
        not finite, which nothing may wait for earlier."""
        return None


class Proposer(Protocol):
    """Proposes drafts: a drafter that grows a tree, or a window that is redrawn. Built as
    ``cls(model, **yaml_keywords)``."""

    nodes: int  # N of every draft
    depth: int  # D, its levels: the most drafts that a step accepts
    branching: int  # K, most children of a node
    forwards: int = 0  # of a drafter, that a step takes
    draws: bool = True  # whether drafts are drawn from q, where the sampling is not greedy
    reads_probs: bool = False  # whether `StepOutput.p` and its like are wanted
    drafter: Drafter | None = None  # of a proposer that is made of a drafter and a tree
    tree: Tree | None = None

    @abstractmethod
    def begin(self, prefill: Prefill) -> ProposerSession: ...


class DraftSession(Protocol):
    """A drafter at work on B images. Its nodes are numbered by the tree that grows; 0 is the root.
    What a session or a tree returns lasts until its next call: memory may be used again.

    Numbers at a position are read again in every step until its code is committed. So the
    distribution after a node is a function of the committed codes and the path to the node alone:
    it may not depend on drafts that were rejected, nor on how many steps it took.

    Tensors of a session with a dimension of B are the state of an image, as the values of a new
    image replace its row: keep no row index, make `torch.arange` where it is needed.
    """

    root_code: Tensor  # [B] int64, the last committed code
    # [B, nodes + 1] float32, by session index: how sure the drafter is, from 0 to 1, that a draft
    # behind a node is accepted; it may not depend on that draft. None: it does not say.
    confidence: Tensor | None = None

    @abstractmethod
    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, position: Tensor) -> Tensor:
        """Gives the drafter the committed codes; returns guided logits after the new root, [B, V]
        float32.

        hidden [R, T, D]: target states; hidden[:, i] is the state that predicted codes[:, i].
        codes [B, T]; count [B]: how many of the T are real; position [B]: grid position of codes[:,
        0].
        """

    @abstractmethod
    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Tensor:
        """Drafts the codes that follow w nodes of one level.

        codes [B, w]; nodes [w] int64, their session indices (below `nodes` of `Drafter.begin` +
        1); parents [B, w] session indices; depth of the nodes (root 0) -> guided logits [B, w, V]
        float32.
        """


class Drafter(Protocol):
    """Cheap predictions of the next codes. Built as ``cls(model, **yaml_keywords)``.

    ``reads_cache``: its sessions read `Prefill.cache`, the target's, which then stays where it is
    for the session's life. Between two steps it holds the committed codes but for the root.
    """

    reads_cache: bool = False
    net: Any = None  # the module that a call runs: executions pack it, costs are read off it
    exit_layers: int = 0  # of the target's own first layers: how many it runs

    def forwards(self, levels: int) -> int:
        """How many forwards of the drafter a draft of so many levels takes. Raises DecoderError
        where it cannot draft so many."""
        return levels

    @abstractmethod
    def begin(self, prefill: Prefill, max_new: int, nodes: int) -> DraftSession:
        """At most `max_new` codes are committed per step, a draft's levels and one more, and
        session indices stay within 0..nodes."""


class Tree(Protocol):
    """Which codes are drafted, and how they hang together. Built as ``cls(model,
    **yaml_keywords)``."""

    nodes: int  # N of the draft
    depth: int  # D
    branching: int  # K
    session_nodes: int  # session indices used while growing, root not counted
    draws: bool = True  # whether children are drawn from q, where the sampling is not greedy
    paths: Sequence[tuple[int, ...]] | None = None  # of a tree that is the same in every step

    def prepare(self, device: Any) -> None:
        """Makes the tree's tensors on a device. Called when a session begins: a captured step finds
        all of its tensors there."""
        return None

    @abstractmethod
    def grow(
        self,
        session: DraftSession,
        root_logits: Tensor,
        sampling: Sampling,
        noise: Any,
        position: Tensor,
    ) -> Draft:
        """Calls `session.expand` once for every level but the last. root_logits [B, V]; position
        [B], the position in the image of the root's child."""


@dataclass(frozen=True)
class TargetProbs:
    """What the target says of the codes after every node of a draft."""

    logits: Tensor  # [B, N + 1, V] float32, guided, not processed
    p: Tensor  # [B, N + 1, V] float32, processed; at temperature 0 the raw softmax
    greedy: bool  # temperature 0


@dataclass(frozen=True)
class Verified:
    """What a verifier made of a draft of D levels."""

    nodes: Tensor  # [B, D + 1] int64, node at each depth; past the end the last accepted node
    count: Tensor  # [B] int64, drafts accepted
    last_code: Tensor  # [B] int64, the corrected or bonus code behind them
    bonus: Tensor  # [B] bool, True where the last accepted node had no draft to reject
    tv_shift: Tensor  # [B, D + 1] float32, TV(p, p_A) of the draft tested at each depth
    bound: Tensor  # [B, D + 1] float32, the bound that was declared on it
    relaxed: Tensor  # [B, D] bool, accepted by the relaxed rule alone; or [B, D + 1] with last_code
    # [B] bool: whether the last code is itself a draft, which the target has not read; None: never.
    last_is_draft: Tensor | None = None


class Verifier(Protocol):
    """Judges whole drafts. Built as ``cls(model, **yaml_keywords)``.

    ``resamples_noise``: what is accepted depends on drafts or uniforms of positions that stay open
    (block and traversal verification). They are then never used again: from step to step the loop
    renews the numbers at the draft's positions, for the drafts and for the tests. So
    ``noise.at(positions, ACCEPT_SLOT)`` is right for every verifier. Such a run needs noise with a
    key, as `Noise.for_prompts` makes it.
    """

    resamples_noise: bool = False
    synthetic: bool = False  # drafts are accepted at given rates: for times alone
    rule: AcceptRule | None = None  # of a verifier that judges node by node

    def check(self, proposer: Proposer) -> None:
        """Called when a loop is built. Raises DecoderError for drafts that it cannot judge."""
        return None

    def begin(self, prefill: Prefill) -> Any:
        """State of B images for `verify`, tensors of static shapes; None if it keeps none."""
        return None

    @abstractmethod
    def verify(
        self, probs: TargetProbs, draft: Draft, noise: Any, position: Tensor, state: Any
    ) -> Verified:
        """position [B]: that of the root's children in the image."""


@dataclass(frozen=True)
class Acceptance:
    """Outcome of testing one draft x against p: everything a loop needs, no randomness inside.

    Shapes: the leading dims of p. The draft is accepted when u < accept, u uniform in [0, 1).
    """

    __test__ = False  # not a pytest class

    accept: Tensor  # [...] float32, acceptance probability
    strict: Tensor  # [...] float32, what the exact rule would have accepted with
    residual: Tensor  # [..., V] float32, the distribution to go on with after a rejection
    tv_shift: Tensor  # [...] float32, TV(p, p_A)
    bound: Tensor  # [...] float32, declared bound on `tv_shift`


class AcceptRule(Protocol):
    """A pure function of tensors; leading dims are arbitrary. All float32. Built as ``cls(model,
    **yaml_keywords)``."""

    # Whether `Acceptance.bound` bounds TV(committed code's distribution, p) (lemma R) instead of
    # TV(p, p_A).
    bounds_output: bool = False
    beyond_support: bool = False  # it may commit a code with p(x) = 0; for other rules an error
    # The rule for one draft, where it depends on the depth or the position; position [B]: that of
    # the root's children. The rule judges the children of all nodes, x [B, N + 1]; at temperature 0
    # all children at once, p [B, N + 1, 1, V] and x [B, N + 1, K].
    at: Callable[[Draft, Tensor], AcceptRule] | None = None

    @abstractmethod
    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Acceptance:
        """p [..., V] current target distribution; q [..., V] drafter distribution (None: q = 1 at
        x); x [...] int64 draft."""

    @abstractmethod
    def greedy(self, p: Tensor, x: Tensor) -> Acceptance:
        """The same at temperature 0: `accept` is 0 or 1, p the raw softmax, residual ignored.

        A node's children share one p, so the leading dims of p broadcast over those of x."""
