"""Plug-ins that break, time limits that cannot be, links and places that must not be written to."""

from collections.abc import Callable
from pathlib import Path

from tests.edge.table import FOUND, PLACES, Bad

RUN = ["run", "study=fake", "run_dir={tmp}/run"]
OWN = f"hydra.searchpath=[{PLACES},file://{{tmp}}/conf]"
SMALL = [
    *RUN, "model=random24", "latency.prompts=0", "quality.images=1", "quality.reseeds=0",
    "backend.layers=torch",
]  # fmt: skip
REPORT = ["report", "study=fake", FOUND, "run_dir={tmp}/run"]


def plug(group: str, name: str, code: str, call: str = "load") -> Callable[[Path], None]:
    """Writes NAME.py and the option NAME of a group, which names `call` in it."""

    def write(tmp: Path) -> None:
        (tmp / f"{name}.py").write_text(code, encoding="utf-8")
        folder = tmp / "conf" / group
        folder.mkdir(parents=True)
        (folder / f"{name}.yaml").write_text(f"name: {name}\n_target_: {name}.{call}\n")

    return write


def linked(path: str) -> Callable[[Path], None]:
    """A link at run/PATH to a folder outside of the run."""

    def write(tmp: Path) -> None:
        (tmp / "elsewhere").mkdir()
        link = tmp / "run" / path
        link.parent.mkdir(parents=True)
        link.symlink_to(tmp / "elsewhere")

    return write


def loader(group: str, name: str, code: str, says: str) -> Bad:
    """A prompt set, model or metric of one's own that breaks."""
    name = f"broken_{group}_{name}"
    words = [*RUN, OWN, f"{group}={name}", "decoders=[fake_ar]"]
    return Bad(f"{group}: {name}", words, says, plug(group, name, code))


def drafter(name: str, code: str, says: str, call: str = "load", status: int = 1) -> Bad:
    """A drafter whose file breaks."""
    name = f"broken_drafter_{name}"
    own = f"{{decoder: eagle2, name: mine, overrides: ['drafter={name}', '~drafter.name']}}"
    words = [*SMALL, OWN, f"decoders=[ar,{own}]"]
    return Bad(f"drafter: {name}", words, says, plug("drafter", name, code, call), status)


def full(tmp: Path) -> None:
    (tmp / "mine").mkdir()
    (tmp / "mine" / "thesis.tex").write_text("precious")


CASES = [
    drafter("syntax", "import os\ndef load(:\n", "broken_drafter_syntax.py:2"),
    drafter("imports", "import os\nimport nowhere_to_be_found\n", "imports.py:2"),
    drafter("raises", "\n\n1 / 0\n", "broken_drafter_raises.py:3"),
    drafter("exits", "import sys\nsys.exit('bye')\n", "SystemExit: bye"),
    drafter("no_class", "load = 3\n", "must be a class", status=2),
    drafter("misses", "def other():\n    pass\n", "has no 'load'", status=2),
    loader("prompts", "syntax", "def load(count)\n", "broken_prompts_syntax.py:1"),
    loader("prompts", "imports", "import nowhere_to_be_found\n", "nowhere_to_be_found"),
    loader("prompts", "raises", "x = {}\nx['a']\n", "broken_prompts_raises.py:2"),
    loader("prompts", "exits", "raise SystemExit\n", "SystemExit"),
    loader("prompts", "fails", "def load(count):\n    [][count]\n", "broken_prompts_fails.py:2"),
    loader("prompts", "leaves", "def load(count):\n    exit()\n", "SystemExit"),
    loader("prompts", "none", "def load(count):\n    pass\n", "NoneType"),
    loader("prompts", "strings", "def load(count):\n    return ['a'] * count\n", "Prompt("),
    loader("prompts", "text", "def load(count):\n    return 'a cat'\n", "list of prompts"),
    loader("prompts", "few",
        "from bench.prompts import Prompt\ndef load(count):\n    return [Prompt('a', 'b')]\n",
        "are wanted"),
    loader("prompts", "surrogates",
        "from bench.prompts import Prompt\n"
        "def load(count):\n    return [Prompt(str(i), f'\\udcff {i}') for i in range(count)]\n",
        r"\udcff"),
    loader("prompts", "numbers",
        "from bench.prompts import Prompt\n"
        "def load(count):\n    return [Prompt(i, 'a') for i in range(count)]\n",
        "all strings"),
    loader("model", "syntax", "def load(device, dtype)\n", "broken_model_syntax.py:1"),
    loader("model", "imports", "import nowhere_to_be_found\n", "nowhere_to_be_found"),
    loader("model", "raises", "raise ValueError('\\udcff')\n", r"\udcff"),
    loader("model", "fails", "def load(device, dtype):\n    None + 1\n", "model_fails.py:2"),
    loader("model", "none", "def load(device, dtype):\n    pass\n", "ImageModel"),
    loader("model", "keyword", "def load(device):\n    pass\n", "dtype"),
    loader("metric", "syntax", "def load(device)\n", "broken_metric_syntax.py:1"),
    loader("metric", "imports", "import nowhere_to_be_found\n", "nowhere_to_be_found"),
    loader("metric", "fails", "def load(device):\n    assert False\n", "metric_fails.py:2"),
    loader("metric", "none", "def load(device):\n    pass\n", "scorer"),
    *(
        Bad(f"time_limit={value}", [*RUN, FOUND, f"time_limit={value}"], "time_limit must be")
        for value in ("0", "-1", "inf", "nan", "soon", "true")
    ),
    Bad("link: report over report/", REPORT, "report is a link", linked("report")),
    Bad("link: report over partial/", REPORT, "partial is a link", linked("partial")),
    Bad("out is nothing", [*REPORT, "out="], "out=DIR"),
    Bad("out is a file", [*REPORT, "out={tmp}/mine/thesis.tex"], "is a file", full),
    Bad("out is full", [*REPORT, "out={tmp}/mine"], "not empty", full),
    Bad("out in the run", [*REPORT, "out={tmp}/run/report"], "lies in the run"),
    Bad("out of no run", [*REPORT, "out={tmp}/new"], "holds no run"),
]  # fmt: skip
