"""The README is short, its links and those of docs/ lead somewhere, and its drafter works."""

import re
import shlex
from pathlib import Path

import pytest

from bench.config.compose import compose_study
from bench.config.schema import variants
from bench.run.finish import run_gate
from decoders.models.random_weights import random_model

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_readme_is_read_in_a_few_minutes():
    assert len(README.splitlines()) <= 110
    assert sum(len(page.read_text().split()) for page in PAGES) <= 9500, "README and docs"
    assert README.count("![") == 2, "a plot and a strip of pictures"
    clone, *commands = next(text for kind, text in BLOCKS if not kind).splitlines()
    assert clone.startswith("git clone --depth 1")
    assert [line.split()[:2] for line in commands] == [["make", "bench"], ["make", "test"]]


def anchors(page: Path) -> set[str]:
    """Names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        name, _, heading = link.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), link
        assert not heading or heading in anchors(there), link


def test_the_drafter_of_the_readme_decodes_exactly(tmp_path, monkeypatch, small_images):
    (source,) = [text for kind, text in BLOCKS if kind == "python"]
    (settings,) = [text for kind, text in BLOCKS if kind == "yaml"]
    (tmp_path / "my_drafter.py").write_text(source)
    (tmp_path / "conf" / "drafter").mkdir(parents=True)
    (tmp_path / "conf" / "drafter" / "marginal.yaml").write_text(settings)
    monkeypatch.syspath_prepend(tmp_path)
    (command,) = [text for kind, text in BLOCKS if not kind and "drafter=marginal" in text]
    words = shlex.split(command.strip().splitlines()[-1])
    assert words[:4] == ["python", "-m", "bench", "run"]
    config = compose_study([*words[4:], f"hydra.searchpath=[file://{tmp_path}/conf]"])
    model = random_model(vocab=40, grid=4)
    (mine,) = [one for one in variants(config, model.sampling) if one.name == "mine"]
    (report,) = run_gate(model, [mine], lambda: ["a red ball"])
    assert report.verdict == "exact", report.detail
