"""Which files a decoder is made of, and what counts as a change of them."""

from pathlib import Path

import pytest

from bench.records.sources import code_of, sources_of


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `mine_pkg` with a part, a helper that it imports when called, and a type."""
    folder = tmp_path / "mine_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text(
        '"""Words."""\nimport numpy\nfrom typing import TYPE_CHECKING\n'
        "import bench.data.errors\nif TYPE_CHECKING:\n    from . import types_only\n"
        "class Part:\n    def __init__(self, model):\n        from .help import depth\n"
    )
    (folder / "help.py").write_text("import beside\ndepth = 1\n")
    (folder / "types_only.py").write_text("")
    (tmp_path / "beside.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code_of.cache_clear()
    return tmp_path


def files(target: str = "mine_pkg.part.Part") -> dict[str, str]:
    code_of.cache_clear()  # as another process would
    found = sources_of([target])
    return {k: v for k, v in found.items() if not k.startswith("decoders/")}


def test_a_part_is_its_module_and_all_that_it_imports(plugin: Path):
    expected = ["beside.py", "mine_pkg/__init__.py", "mine_pkg/help.py", "mine_pkg/part.py"]
    assert [*files()] == expected == [*files("mine_pkg.part:Part")]
    assert {"mine_pkg/nothing.py": "missing"}.items() <= files("mine_pkg.nothing.Part").items()


def test_code_counts_and_words_do_not(plugin: Path):
    before = files()
    part = plugin / "mine_pkg" / "part.py"
    part.write_text("# A comment.\n" + part.read_text().replace("Words", "Other words"))
    assert files() == before
    (plugin / "beside.py").write_text("x = 2\n")
    after = files()
    assert {k for k in before if before[k] != after[k]} == {"beside.py"}
    part.write_text("class Part(:")
    assert files()["mine_pkg/part.py"] != before["mine_pkg/part.py"], "no Python, yet changed"


def test_a_rule_s_source_is_no_part_of_plain_decoding():
    rule = "decoders/verify/lantern.py"
    assert rule not in sources_of(["decoders.loops.autoregressive.Autoregressive"])
    assert rule in sources_of(["decoders.verify.lantern.Lantern"])
    assert "decoders/execution/cpu/kernel.cpp" in sources_of([])
