"""Whether a part still computes what its class says of it (`decoders.api.Computes`)."""

from __future__ import annotations

from typing import Any


def computed(part: Any, name: str) -> bool:
    """Whether a part computes what its class, or one that it inherits from, says under `name`: no
    method meant is overridden by a subclass or by the object itself (what stands in a method's
    place and is the same says so by being ``unchanged``)."""
    for owner in type(part).__mro__:
        for said in vars(owner).get("computes", ()):
            if said.name == name:
                return all(_same(part, owner, method) for method in said.methods)
    return False


def _same(part: Any, owner: type, method: str) -> bool:
    own = vars(part).get(method) if hasattr(part, "__dict__") else None
    if own is not None and not getattr(own, "unchanged", False):
        return False
    return getattr(type(part), method, None) is getattr(owner, method, None)
