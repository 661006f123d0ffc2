"""Decoders with names in any script: figures draw their letters where a font here has them, and one
message says where none has. Columns of terminal tables stay below each other."""

import logging
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.report import fonts
from bench.report.page import write_report
from bench.report.style import STYLE, styled
from bench.report.table import columns_of, table_of_texts, terminal
from tests.bench.report.synthetic import DECODERS, made_run

LETTERS, MISSING = "解码器", "标"  # letters of the font, and one that it lacks


def write_font(path: Path) -> None:
    """A font in which each letter of `LETTERS` is a box of another height."""
    builder, glyphs = FontBuilder(1000, isTTF=True), {}
    names = {ord(letter): f"letter{at}" for at, letter in enumerate(LETTERS)}
    for at, name in enumerate([".notdef", *names.values()]):
        pen, top = TTGlyphPen(None), 200 * at + 100
        for step, corner in enumerate([(0, 0), (0, top), (800, top), (800, 0)]):
            (pen.lineTo if step else pen.moveTo)(corner)
        pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyphOrder([*glyphs])
    builder.setupCharacterMap(names)
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Made of Boxes", "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(path)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Such a font is the only one that this machine has besides matplotlib's."""
    brought = Path(matplotlib.get_data_path())
    manager = font_manager.fontManager
    own = [font for font in manager.ttflist if Path(font.fname).is_relative_to(brought)]
    write_font(tmp_path / "boxes.ttf")
    (tmp_path / "damaged.ttf").write_bytes(b"no font")
    monkeypatch.setattr(manager, "ttflist", own)
    files = [str(tmp_path / "boxes.ttf"), str(tmp_path / "damaged.ttf")]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: files)
    caches = fonts.fallback_fonts, fonts.letters_of
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def drawn(text: str) -> np.ndarray:
    """The pixels of a text."""
    figure = Figure((2, 1))
    figure.text(0.1, 0.4, text)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def test_letters_that_dejavu_lacks_are_drawn_by_an_installed_font(installed, monkeypatch, caplog):
    assert fonts.fallback_fonts() == ("Made of Boxes",)
    monkeypatch.setitem(STYLE, "font.family", [fonts.FIRST, *fonts.fallback_fonts()])
    with styled():
        assert not (drawn("解码") == drawn("码解")).all()
        assert not (drawn("a解") == drawn("b解")).all(), "DejaVu's letters are still DejaVu's"
    fonts.warn_of_missing_letters(["ar", LETTERS])
    assert not caplog.records
    fonts.warn_of_missing_letters(["ar", LETTERS + MISSING])
    assert f"has the letters {MISSING}, " in caplog.text


def test_a_report_says_once_which_letters_no_font_has(installed, tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(STYLE, "font.family", [fonts.FIRST])
    monkeypatch.setattr(fonts, "fallback_fonts", lambda: ())
    names = iter(("解码器", "标准版"))
    decoders = [one if one.name == "ar" else replace(one, name=next(names)) for one in DECODERS[:3]]
    run = made_run(tmp_path / "run", tuple(decoders), prompts=2)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        write_report(run)
    assert [record.message for record in caplog.records if "letters" in record.message] == [
        "no font that is installed here has the letters 准器标版码解, and the figures in PNG and "
        "PDF show a box for each; install a font that has them (as Noto Sans CJK), or give the "
        "decoders other names (name=...)"
    ]


def test_columns_of_wide_letters_stand_below_each_other():
    rows = [["解码器", "1.00"], ["sd_chain", "1.25"], ["e\u0301a", "1.50"], ["ﾃｽﾄ", "2"]]
    lines = terminal(table_of_texts(["decoder", "speed"], rows)).splitlines()
    starts = {columns_of(line[: line.rindex(" ") + 1]) for line in lines}
    assert starts == {10}
