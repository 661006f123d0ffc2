"""The two calls of a speculative step after the draft: the target on the tree, and acceptance with
all that follows from it (record, commit, what the drafter is told).

They compute what `decoders.loops.speculative.Speculative` does in some ninety operators, each a few
microseconds, around a verification of less than two milliseconds. Structures and buffers are made
once an image.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft
from decoders.cache import KVCache
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.packing import Native
from decoders.execution.cpu.rules import NativeRule
from decoders.execution.cpu.stepping import embedded
from decoders.execution.cpu.structures import Filter, Nodes, Rule, Settle, Verify, require
from decoders.noise import ACCEPT_SLOT, TARGET_SLOT


class NativeStep:
    """Verification and settling of the steps of one run of `loop`."""

    def __init__(self, loop: Any, run: Any, native: Native, rule: NativeRule) -> None:
        target, proposer, self.sampling = loop.model.target, loop.proposer, loop.sampling
        self.layers, head = native.layers, native.project
        batch, copies, nodes = len(run.length), self.sampling.guidance_rows, proposer.nodes + 1
        rows, width, vocab = batch * copies, self.layers.width, head.outputs
        self.shape = batch, nodes, proposer.branching
        self.hidden = torch.empty(rows, nodes, width, dtype=self.layers.dtype)
        self.indices = torch.zeros(3, rows, nodes, dtype=torch.long)  # codes, places, slots
        self.logits = torch.empty(1 + copies, batch, nodes, vocab)  # guided; then of each row
        self.p = torch.zeros(batch, nodes, vocab)
        self.path = torch.zeros(batch, proposer.depth + 1, dtype=torch.long)
        self.count = torch.zeros(batch, dtype=torch.long)
        self.work = torch.empty(torch.get_num_threads(), 3, max(vocab, nodes))
        self.embedding = embedded(target, native)
        uniform = run.noise.uniform.contiguous()
        places, slots = uniform.shape[1:]
        require("noise", uniform, (batch, places, slots), torch.float32)
        if slots < ACCEPT_SLOT + proposer.branching:
            raise DecoderError(
                f"{proposer.branching} children a node need more noise than {slots} a place"
            )
        self._tree = Nodes(batch=batch, count=nodes, children=proposer.branching)
        self._cache: Tensor | None = None
        self.mask = torch.empty(0, dtype=torch.bool)  # [R, N + 1, S], with the cache's S
        self._half = ctypes.c_int(self.layers.dtype == torch.bfloat16)
        self._verify, self._settle = library().lantern_verify, library().lantern_settle
        self._verifying = Verify(
            prefix=target.prefix, length=run.length, seen=run.open, seen_row=run.open.stride(0),
            tokens=target.code_tokens, head=head.weight, vocab=vocab, cfg=self.sampling.cfg,
            raw=self.logits[1:], logits=self.logits[0],
        )  # fmt: skip
        self._settling = self._prepared(loop, run, uniform, rule.structure(vocab))

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
        made = self._tree
        made.codes, made.by_leaf = codes.data_ptr(), draft.by_leaf
        made.parents, made.parents_row = parents.data_ptr(), parents.stride(0)
        made.level, made.level_row = level.data_ptr(), level.stride(0)
        made.child, made.child_row = child.data_ptr(), child.stride(0)
        return made

    def _fit(self, cache: KVCache) -> None:
        """Mask and addresses for a cache that is new or has grown."""
        layers, (rows, nodes) = self.layers, self.hidden.shape[:2]
        self.mask = torch.empty(rows, nodes, cache.capacity, dtype=torch.bool)
        layers.check_cache(cache, rows, nodes, self.mask)
        self._cache = cache.data
        codes, places, slots = self.indices
        call = layers.forward(
            codes, places, slots, self.mask, cache.data, self.hidden, self.embedding
        )
        self._verifying.set(layer=call)
        self._settling.set(cache=cache.data, capacity=cache.capacity)

    def _prepared(self, loop: Any, run: Any, uniform: Tensor, rule: Rule) -> Settle:
        """All of `Settle` but the draft and the cache."""
        layers, record, told = self.layers, run.record, run.seen
        places, slots = uniform.shape[1:]
        return Settle(
            copies=self.sampling.guidance_rows, vocab=self.p.shape[-1], depth=loop.proposer.depth,
            logits=self.logits[0], filter=Filter.of(self.sampling), rule=rule, uniform=uniform,
            places=places, slots=slots, accept_slot=ACCEPT_SLOT, target_slot=TARGET_SLOT,
            image=loop.model.target.length, prefix=loop.model.target.prefix,
            length=run.length, hidden=self.hidden,
            state=layers.width * layers.dtype.itemsize, lines=2 * layers.count, heads=layers.heads,
            head=layers.width // layers.heads * layers.dtype.itemsize,
            told_hidden=told.hidden, told_codes=told.codes,
            told_count=told.count, told_start=told.start,
            codes=record.codes, kind=record.kind, step=record.step, at=record.depth,
            moved=record.moved, bound=record.bound, width=record.codes.shape[1],
            accepted=record.accepted, steps=record.steps, bad=record.bad,
            drafter_calls=run.drafter_calls, draft_calls=loop.draft_calls or 0,
            path=self.path, count=self.count, p=self.p,
            work=self.work, room=self.work.shape[-1], threads=len(self.work),
        )  # fmt: skip


def _whole(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Checked, with rows that are contiguous each; the rows may be one and the same."""
    if values.shape != shape or values.dtype != torch.int64:
        raise DecoderError(
            "a draft's codes, parents, depths and children keep their shapes in a run: expected "
            f"{list(shape)} int64, found {list(values.shape)} {values.dtype}"
        )
    return values if values[0].is_contiguous() else values.contiguous()
