"""What decoders take and give: encoded prompts, how to sample, codes and how they came to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, get_type_hints

import torch
from torch import Tensor

from decoders.errors import DecoderError
from decoders.kinds import Amount, NotNegative, Within, validate_fields

LOWEST_TEMPERATURE = 1e-6  # temperature of a sampled image


@dataclass(frozen=True)
class TextFeatures:
    """Encoded prompts, left-padded: the last valid position of every row is P - 1.

    What the features are is between encoder and target: a caption's features [B, P, F] float, a
    class number [B, 1] int64, or token ids of the model's own vocabulary [B, P] int64. Only the
    last has an unconditional prompt of its own.
    """

    features: Tensor
    mask: Tensor  # [B, P] bool, True where valid
    uncond: Tensor | None = None  # [B, P] int64
    uncond_mask: Tensor | None = None  # [B, P] bool

    @property
    def batch(self) -> int:
        return int(self.features.shape[0])

    def paired(self, copies: int) -> tuple[TextFeatures, Tensor]:
        """G copies as R = G * B rows, and which are unconditional, [R] bool."""
        drop = torch.arange(copies * self.batch, device=self.mask.device) >= self.batch
        return self._each(lambda t: torch.cat([t] * copies)), drop

    def rows(self, images: Sequence[int] | slice | Tensor) -> TextFeatures:
        """The captions of some of the prompts."""
        return self._each(lambda t: t[images])

    @staticmethod
    def joined(parts: Sequence[TextFeatures]) -> TextFeatures:
        """Several groups of captions of one encoder as one."""
        every = zip(*((p.features, p.mask, p.uncond, p.uncond_mask) for p in parts), strict=True)
        return TextFeatures(*(None if t[0] is None else torch.cat(t) for t in every))  # type: ignore

    def to(self, device: torch.device) -> TextFeatures:
        """The same captions on another device."""
        return self._each(lambda t: t.to(device))

    def clone(self) -> TextFeatures:
        """The same captions in memory of their own."""
        return self._each(Tensor.clone)

    def _each(self, change: Callable[[Tensor], Tensor]) -> TextFeatures:
        every = (self.features, self.mask, self.uncond, self.uncond_mask)
        return TextFeatures(*(None if t is None else change(t) for t in every))  # type: ignore[arg-type]

    def valid(self, drop: Tensor) -> Tensor:
        """Validity of the prefix, [B, P] bool, where drop [B] bool marks unconditional rows."""
        if self.uncond_mask is None:
            return self.mask
        return torch.where(drop[:, None], self.uncond_mask, self.mask)

    def row_mask(self, copies: int) -> Tensor:
        """Validity of the prefix of all R rows, [R, P] bool."""
        rows, drop = self.paired(copies)
        return rows.valid(drop)

    def token_ids(self, drop: Tensor) -> Tensor:
        """Token ids of the prefix, [B, P] int64, where drop [B] bool marks unconditional rows."""
        if self.features.is_floating_point() or self.uncond is None:
            raise DecoderError(
                "this model reads token ids with an unconditional prompt, found "
                f"{self.features.dtype} features; is this the model's own encoder?"
            )
        return torch.where(drop[:, None], self.uncond, self.features)


@dataclass(frozen=True)
class Sampling:
    """How a distribution is made from logits: guidance, temperature, top-k, then top-p (METHODS 2,
    6).

    temperature 0 is greedy (argmax, lowest index on ties). cfg 1 switches guidance off (G = 1).
    top_k 0 and top_p 1 switch the filters off. The ranges keep logits and probabilities finite in
    float32.
    """

    temperature: NotNegative = 1.0
    cfg: Annotated[float, Within(0, 1e6)] = 1.0
    top_k: Amount = 0
    top_p: Annotated[float, Within(1e-6, 1)] = 1.0

    def __post_init__(self) -> None:
        validate_fields(self, "sampling.")
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            raise DecoderError(
                f"sampling.temperature must be 0 (greedy) or at least {LOWEST_TEMPERATURE:g}, "
                f"found {self.temperature:g}: logits over it would not be finite; use 0"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def guidance_rows(self) -> int:
        """G: 1 without guidance, 2 with it."""
        return 1 if self.cfg == 1 else 2


class CodeKind(IntEnum):
    """How a committed code came to be."""

    TARGET = 0  # sampled from the target alone (AR, or the first code of a speculative run)
    DRAFT = 1  # a draft the exact rule would have accepted too
    RELAXED = 2  # a draft that only the relaxed rule accepted
    CORRECTED = 3  # sampled from the residual after every child of a node was rejected
    BONUS = 4  # sampled from the target after the last level of the tree was accepted


@dataclass
class VerifiedPairs:
    """Target and drafter distributions at a sample of verified nodes, for the exact output TV.

    M nodes that were really visited. With deterministic children ``q`` is None. ``children`` are
    the codes that were tested, in order; ``valid`` marks the real ones. Where a node stood, for
    rules that ask (`AcceptRule.at`): its depth in a draft of so many ``levels``, and the position
    of the root's children. ``image``: of the call, in whose row it was visited; of a single step
    the row itself.
    """

    p: Tensor  # [M, V] float32, processed target distribution (raw softmax at temperature 0)
    q: Tensor | None  # [M, V] float32, processed drafter distribution
    children: Tensor  # [M, K] int64
    valid: Tensor  # [M, K] bool
    depth: Tensor  # [M] int64
    position: Tensor  # [M] int64
    levels: int
    image: Tensor  # [M] int64


@dataclass(frozen=True)
class TraceColumn:
    """What a run keeps of a field of `Trace`: a number per code, [B, L], or one per image, [B].
    largest: of whole numbers, which begin at 0. optional: a loop may leave the field out; of one
    per code, NaN stands where nothing was noted."""

    dtype: torch.dtype
    unit: str
    meaning: str
    per_code: bool = True
    largest: int = 2**31 - 1
    optional: bool = False


@dataclass(kw_only=True)
class Trace:
    """What happened while B images were decoded. All tensors are on the CPU.

    A field with a `TraceColumn` is a column of rows and of their table, and is named nowhere else.

    ``step`` counts an image's forwards after the prefill; the code sampled from that has step 0.
    ``accepted[b, s]`` is the number of drafts accepted in step s + 1 (not counting the correction
    or bonus), -1 past the image's last step. Codes past the end of the image are not counted.

    ``tv_shift`` is TV(p, p_A) of the draft that was accepted, or of the first that was rejected;
    ``bound`` is what the rule declared on it, for one child of the node. On a tree neither it nor a
    sum of it bounds the distribution of the output.

    ``drafted_depth`` and ``drafted_nodes`` are less than ``tree_depth`` and ``tree_nodes`` where a
    tree stops early, NaN where nothing is drafted.
    """

    kind: Annotated[
        Tensor, TraceColumn(torch.uint8, "-", "decoders.api.CodeKind", largest=len(CodeKind) - 1)
    ]
    # 1: a child of the root; AR: 0.
    depth: Annotated[Tensor, TraceColumn(torch.uint8, "-", "depth in the draft tree", largest=255)]
    step: Annotated[Tensor, TraceColumn(torch.int32, "-", "the target forward that committed it")]
    tv_shift: Annotated[Tensor, TraceColumn(torch.float32, "-", "TV(p, p_A)")]
    bound: Annotated[Tensor, TraceColumn(torch.float32, "-", "bound declared on it")]
    accepted: Tensor  # [B, S] int16
    target_calls: Tensor  # [B] int32, target forwards, the prefill not counted (NFE)
    # Its prefix is not counted.
    drafter_calls: Annotated[Tensor, TraceColumn(torch.int32, "-", "drafter forwards", False)]
    confidence: Annotated[
        Tensor | None,
        TraceColumn(torch.float32, "-", "the drafter's, in the draft tested there", optional=True),
    ] = None
    drafted_depth: Annotated[
        Tensor | None,
        TraceColumn(torch.float32, "-", "levels of a step's draft, mean", False, optional=True),
    ] = None
    drafted_nodes: Annotated[
        Tensor | None,
        TraceColumn(torch.float32, "-", "nodes of a step's draft, mean", False, optional=True),
    ] = None
    seconds: dict[str, float] = field(default_factory=dict)  # by phase, of the whole batch
    # The share of row-steps (steps times rows) in which the row's image was done already.
    idle: float = math.nan
    tree_depth: int = 0  # levels below the root; 0 for AR, and for drafts in several rows
    tree_nodes: int = 0  # N
    path: dict[str, str] = field(default_factory=dict)  # phase -> "compiled", "captured", "eager"
    pairs: VerifiedPairs | None = None


TRACE_COLUMNS: dict[str, TraceColumn] = {
    name: declared
    for name, hint in get_type_hints(Trace, include_extras=True).items()
    for declared in getattr(hint, "__metadata__", ())
}


@dataclass
class Generation:
    """B decoded images as codes, and how they came to be."""

    codes: Tensor  # [B, L] int64, CPU
    trace: Trace
