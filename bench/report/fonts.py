"""Fonts for letters that DejaVu Sans lacks, of those that are installed here: a name may be in any
script."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

log = logging.getLogger(__name__)
FIRST = "DejaVu Sans"  # matplotlib brings it
# A letter of each script: Chinese (simple, traditional), Japanese, Korean, Thai, Lao, Khmer,
# Burmese, Tibetan, those of India and Sri Lanka, Ethiopic, Cherokee.
SCRIPTS = "码標あア가กກកကཀअঅਅઅଅஅఅಅഅඅአᎠ"


@cache
def fallback_fonts() -> tuple[str, ...]:
    """Names of the installed fonts that together have a letter of each script of `SCRIPTS`, as far
    as there are any. A family is looked into once, in its plain face."""
    manager, brought = font_manager.fontManager, Path(matplotlib.get_data_path())
    listed = {font.fname for font in manager.ttflist}
    for path in {*font_manager.findSystemFonts()} - listed:  # installed since the list was kept
        with suppress(OSError, RuntimeError, ValueError):  # damaged, or of a kind it does not read
            manager.addfont(path)
    wanted, names = {*SCRIPTS} - letters_of(FIRST), list[str]()
    for font in sorted(manager.ttflist, key=lambda font: (font.name, font.fname)):
        plain = font.style == "normal" and font.weight in (400, "normal", "regular", "book")
        if not wanted or not plain or Path(font.fname).is_relative_to(brought):
            continue
        if font.name not in names and (covered := wanted & letters_of(font.name)):
            wanted -= covered
            names.append(font.name)
    return tuple(names)


@cache
def letters_of(name: str) -> frozenset[str]:
    """The letters that a font has; none of one that cannot be read."""
    with suppress(OSError, RuntimeError, ValueError):
        path = font_manager.findfont(name, fallback_to_default=False)
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    return frozenset()


def warn_of_missing_letters(names: Iterable[str]) -> None:
    """Says once which letters of these names no font here has: figures show a box for each."""
    have = letters_of(FIRST).union(*map(letters_of, fallback_fonts()))
    lacking = sorted({letter for name in names for letter in name} - have)
    if lacking:
        log.warning(
            "no font that is installed here has the letters %s, and the figures in PNG and PDF "
            "show a box for each; install a font that has them (as Noto Sans CJK), or give the "
            "decoders other names (name=...)",
            "".join(lacking),
        )
