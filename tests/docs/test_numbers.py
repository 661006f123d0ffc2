"""The figures of README and results.md are those of the committed runs that the section names, and
README's first lines say what the committed table of claims says."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

TABLES = ROOT / "results" / "tables"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
NUMBER = r"-?\d+\.\d+"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")
ROW = re.compile(r"^\|(?!:?-).*\|$", re.MULTILINE)

Figures = tuple[str, ...]  # a number, or a number with its interval


def sections(page: Path) -> list[str]:
    """The text below each heading of the second level, formulas and code left out."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.split(r"^## ", prose, flags=re.MULTILINE)


def folders(text: str) -> list[Path]:
    """The committed runs that a section names, by their paths or by their folders alone."""
    names = re.findall(r"results/tables/([\w/]+?)/?(?:table\.md)?[)`]", text)
    names += re.findall(r"`(\w+)`", text)
    every = [TABLES / name / "table.md" for name in dict.fromkeys(names)]
    return [path for path in every if path.is_file()]


def figures(text: str) -> set[Figures]:
    return {*INTERVAL.findall(text), *((one,) for one in re.findall(NUMBER, text))}


def measured(paths: list[Path]) -> tuple[dict[str, set[Figures]], set[Figures]]:
    """What the tables say of each decoder, and of all and between them."""
    of, every = dict[str, set[Figures]](), set[Figures]()
    for text in (path.read_text().replace("\\_", "_") for path in paths):
        every |= figures(text)
        for row in ROW.findall(text):
            name = row.split("|")[1].strip()
            if not name.isdigit():  # a level of a figure, no decoder
                of.setdefault(name, set()).update(figures(row))
    return of, every


def rounded(said: Figures, found: Figures) -> bool:
    """Whether the figures said are the found ones, rounded to the decimals that are said."""
    return len(said) == len(found) and all(
        abs(float(one) - float(other)) <= 0.5 * 10.0 ** -len(one.partition(".")[2]) * (1 + 1e-9)
        for one, other in zip(said, found, strict=True)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_interval_and_every_figure_of_a_table_is_of_a_committed_run(page):
    checked = 0
    for text in sections(page):
        paths = folders(text)
        of, every = measured(paths)
        title = text.partition("\n")[0]
        wanted = [(one, every, title) for one in {*INTERVAL.findall(text)}]
        for row in ROW.findall(text):
            words = re.findall(r"\w+", row)
            names = [n for n in of if n.removesuffix("_greedy") in words]
            allowed = set[Figures]().union(*(of[name] for name in names)) if names else every
            wanted += [(one, allowed, row) for one in figures(row)]
        for said, allowed, where in wanted if paths else ():
            assert any(rounded(said, found) for found in allowed), (said, where)
            checked += 1
    assert checked > 50


def test_readme_counts_the_claims_and_names_three_that_the_table_has():
    """A surprise is a claim that does not hold, or is refuted, of a paper that it names."""
    table = (TABLES / "claims.md").read_text().replace("\\_", "_")
    parts = (ROOT / "README.md").read_text().split("\n\n")
    opening = next(part for part in parts if "claims.md" in part)
    said = " ".join(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", opening).split())
    counted, _, rest = said.partition(" Most surprising: ")
    for count in (
        r"\d+ claims of \d+ papers",
        r"(\d+) hold(?! at)",
        r"(\d+) do not",
        r"(\d+) are refu",
    ):
        assert re.findall(count, counted) == re.findall(count, table)[:1], count
    surprises = rest.split(";")
    assert len(surprises) == 3
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in ROW.findall(table)]
    against = [row for row in rows if row[2] in ("does not hold", "refuted without a run")]
    for surprise in surprises:
        (figure,) = re.findall(NUMBER, surprise)
        found = [one for row in against if row[1] in surprise for one in re.findall(NUMBER, row[4])]
        assert any(rounded((figure,), (one.lstrip("-"),)) for one in found), surprise
