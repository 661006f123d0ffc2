"""The attention of a target's steps: one implementation by name, or the fastest of each shape.

`auto` measures a shape when it is first met, which is in a decoder's warm-up images, before its
step is recorded. Codes in half precision depend on what was chosen. So all of a run goes by one
choice: it is recorded, and a process that goes on with the run recalls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from decoders.api import DecoderError
from decoders.kernels.candidates import AttentionShape, Implementation, implementation
from decoders.kernels.choose import choose, plain

Record = dict[str, Any]  # of a choice, as `choose` makes it
ANYWHERE = ("slots", "device")  # of a shape; a choice is for all sizes of a growing cache


class Kernels:
    """`name`: `auto`, or an implementation of `decoders.kernels.candidates`; `mode`: how a step
    will run them, see `choose`. Raises DecoderError on another name.

    `agree` is given the record of a new choice and returns the one to go by, which is another
    where a second process of the run was faster.
    """

    def __init__(self, name: str = "auto", mode: str | None = None) -> None:
        self.mode = mode
        self.fixed: Implementation | None = None if name == "auto" else implementation(name)
        self.choices: dict[str, Record] = {}  # by `purpose`
        self.agree: Callable[[Record], Record] = dict
        self._made: dict[tuple[int, int, int, int, int], Implementation] = {}

    def of(self, shape: AttentionShape, most: int, layers: int) -> Implementation:
        """What runs this shape, and the same with other slots, in a target of `layers` layers;
        chosen for `most` slots. Raises DecoderError where the one asked for cannot run it."""
        # A compiler can look this up.
        key = (shape.rows, shape.queries, shape.heads, shape.group, shape.head_dim)
        if key not in self._made:
            self._made[key] = self._chosen(replace(shape, slots=most), layers)
        return self._made[key]

    def _chosen(self, shape: AttentionShape, layers: int) -> Implementation:
        if self.fixed is not None:
            return _running(self.fixed, shape, "use attention=auto")
        key = purpose(plain(shape))
        if key not in self.choices:
            # Half the slots are in use on average over an image's steps.
            used = max(shape.queries, shape.slots // 2)
            self.choices[key] = self.agree(choose(shape, layers=layers, used=used, mode=self.mode))
        return recalled(self.choices[key], shape)

    def recall(self, records: Sequence[Record], device: torch.device) -> None:
        """Goes by what the run has chosen before. Raises DecoderError where one of it cannot run on
        `device`, or is no record of a choice."""
        for record in records:
            shape = shape_of(record, device)
            recalled(record, shape)
            self.choices[purpose(plain(shape))] = record


def purpose(shape: Mapping[str, Any]) -> str:
    """What a choice is for: its recorded shape, whatever the slots and the number of the device."""
    return ", ".join(f"{k} {v}" for k, v in sorted(shape.items()) if k not in ANYWHERE)


def shape_of(record: Mapping[str, Any], device: torch.device) -> AttentionShape:
    """The shape of a record, on `device`. Raises DecoderError."""
    try:
        dtype = getattr(torch, record["shape"]["dtype"])
        return AttentionShape(**{**record["shape"], "dtype": dtype, "device": device})
    except (AttributeError, KeyError, TypeError) as error:
        raise DecoderError(
            f"expected a recorded choice of attention with its shape, found {record}"
        ) from error


def recalled(record: Mapping[str, Any], shape: AttentionShape) -> Implementation:
    """The implementation of a record. Raises DecoderError where it cannot run here."""
    advice = "the run's codes depend on it: go on where it can run, or begin another run"
    return _running(implementation(str(record.get("name"))), shape, advice)


def _running(one: Implementation, shape: AttentionShape, advice: str) -> Implementation:
    reason = one.reason(shape)
    if reason is not None:
        raise DecoderError(f"attention={one.name} cannot run {shape}: {reason}; {advice}")
    return one
