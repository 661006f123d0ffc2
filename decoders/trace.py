"""What happened while images were decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor


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
    rules that ask (`AcceptRule.at`): its depth in a draft of so many ``levels``, and the place of
    the root's children; None where nobody noted it. ``image``: the row of the batch that visited
    it; None: all are the first one's.
    """

    p: Tensor  # [M, V] float32, processed target distribution (raw softmax at temperature 0)
    q: Tensor | None  # [M, V] float32, processed drafter distribution
    children: Tensor  # [M, K] int64
    valid: Tensor  # [M, K] bool
    depth: Tensor | None = None  # [M] int64
    place: Tensor | None = None  # [M] int64
    levels: int = 0
    image: Tensor | None = None  # [M] int64


@dataclass
class Trace:
    """What happened while B images were decoded. All tensors are on the CPU.

    ``step`` counts target forwards after the prefill; the code sampled from the prefill has step 0.
    ``accepted[b, s]`` is the number of drafts accepted in step s + 1 (not counting the correction
    or bonus), -1 past the image's last step. Codes past the end of the image are not counted.
    """

    kind: Tensor  # [B, L] uint8, CodeKind
    step: Tensor  # [B, L] int32, the step that committed the code
    depth: Tensor  # [B, L] uint8, depth in the draft tree (1 = child of the root); AR: 0
    moved: Tensor  # [B, L] float32, TV(p, p_A) of the accepted/tested draft; 0 where nothing moved
    bound: Tensor  # [B, L] float32, the TV bound that the rule declared at that position
    accepted: Tensor  # [B, S] int16
    target_calls: Tensor  # [B] int32, target forwards, the prefill not counted (NFE)
    drafter_calls: Tensor  # [B] int32
    seconds: dict[str, float] = field(
        default_factory=dict
    )  # prefill/draft/forward/accept, whole batch
    tree_depth: int = 0  # levels below the root; 0 for AR
    tree_nodes: int = 0  # N
    path: dict[str, str] = field(default_factory=dict)  # phase -> "kernel", "compiled" or "eager"
    # [B] float32: codes per forward that the drafter expected, mean over steps: 1 + the sum of its
    # probabilities of all drafted paths (METHODS2 (h)). Compared with the mean accepted length it
    # measures the drafter's calibration. None where drafts are certain codes of no probability.
    expected: Tensor | None = None
    pairs: VerifiedPairs | None = None
