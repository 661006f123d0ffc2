"""What an execution may compute in another way: a class names it, with the methods that it is.

A class that inherits `Known` says so in its one attribute ``known``. Subclasses inherit it, without
what they override a method of. So a call that takes the place of methods is never taken for a part
that has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar


class Capability(Enum):
    """What executions know a faster way for, or ask for."""

    RESTART = auto()  # a session that starts again on other images
    NEXT = auto()  # a step of plain decoding
    DRAFT = auto()  # of a speculative step
    FORWARD = auto()
    SETTLE = auto()
    TARGET = auto()  # from codes to guided logits, and the cache
    HEAD = auto()  # from states to logits
    EAGLE_NET = auto()
    EAGLE_LAYER = auto()
    EAGLE_SESSION = auto()
    GROWN = auto()  # a drafter that grows a tree
    STATIC_TREE = auto()
    DYNAMIC_TREE = auto()
    BY_NODE = auto()  # a rule at every node
    EXACT = auto()
    LANTERN = auto()
    LANTERN_PP = auto()


class Known:
    """Base of the classes that say what they compute. ``known``: by piece its methods."""

    known: ClassVar[Mapping[Capability, tuple[str, ...]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        said = vars(cls).get("known", {})
        inherited = {
            piece: methods
            for base in reversed(cls.__bases__)
            if issubclass(base, Known)
            for piece, methods in base.known.items()
            if not any(method in vars(cls) for method in methods)
        }
        cls.known = inherited | dict(said)


# A subclass that keeps more has its own.
RESTART: Mapping[Capability, tuple[str, ...]] = {Capability.RESTART: ("__init__", "restart")}


def knows(part: Any, piece: Capability) -> bool:
    """Whether a part computes a piece as a class says that names it: neither a subclass nor the
    object itself has a method of its own in it."""
    methods = part.known.get(piece) if isinstance(part, Known) else None
    return methods is not None and not any(method in vars(part) for method in methods)
