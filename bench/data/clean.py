"""Names, prompts and messages for a terminal and for Markdown, without characters that move the
cursor, end a cell or start markup. The page escapes its markup by itself (autoescape).
"""

from __future__ import annotations

import re

# Controls but tab and newline, line separators, what sets the direction of writing or cannot be
# seen, and lone surrogates, which no file can hold.
HIDDEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
MARKUP = re.compile(r"[\\|*_<`]|\](?=[(\[:])|\[(?=\^)")  # ends a cell, or starts markup or a link


def shown(text: str) -> str:
    """For a terminal or a text file: hidden characters as escapes (`\\x1b`, `\\u202e`)."""
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """The text for a cell of a table, which a line break would end."""
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def for_markdown(text: str) -> str:
    """For Markdown: without what would end a cell or start markup, a link or a picture, on one
    line."""
    return " ".join(MARKUP.sub(lambda found: "\\" + found[0], shown(text)).split())
