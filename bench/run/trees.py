"""The draft trees of a study, without its model: most need none to be built."""

from __future__ import annotations

from typing import Any

from bench.config.schema import DecoderEntry
from bench.run.outcome import Failure, attempt


def tree_of(entry: DecoderEntry) -> Any:
    """The tree of an entry; None where it drafts none, a `Failure` where it needs a model."""
    if entry.spec.tree is None:
        return None
    from decoders.compose import build_part

    spec = entry.spec.tree
    no_model: Any = None
    return attempt(lambda: build_part(spec, no_model))


def tree_sizes(entries: list[DecoderEntry] | tuple[DecoderEntry, ...]) -> tuple[int, ...]:
    """The nodes of the entries' trees without their roots, every size once, the smallest first."""
    trees = [tree_of(entry) for entry in entries]
    sizes = {int(t.nodes) for t in trees if t is not None and not isinstance(t, Failure)}
    return tuple(sorted(sizes - {0}))
