"""Steps of the target as calls of the CPU kernel: plain next-code decoding, again and again; and
of a speculative step the target on the tree, then acceptance with all that follows from it (record,
commit, what the drafter is told).

They compute what `decoders.loops.autoregressive.Autoregressive` does in some twenty operators a
step and `decoders.loops.speculative.Speculative` in some ninety, each a few microseconds, around a
verification of less than two milliseconds. Structures and buffers are made once an image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Draft
from decoders.cache import KVCache
from decoders.execution.cpu.layers import Native, check
from decoders.execution.cpu.library import library, run
from decoders.execution.cpu.rules import NativeRule
from decoders.execution.cpu.structures import (
    Filter,
    NextCode,
    Nodes,
    Rule,
    Settle,
    Verify,
    require,
)
from decoders.noise import ACCEPT_SLOT, TARGET_SLOT


def embedded(target: Any, native: Native) -> Tensor:
    """The target's embedding [tokens, D], contiguous. Raises DecoderError where it does not fit
    the layers."""
    weight: Tensor = target.tok_embeddings.weight
    check(weight, native.layers.width, native.layers.dtype)
    return weight.detach().contiguous()


class NativeNext:
    """The steps of one run of plain decoding, as long as its tensors and its cache stay where they
    are."""

    def __init__(self, loop: Any, run: Any, native: Native) -> None:
        target, sampling, cache, record = loop.model.target, loop.sampling, run.cache, run.record
        layers, head, embedding = native.layers, native.project, embedded(target, native)
        rows, batch, vocab = cache.rows, len(run.codes), head.outputs
        if rows != batch * sampling.guidance_rows:
            raise DecoderError(f"{batch} codes with guidance {sampling.cfg} in {rows} cache rows")
        uniform, long = run.noise.uniform[..., TARGET_SLOT], torch.int64  # [B, N], strided
        require("noise", uniform, (batch, uniform.shape[1]), torch.float32)
        written = {
            "seen": (run.seen, (rows, 1), torch.bool),
            "codes": (run.codes, (batch,), long),
            "place": (run.place, (1,), long),
            "chosen": (record.codes, (batch,), long),
            "bad": (record.bad, (), torch.bool),
        }
        for name, (tensor, shape, dtype) in written.items():
            require(name, tensor, shape, dtype, written=True)
        ids, slots = torch.zeros(2, rows, 1, dtype=torch.long)  # rows of the embedding, slots
        mask = run.seen[..., : cache.capacity]
        layers.check_cache(cache, rows, 1, mask)
        out = torch.empty(rows, 1, layers.width, dtype=layers.dtype)
        logits = torch.empty(2 + sampling.guidance_rows, batch, vocab)  # guided, p, of the rows
        self.cache = cache.data
        self._call = NextCode(
            # A code's place in the rotary table is its slot.
            body=layers.forward(ids, slots, slots, mask, cache.data, out, embedding),
            batch=batch, prefix=target.prefix, vocab=vocab, tokens=target.code_tokens,
            head=head.weight, cfg=sampling.cfg, filter=Filter.of(sampling),
            uniform=uniform, uniform_row=uniform.stride(0),
            uniform_place=uniform.stride(1), uniforms=uniform.shape[1],
            codes=run.codes, place=run.place,
            chosen=record.codes, recorded=record.codes.shape[1],
            bad=record.bad, raw=logits[2], logits=logits[0], p=logits[1],
        )  # fmt: skip
        self._arguments = (library().lantern_next, self._call, layers.half)

    def __call__(self, count: int = 1) -> None:
        """`count` steps. Raises DecoderError past the image's end, or for a code outside the
        tables, before the first of them."""
        self._call.count = count
        run("next", *self._arguments)


class NativeStep:
    """Verification and settling of the steps of one run of a speculative loop."""

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
        run("forward", self._verify, call, self.layers.half)
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
        run("settle", self._settle, call)
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
