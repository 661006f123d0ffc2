"""Static trees that have a name: the released ones, and smaller ones of this project.

The released trees are the authors' paths, under the authors' names (`released.json`; METHODS 4).
Level widths do not determine a tree, so these are never rebuilt from widths.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path as FilePath

from decoders.api import DecoderError
from decoders.noise import MAX_CHILDREN

Path = tuple[int, ...]

# What a released tree is for, as another name of it.
ALIASES = {"eagle_25": "mc_sim_7b_63", "lantern_57": "naive_extend_57"}
WIDTHS: dict[str, list[int]] = {
    "small_12": [3, 3, 2, 2, 1, 1],
    "binary_8": [2, 2, 2, 1, 1],
    "narrow_9": [2, 1, 1, 1, 1, 1, 1, 1],
    "narrow_5": [2, 1, 1, 1],
}


def widths_to_paths(widths: Sequence[int]) -> list[Path]:
    """A tree with the given level widths, mass at the low ranks.

    A level takes the candidates of least cost from the level above, where a child of rank r costs r
    and ranks add up along a path: likely paths (all first ranks) get most of the children.
    """
    level: list[Path] = [()]
    paths: list[Path] = []
    for width in widths:
        candidates = [(*path, rank) for path in level for rank in range(MAX_CHILDREN)]
        candidates.sort(key=lambda p: (sum(p), max(p), p))
        if width < 1 or width > len(candidates):
            raise DecoderError(f"tree level widths must be in 1..{len(candidates)}, found {width}")
        level = sorted(candidates[:width])
        paths += level
    return paths


@cache
def named_trees() -> dict[str, list[Path]]:
    """The paths of every named tree; the released ones first."""
    text = FilePath(__file__).with_name("released.json").read_text(encoding="utf-8")
    released = {name: [tuple(path) for path in paths] for name, paths in json.loads(text).items()}
    return released | {name: widths_to_paths(widths) for name, widths in WIDTHS.items()}


def tree_names() -> list[str]:
    """Every name that a tree can be asked for by."""
    return [*named_trees(), *ALIASES]


def own_name(name: str) -> str:
    """The name that a tree has in tables. Raises DecoderError, with the nearest, where no tree is
    called so."""
    found = ALIASES.get(name, name)
    if found not in named_trees():
        near = difflib.get_close_matches(name, tree_names(), 3, 0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise DecoderError(
            f"unknown static tree {name!r}{hint}; known: {', '.join(tree_names())}; or give its "
            "paths, as in [[0],[1],[0,0]]"
        )
    return found
