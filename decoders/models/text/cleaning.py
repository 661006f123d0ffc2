"""The caption cleaning that LlamaGen was trained and sampled with (2406.06525): a table of rules.

Why: features of an uncleaned caption are other features, and other images. The rules were made for
captions scraped from the web; each is applied in order, and the whole table twice. They are kept as
they are, also where they eat honest words ("free shipping", "grass.covered").
"""

from __future__ import annotations

import html
import re
import urllib.parse
from html.parser import HTMLParser

DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)
SITE = r"[a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
FILES = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"

Rules = tuple[tuple[str, str], ...]  # patterns, and what stands in their places
ADDRESSES: Rules = (
    (rf"\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{SITE})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{SITE})", ""),
)
SYMBOLS: Rules = (
    (r"@\w+\b", ""),  # nicknames
    ("[\u31c0-\u9fff]+", ""),  # CJK strokes, katakana extensions, enclosed letters, ideographs
    (f"[{re.escape(DASHES[0])}{DASHES[1:]}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # network addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{FILES})", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
WORDS: Rules = (
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # article numbers
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{FILES})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    ("\\b\\d+\\.?\\d*[x\u0445\u00d7]\\d+\\.?\\d*\\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)
JOINED = "[-_]"


class _Text(HTMLParser):
    """Collects what a page would show: no tags, comments, scripts or styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def clean(caption: str) -> str:
    """A caption as LlamaGen's text encoder sees it: lower case, no markup, addresses, nicknames,
    file names or brackets, plain quotes and dashes. May be empty."""
    return _once(_once(caption))


def _once(caption: str) -> str:
    import ftfy

    text = urllib.parse.unquote_plus(caption).strip().lower()
    text = _apply(ADDRESSES, text.replace("<person>", "person"))
    text = _apply(SYMBOLS, _without_tags(text))
    if len(re.findall(JOINED, text)) > 3:  # this-is-my-cute-cat
        text = re.sub(JOINED, " ", text)
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return _apply(WORDS, text).strip()


def _apply(rules: Rules, text: str) -> str:
    for pattern, new in rules:
        text = re.sub(pattern, new, text)
    return text


def _without_tags(text: str) -> str:
    parser = _Text()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)
