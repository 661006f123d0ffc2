"""What `bench predict hardware=NAME` is told wrongly: machines, models, figures, runs."""

from pathlib import Path

from tests.edge.cases_folders import another, half, older
from tests.edge.table import Bad

RUN = "run_dir={tmp}/run"
TO = ["predict", "hardware=h200", RUN]
OWN = ["predict", "hardware=mine", "hydra.searchpath=[file://{tmp}]", RUN]


def own(text: str):
    """A machine of the user's own with that YAML."""

    def prepare(tmp: Path) -> None:
        (tmp / "hardware").mkdir()
        (tmp / "hardware" / "mine.yaml").write_text(text)

    return prepare


CASES = [
    Bad("a machine with a typo", ["predict", "hardware=h20", RUN], "did you mean 'h200'"),
    Bad("no machine", ["predict", "hardware=", RUN], "hardware"),
    Bad("a machine's figure with a typo", [*TO, "hardware.memory_gbs=1"], "memory_gb_s"),
    Bad("a machine without bandwidth", [*TO, "hardware.memory_gb_s=0"], "at least 0.001"),
    Bad("a machine whose bandwidth is a word", [*TO, "hardware.memory_gb_s=fast"], "memory_gb_s"),
    Bad("a figure without a machine", ["predict", "hardware.kernel_us=0", RUN], "name it with"),
    Bad(
        "a machine of one's own that lacks a figure",
        OWN,
        "hardware.gpu is missing",
        own("name: mine\n"),
    ),
    Bad("a machine of one's own that is a list", OWN, "must be a mapping", own("- 1\n")),
    Bad("projection to a model with a typo", [*TO, "model=llamagen_xl_265"], "llamagen_xl_256"),
    Bad("projection with words of a run", [*TO, "seed=5"], "unknown setting of `predict hardware"),
    Bad(
        "projection without a value",
        ["predict", "hardware=h200", "run_dir="],
        "run_dir=VALUE",
    ),
    Bad("projection of no run", TO, "holds no run"),
    Bad("projection of a damaged study.json", TO, "damaged", half),
    Bad("projection of older rows", TO, "schema version 1", older),
    Bad("projection of damaged rows", TO, "damaged", another),
]
