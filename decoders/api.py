"""The contracts of the code base: what a model, a drafter, a tree, an acceptance rule and a loop
are.

A decoder is *composed*: loop x proposer x verifier, run by an execution. A drafter with a tree is
one proposer (`decoders.propose.grown`), an acceptance rule makes one verifier
(`decoders.verify.by_node`).
Everything a caller outside ``decoders`` may rely on is in this file or imported by it. Concrete
classes are reached by their dotted path (``decoders.verify.lantern.Lantern``) through
``decoders.compose``.

Notation (METHODS section 2): B batch, L image length in codes, V vocabulary, D width, P prefix
length, N nodes of a draft tree without the root, K children of a node, G guidance rows (2 with
guidance, 1 without), R = G * B rows of a model call, ordered [conditional rows; unconditional
rows].

Conventions for plug-ins: every part is built as ``cls(model, **yaml_keywords)``; a loop as
``cls(model, sampling=..., proposer=..., verifier=..., **yaml_keywords)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from decoders.captions import TextFeatures
from decoders.errors import DecoderError
from decoders.errors import NumericalError as NumericalError
from decoders.kinds import Amount, NotNegative, Within, require
from decoders.trace import CodeKind as CodeKind
from decoders.trace import Trace as Trace
from decoders.trace import VerifiedPairs as VerifiedPairs


@dataclass(frozen=True)
class Sampling:
    """How a distribution is made from logits: guidance, temperature, top-k, then top-p (METHODS 2,
    6).

    temperature 0 is greedy (argmax, lowest index on ties). cfg 1 switches guidance off (G = 1).
    top_k 0 and top_p 1 switch the filters off.
    """

    temperature: NotNegative = 1.0
    cfg: NotNegative = 1.0
    top_k: Amount = 0
    top_p: Annotated[float, Within(0, 1, above=True)] = 1.0

    def __post_init__(self) -> None:
        require(self, "sampling.", DecoderError)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def guidance_rows(self) -> int:
        """G: 1 without guidance, 2 with it."""
        return 1 if self.cfg == 1 else 2


@dataclass
class Generation:
    """B decoded images as codes, and how they came to be."""

    codes: Tensor  # [B, L] int64, CPU
    trace: Trace


@dataclass(frozen=True)
class ImageModel:
    """A target with everything around it: what `model=` selects. Built by a loader function.

    ``codebook`` is the latent space in which neighbours are measured (the tokenizer's own metric:
    rows are L2-normalised where the tokenizer normalises).
    """

    name: str
    target: Target
    text: TextEncoder
    tokenizer: ImageTokenizer
    sampling: Sampling  # the model's usual settings
    device: torch.device
    dtype: torch.dtype
    weights_sha256: dict[str, str]  # file name -> hash of what was loaded
    drafters: dict[str, Any] = field(default_factory=dict)  # name -> path or state of its weights
    execution: Any = None  # a `decoders.execution.eager.Execution`; None is eager

    @property
    def codebook(self) -> Tensor:
        """[V, C] float32."""
        return self.tokenizer.codebook

    @property
    def draws(self) -> bool:
        """Whether codes can be made pictures: a model may be loaded without its tokenizer."""
        return not getattr(self.tokenizer, "missing", False)


class TextEncoder(Protocol):
    def encode(self, prompts: list[str]) -> TextFeatures:
        """Raises DecoderError on an empty, over-long or unknown-language prompt."""
        ...


class ImageTokenizer(Protocol):
    @property
    def codebook(self) -> Tensor: ...  # [V, C] float32

    def decode(self, codes: Tensor) -> Tensor:
        """[B, L] int64 -> images [B, 3, H, W] float32 in [0, 1]."""
        ...


class Packed(Protocol):
    """A net's layers, and its one matrix (a target's head, what a drafter reads), as an execution
    runs them: `decoders.models.transformer.Transformer.stack` and a linear layer."""

    layers: Any
    project: Any


class Target(Protocol):
    """A decoder-only model over VQ codes with a text prefix; rows and caches are the caller's."""

    vocab_size: int
    width: int
    length: int  # L
    prefix: int  # P
    barred: Tensor | None  # [W, V] bool: codes that may not stand at a place n, row n % W

    def new_cache(self, rows: int, capacity: int) -> Any:
        """A preallocated `decoders.cache.KVCache` of `capacity` positions per row."""
        ...

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: Any) -> Tensor:
        """Runs the prefix; returns its final hidden states [R, P, D]. Those of padded positions may
        be anything finite: no valid position sees them."""
        ...

    def forward_codes(
        self, codes: Tensor, grid_index: Tensor, slots: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        """One forward over T codes a row -> final hidden states [R, T, D] (normed, head-ready).

        codes [R, T] int64; grid_index [R, T] int64, the place of each code in the image (0 is the
        first); slots [R, T] int64, cache positions written; mask [R, T, S] bool, True where a query
        may look at a cache position (its own slot included).
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] in the model's dtype."""
        ...


@dataclass
class Draft:
    """A draft tree of N nodes plus the root (node 0), for B rows. Parents come before children.

    ``children[b, n, j]`` is the node index of the j-th child of n, 0 where there is none.
    ``q[b, n]`` is the drafter's processed distribution after node n, for every node that has
    children; None when the children are deterministic (q_j = 1 at the child, METHODS 3). A tree
    of fixed shape gives its ``ancestry``, which else follows from the parents, and ``inner``: level
    by level the nodes that have children, for a verifier that goes from level to level.

    Greedy decoding takes the longest accepted path. Of equally long ones it takes the first in the
    table of root-to-leaf paths (METHODS 6), which is sorted, or with ``by_leaf`` in the order of
    the leaves' numbers.
    """

    codes: Tensor  # [B, N + 1] int64; codes[:, 0] is the root
    parents: Tensor  # [B, N + 1] int64; parents[:, 0] == 0
    depth: Tensor  # [B, N + 1] int64; the root has 0
    children: Tensor  # [B, N + 1, K] int64
    q: Tensor | None  # [B, N + 1, V] float32
    ancestry: Tensor | None = None  # [B, N + 1, N + 1] bool, row n: n and what is above it
    levels: int = 0  # D, the deepest that a node can be; 0: N
    by_leaf: bool = False
    expected: Tensor | None = None  # [B] float32, see `Trace.expected`
    inner: tuple[Tensor, ...] = ()  # [n] int64 each, root first; nothing where it is not known

    def __post_init__(self) -> None:
        self.levels = self.levels or self.codes.shape[1] - 1


@dataclass(frozen=True)
class Start:
    """What every loop, proposer and verifier begins with: the prefill and the first code. Made by
    `decoders.loops.start.begin`."""

    model: ImageModel
    sampling: Sampling
    text: TextFeatures
    noise: Any  # decoders.noise.Noise of the same batch
    cache: Any  # decoders.cache.KVCache, filled up to the prefix
    hidden: Tensor  # [R, P, D], states of the prefix
    first: Tensor  # [B] int64, the first code
    law: Tensor  # [B, V], the distribution it came from

    @property
    def batch(self) -> int:
        return int(self.first.shape[0])


@dataclass
class Seen:
    """What the last step showed. T = 1 + the most drafts that a step accepts.

    ``draft``, ``p`` and ``nodes`` are the last draft, the target's laws at its nodes and the path
    that was taken, for a proposer that asks for them (`Proposer.reads_laws`); zeros before the
    first step, None where nobody asks. ``draft.q`` is None where the children are deterministic.
    ``image`` are all codes so far, for the same proposers.
    """

    hidden: Tensor  # [R, T, D], hidden[:, i] is the target state that predicted codes[:, i]
    codes: Tensor  # [B, T] int64, committed in the last step; the last real one is the root
    count: Tensor  # [B] int64, how many of them are real
    start: Tensor  # [B] int64, place in the image of the first
    draft: Draft | None = None
    p: Tensor | None = None  # [B, N + 1, V] float32
    nodes: Tensor | None = None  # [B, D + 1] int64, see `Settled.nodes`
    image: Tensor | None = None  # [B, >= L] int64, all codes by place; nothing past the last one


class ProposerSession(Protocol):
    """A proposer at work on B images; what it keeps is tensors of static shapes.

    Optional: ``require_finite()``, called once behind the last step. It raises NumericalError where
    a draft's law was not finite, which nothing may wait for earlier. ``restart(start) ->
    ProposerSession``, from a class that says `decoders.capability.RESTART`: the session for other
    images, as many: this one, its tensors used again, or a new one.
    """

    @property
    def calls(self) -> int:
        """Forwards of a drafter so far."""
        ...

    def propose(self, seen: Seen, noise: Any, place: Tensor) -> Draft:
        """Drafts under the root, the last code of `seen`; place [B]: that of the root's child. What
        it returns lasts until the next call.

        A place whose draft hangs on no earlier draft at that place may read the same numbers in
        every step. What decides on an earlier draft (a coupling) needs new ones in every step:
        ``noise.at(places, COUPLE_SLOT, 1, noise.round[:, None])``, where noise.round [B] counts the
        image's steps.
        """
        ...


class Proposer(Protocol):
    """Proposes drafts: a drafter that grows a tree, or a window that is redrawn. Built as
    ``cls(model, **yaml_keywords)``."""

    nodes: int  # N of every draft
    depth: int  # D, its levels: the most drafts that a step accepts
    branching: int  # K, most children of a node
    reads_laws: bool  # whether `Seen.draft`, `p` and `nodes` are wanted

    def begin(self, start: Start) -> ProposerSession: ...


@dataclass(frozen=True)
class Law:
    """What the target says of the codes after every node of a draft."""

    logits: Tensor  # [B, N + 1, V] float32, guided, not processed
    p: Tensor  # [B, N + 1, V] float32, processed; at temperature 0 the raw softmax
    greedy: bool  # temperature 0


@dataclass(frozen=True)
class Settled:
    """What a verifier made of a draft of D levels."""

    nodes: Tensor  # [B, D + 1] int64, node at each depth; past the end the last accepted node
    count: Tensor  # [B] int64, drafts accepted
    last_code: Tensor  # [B] int64, the corrected or bonus code behind them
    bonus: Tensor  # [B] bool, True where the last accepted node had no draft to reject
    moved: Tensor  # [B, D + 1] float32, TV(p, p_A) of the draft tested at each depth
    bound: Tensor  # [B, D + 1] float32, the bound that was declared on it
    relaxed: Tensor  # [B, D] bool, accepted by the relaxed rule alone


class Verifier(Protocol):
    """Judges whole drafts. Built as ``cls(model, **yaml_keywords)``.

    Optional: ``looks_ahead = True``, where what is accepted depends on drafts or uniforms of places
    that stay open (block and traversal verification). They are then never used again: from step to
    step the loop renews the numbers at the draft's places, for the drafts and for the tests. So
    ``noise.at(places, ACCEPT_SLOT)`` is right for every verifier. Such a run needs noise with a
    key, as `Noise.for_prompts` makes it.
    """

    def begin(self, start: Start) -> Any:
        """State of B images for `decide`, tensors of static shapes; None if it keeps none."""
        ...

    def decide(self, law: Law, draft: Draft, noise: Any, place: Tensor, state: Any) -> Settled:
        """place [B]: that of the root's children in the image."""
        ...


@dataclass(frozen=True)
class Test:
    """Outcome of testing one draft x against p: everything a loop needs, no randomness inside.

    Shapes: the leading dims of p. The draft is accepted when u < accept, u uniform in [0, 1).
    """

    __test__ = False  # not a pytest class

    accept: Tensor  # [...] float32, acceptance probability
    strict: Tensor  # [...] float32, what the exact rule would have accepted with
    residual: Tensor  # [..., V] float32, the distribution to go on with after a rejection
    moved: Tensor  # [...] float32, TV(p, p_A)
    bound: Tensor  # [...] float32, declared bound on `moved`


@runtime_checkable
class AcceptRule(Protocol):
    """A pure function of tensors; leading dims are arbitrary. All float32.

    A rule that depends on the depth or the place also has ``at(draft, place) -> AcceptRule``: the
    rule of this draft, place [B] that of the root's children. It then judges the children of all
    nodes, x [B, N + 1]; at temperature 0 all children at once, p [B, N + 1, 1, V] and x
    [B, N + 1, K].

    Two attributes say more, where a rule has them. ``bounds_output``: its `Test.bound` is on what
    the test does to the code's law, TV(law, p) (METHODS2, lemma R), and not on TV(p, p_A).
    ``beyond_support``: it may commit a code with p(x) = 0; of others that is an error.
    """

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Test:
        """p [..., V] current target distribution; q [..., V] drafter distribution (None: q = 1 at
        x); x [...] int64 draft."""
        ...

    def greedy(self, p: Tensor, x: Tensor) -> Test:
        """The same at temperature 0: `accept` is 0 or 1, p the raw softmax, residual ignored.

        A node's children share one p, so the leading dims of p broadcast over those of x."""
        ...


class Decoder(Protocol):
    """What the harness runs. ``generate`` may be called with any batch size.

    Optional on the class: ``exercised``, options under which small random models run every part of
    the loop, for the gate (where a threshold is made for trained ones).
    """

    sampling: Sampling

    def generate(self, text: TextFeatures, noise: Any, *, pairs: float = 0) -> Generation:
        """Decodes one image per row of `text`.

        noise: a `decoders.noise.Noise` of the same batch. pairs: verified (p, q) pairs to record of
        an image, on average (0: none); which ones is up to its noise, not to its batch.
        """
        ...
