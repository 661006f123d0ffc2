"""What Python hands to the CPU kernel: its C structures, field by field as in the headers, and the
arguments of its functions.

A field is set from a number, another structure or a tensor. Of a tensor the kernel gets the
address, and the structure holds it for as long. Sizes are compared with the library's own when it
is loaded (`library.library`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling

KINDS: dict[str, Any] = {
    "long": ctypes.c_long,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "pointer": ctypes.c_void_p,
}


def fields(declared: str) -> list[tuple[str, Any]]:
    """Of kinds, each with the names of its fields, as C declares them."""
    lines = [line.split() for line in declared.split(";")]
    return [(name, KINDS[kind]) for kind, *names in lines for name in names]


class Pointer:
    """An argument that is the memory of a tensor, or null for None. The tensor must outlive it."""

    @classmethod
    def from_param(cls, tensor: Tensor | None) -> ctypes.c_void_p | None:
        return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


class Struct(ctypes.Structure):
    """Base of all."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    def __init__(self, *ready: Any, **values: Any) -> None:
        """ready: fields in their order, as ctypes takes them; what they point to is the caller's to
        hold."""
        super().__init__(*ready)
        self.held: dict[str, Any] = {}  # by field what it points to
        self.set(**values)

    def set(self, **values: Any) -> None:
        """Sets fields; those that are not named stay."""
        for name, value in values.items():
            setattr(self, name, value.data_ptr() if isinstance(value, Tensor) else value)
            if isinstance(value, Tensor | Struct):
                self.held[name] = value


class LayerWeights(Struct):
    _fields_ = fields("pointer attention_norm wqkv wo ffn_norm w13 w2")


class Forward(Struct):
    _fields_ = fields(
        """long rows queries width heads ffn layers slots; float eps; int threads;
    pointer weights final_norm input codes; long embedded; pointer output cache rope; long places;
    pointer place; long place_row place_query; pointer slot; long slot_row slot_query;
    pointer mask; long mask_row mask_query; pointer scratch; int products; long times"""
    )


class Filter(Struct):
    _fields_ = fields("float temperature top_p; long top_k")

    @staticmethod
    def of(sampling: Sampling) -> Filter:
        return Filter(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)


class Rule(Struct):
    _fields_ = fields("pointer table; long row; int kind; float value; long k released")


class Expand(Struct):
    _fields_ = fields(
        """Forward layer; long batch nodes; pointer embedding; long embedded;
    pointer tokens fc fc_bias head; long vocab; float cfg;
    pointer features seen root_slot mixed raw logits"""
    )


class Advance(Struct):
    _fields_ = fields(
        """Expand drafter; pointer prefix; long first told; pointer hidden codes count start
    root_code order inputs pairs"""
    )


class Grow(Struct):
    _fields_ = fields(
        """Expand drafter; pointer root_logits root_code; Filter filter;
    long size children levels; pointer left codes child"""
    )


class GrowStatic(Struct):
    _fields_ = fields(
        """Grow base; pointer parents first parent shape uniform; long places row;
    pointer position q"""
    )


class GrowDynamic(Struct):
    _fields_ = fields(
        """Grow base; long candidates; pointer code above score front session best order parents
    depth ancestry expected"""
    )


class NextCode(Struct):
    _fields_ = fields(
        """Forward body; long count batch prefix vocab; pointer tokens head; float cfg;
    Filter filter; pointer uniform; long uniform_row uniform_place uniforms;
    pointer codes place chosen; long recorded;
    pointer bad raw logits p"""
    )


class Nodes(Struct):
    _fields_ = fields(
        """long batch count children; pointer codes parents; long parents_row; pointer level;
    long level_row; pointer child; long child_row by_leaf"""
    )


class Verify(Struct):
    _fields_ = fields(
        """Forward layer; Nodes tree; long prefix; pointer length seen; long seen_row;
    pointer tokens head; long vocab; float cfg; pointer raw logits"""
    )


class Settle(Struct):
    _fields_ = fields(
        """Nodes tree; long copies vocab depth; pointer q logits; Filter filter; Rule rule;
    pointer uniform; long places slots accept_slot target_slot image prefix; pointer length hidden;
    long state; pointer cache; long lines heads capacity head;
    pointer told_hidden told_codes told_count told_start codes kind step at moved bound; long width;
    pointer accepted steps bad drafter_calls; long draft_calls;
    pointer path count p work; long room; int threads"""
    )


# By name (without `lantern_`) what the library's functions are given.
FUNCTIONS = {
    "pack": "pointer weight; long outputs inputs; pointer panels; int half",
    "linear": """pointer x weight bias out; long rows inputs outputs; int threads half;
    long times""",
    "logits": """pointer hidden head; long rows width vocab; int copies; float cfg;
    pointer raw out; int threads half""",
    "judge": """pointer p q left codes valid; Rule rule; long nodes vocab children;
    pointer verdicts; int threads""",
    "scratch": "Forward call",
    "forward": "Forward call; int half",
    "advance": "Advance call; int half",
    "grow_static": "GrowStatic call; int half",
    "grow_dynamic": "GrowDynamic call; int half",
    "verify": "Verify call; int half",
    "settle": "Settle call",
    "next": "NextCode call; int half",
}


def arguments(declared: str) -> list[Any]:
    """Types of a function's arguments: structures are passed by address."""
    kinds = [kind for _, kind in fields(declared)]
    passed: dict[Any, Any] = {ctypes.c_void_p: Pointer}
    passed |= {kind: ctypes.POINTER(kind) for kind in Struct.__subclasses__()}
    return [passed.get(kind, kind) for kind in kinds]


def require(
    name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, written: bool = False
) -> Tensor:
    """The tensor, contiguous. Raises DecoderError where it is of another shape or dtype, or not on
    the CPU. written: a call changes it in place, so that it must be contiguous as it is; it may
    have more dimensions."""
    found = tuple(tensor.shape[: len(shape)] if written else tensor.shape)
    wrong = written and not tensor.is_contiguous()
    if found != tuple(shape) or wrong or tensor.dtype != dtype or tensor.device.type != "cpu":
        more = (" and on", ", contiguous,") if written else ("", " on the CPU,")
        raise DecoderError(
            f"the CPU kernel expected {name} {list(shape)}{more[0]} in {dtype}{more[1]} found "
            f"{list(tensor.shape)} in {tensor.dtype} on {tensor.device}"
        )
    return tensor.contiguous()
