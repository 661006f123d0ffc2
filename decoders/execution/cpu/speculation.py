"""The two calls of a speculative step after the draft: the target on the tree, and acceptance with
all that follows from it (record, commit, what the drafter is told).

They compute what `decoders.loops.speculative.Speculative` does in some ninety operators, each a few
microseconds, beside a verification of less than two milliseconds. Structures and buffers are made
once an image.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Sampling
from decoders.cache import KVCache
from decoders.execution.cpu.checks import require
from decoders.execution.cpu.layers import NativeLayers, check
from decoders.execution.cpu.library import Filter, Forward, filter_of, library, run
from decoders.execution.cpu.rules import NativeRule, Rule
from decoders.execution.cpu.stepping import Head
from decoders.loops.recording import Recorder
from decoders.noise import ACCEPT_SLOT, TARGET_SLOT

POINTER, LONG = ctypes.c_void_p, ctypes.c_long


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Nodes(ctypes.Structure):
    """`Nodes` of speculation.h."""

    _fields_ = [
        *_fields(LONG, "batch count children"),
        *_fields(POINTER, "codes parents"),
        ("parents_row", LONG),
        ("level", POINTER),
        ("level_row", LONG),
        ("child", POINTER),
        *_fields(LONG, "child_row by_leaf"),
    ]


class Verify(ctypes.Structure):
    """`Verify` of speculation.h."""

    _fields_ = [
        ("layer", Forward),
        ("tree", Nodes),
        ("prefix", LONG),
        *_fields(POINTER, "length seen"),
        ("seen_row", LONG),
        *_fields(POINTER, "tokens head"),
        ("vocab", LONG),
        ("cfg", ctypes.c_float),
        *_fields(POINTER, "raw logits"),
    ]


class Settle(ctypes.Structure):
    """`Settle` of speculation.h."""

    _fields_ = [
        ("tree", Nodes),
        *_fields(LONG, "copies vocab depth"),
        *_fields(POINTER, "q logits"),
        ("filter", Filter),
        ("rule", Rule),
        ("uniform", POINTER),
        *_fields(LONG, "places slots accept_slot target_slot image prefix"),
        *_fields(POINTER, "length hidden"),
        ("state", LONG),
        ("cache", POINTER),
        *_fields(LONG, "lines heads capacity head"),
        *_fields(POINTER, "told_hidden told_codes told_count told_start"),
        *_fields(POINTER, "codes kind step at moved bound"),
        ("width", LONG),
        *_fields(POINTER, "accepted steps bad target_calls drafter_calls"),
        ("draft_calls", LONG),
        *_fields(POINTER, "path count p work"),
        ("room", LONG),
        ("threads", ctypes.c_int),
    ]


@dataclass(frozen=True)
class Parts:
    """What stays the same from image to image. image: codes of an image; depth: of the tree;
    draft_calls: the drafter's forwards of a step."""

    layers: NativeLayers
    head: Head
    image: int
    sampling: Sampling
    rule: NativeRule
    depth: int
    draft_calls: int


@dataclass(frozen=True)
class State:
    """The moving state of B images, changed in place: see `Run` and `Told` of
    `decoders.loops.speculative_run`."""

    seen: Tensor
    uniform: Tensor
    length: Tensor
    record: Recorder
    target_calls: Tensor
    drafter_calls: Tensor
    told_hidden: Tensor
    told_codes: Tensor
    told_count: Tensor
    told_start: Tensor


class NativeStep:
    """Verification and settling of one run's steps."""

    def __init__(self, parts: Parts, state: State, nodes: int, children: int) -> None:
        """nodes: N + 1, the root with them; children: K."""
        self.parts, self.state, self.shape = parts, state, (len(state.length), nodes, children)
        batch, copies = len(state.length), parts.sampling.guidance_rows
        rows, width, vocab = batch * copies, parts.layers.width, parts.head.output.outputs
        self.hidden = torch.empty(rows, nodes, width, dtype=parts.layers.dtype)
        self.indices = torch.zeros(3, rows, nodes, dtype=torch.long)  # codes, places, slots
        self.logits = torch.empty(1 + copies, batch, nodes, vocab)  # guided; then of each row
        self.p = torch.zeros(batch, nodes, vocab)
        self.path = torch.zeros(batch, parts.depth + 1, dtype=torch.long)
        self.count = torch.zeros(batch, dtype=torch.long)
        self.work = torch.empty(torch.get_num_threads(), 3, max(vocab, nodes))
        check(parts.head.embedding, width, parts.layers.dtype)
        self.embedding = parts.head.embedding.detach().contiguous()
        places, slots = state.uniform.shape[1:]
        require("noise", state.uniform, (batch, places, slots), torch.float32)
        if slots < ACCEPT_SLOT + children:
            raise DecoderError(f"{children} children a node need more noise than {slots} a place")
        self._cache: Tensor | None = None
        self.mask = torch.empty(0, dtype=torch.bool)  # [R, N + 1, S], with the cache's S
        self._half = ctypes.c_int(parts.layers.dtype == torch.bfloat16)
        self._verify, self._settle = library().lantern_verify, library().lantern_settle
        self._verifying = Verify(prefix=parts.head.prefix, cfg=parts.sampling.cfg, vocab=vocab)
        self._settling = self._prepared()
        self._address()

    def forward(self, draft: Draft, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Hidden states [R, N + 1, D] and guided logits [B, N + 1, V] float32 of the draft's nodes;
        both are overwritten by the next call."""
        if cache.data is not self._cache:
            self._fit(cache)
        call = self._verifying
        call.tree = self._nodes(draft)
        run("forward", self._verify, ctypes.byref(call), self._half)
        return self.hidden, self.logits[0]

    def settle(self, draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
        """Accepts, records and commits, on what `forward` has left -> nodes of the path [B, D + 1],
        accepted drafts [B], and p [B, N + 1, V] at the path's nodes; all are overwritten by the
        next call."""
        call = self._settling
        call.tree = self._verifying.tree
        call.q = None
        if draft.q is not None:
            self._q = require("a tree's q", draft.q, self.p.shape, torch.float32)
            call.q = self._q.data_ptr()
        run("settle", self._settle, ctypes.byref(call))
        return self.path, self.count, self.p

    def _nodes(self, draft: Draft) -> Nodes:
        batch, nodes, children = self.shape
        codes = _whole(draft.codes, (batch, nodes))
        parents, level = _whole(draft.parents, (batch, nodes)), _whole(draft.depth, (batch, nodes))
        child = _whole(draft.children, (batch, nodes, children))
        if codes.stride(0) != nodes and batch > 1:
            codes = codes.contiguous()
        self._held = (codes, parents, level, child)  # until both calls are over
        return Nodes(
            batch, nodes, children, codes.data_ptr(), parents.data_ptr(), parents.stride(0),
            level.data_ptr(), level.stride(0), child.data_ptr(), child.stride(0), draft.by_leaf,
        )  # fmt: skip

    def _fit(self, cache: KVCache) -> None:
        """Mask and addresses for a cache that is new or has grown."""
        parts, call = self.parts, self._verifying
        rows, nodes = self.hidden.shape[:2]
        self.mask = torch.empty(rows, nodes, cache.capacity, dtype=torch.bool)
        parts.layers.check_cache(cache, rows, nodes, self.mask)
        self._cache = cache.data
        codes, places, slots = self.indices
        call.layer = parts.layers.forward(
            codes, places, slots, self.mask, cache.data, self.hidden, self.embedding
        )
        self._scratch = parts.layers.scratch
        self._settling.cache, self._settling.capacity = cache.data.data_ptr(), cache.capacity

    def _address(self) -> None:
        """What `forward` reads and writes besides."""
        parts, state, call = self.parts, self.state, self._verifying
        call.length, call.seen = state.length.data_ptr(), state.seen.data_ptr()
        call.seen_row = state.seen.stride(0)
        call.tokens = None if parts.head.tokens is None else parts.head.tokens.data_ptr()
        call.head = parts.head.output.weight.data_ptr()
        call.raw, call.logits = self.logits[1:].data_ptr(), self.logits[0].data_ptr()

    def _prepared(self) -> Settle:
        """All of `Settle` but the draft and the cache."""
        parts, state, record = self.parts, self.state, self.state.record
        sampling, layers, vocab = parts.sampling, parts.layers, parts.head.output.outputs
        head = layers.width // layers.heads * layers.dtype.itemsize
        return Settle(
            Nodes(), sampling.guidance_rows, vocab, parts.depth, None,
            self.logits[0].data_ptr(), filter_of(sampling), parts.rule.structure(vocab),
            state.uniform.data_ptr(), *state.uniform.shape[1:], ACCEPT_SLOT, TARGET_SLOT,
            parts.image, parts.head.prefix,
            state.length.data_ptr(), self.hidden.data_ptr(), layers.width * layers.dtype.itemsize,
            None, 2 * layers.count, layers.heads, 0, head, state.told_hidden.data_ptr(),
            state.told_codes.data_ptr(), state.told_count.data_ptr(), state.told_start.data_ptr(),
            *(getattr(record, name).data_ptr() for name in RECORD), record.codes.shape[1],
            record.accepted.data_ptr(), record.steps.data_ptr(), record.bad.data_ptr(),
            state.target_calls.data_ptr(), state.drafter_calls.data_ptr(), parts.draft_calls,
            self.path.data_ptr(), self.count.data_ptr(), self.p.data_ptr(), self.work.data_ptr(),
            self.work.shape[-1], len(self.work),
        )  # fmt: skip


RECORD = ("codes", "kind", "step", "depth", "moved", "bound")  # buffers of a Recorder, in order


def _whole(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Checked, with rows that are contiguous each; the rows may be one and the same."""
    if values.shape != shape or values.dtype != torch.int64:
        raise DecoderError(
            "a draft's codes, parents, depths and children keep their shapes in a run: expected "
            f"{list(shape)} int64, found {list(values.shape)} {values.dtype}"
        )
    return values if values[0].is_contiguous() else values.contiguous()
