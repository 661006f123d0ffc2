"""Values of another kind or outside their range on the command line; `test_values` has the rest."""

from collections.abc import Sequence
from pathlib import Path

from tests.edge.table import SMALL, Bad

STUDY = ["fetch", "study=smoke", "decoders=[ar]"]  # composes the study, no more
RUN = ["run", "study=smoke", "decoders=[lantern]", "gate=false", "metric=none", "run_dir={tmp}/run"]
TRAIN = ["train", "run_dir={tmp}/train"]
PLUGIN = """
from collections.abc import Sequence
from typing import Annotated
from decoders.verify.exact import Exact
from decoders.kinds import Within

class Mine(Exact):
    def __init__(
        self, model, width: int = 3, rate: float = 0.5, name: str = "x", on: bool = True,
        sizes: Sequence[int] = (1,), share: Annotated[float, Within(0, 1)] = 0.5,
    ):
        super().__init__(model)
"""


def plugin(tmp: Path) -> None:
    (tmp / "mine_rule.py").write_text(PLUGIN)


def study(name: str, word: str, says: str) -> Bad:
    return Bad(name, [*STUDY, word], says)


def training(name: str, word: str, says: str) -> Bad:
    return Bad(name, [*TRAIN, word], says)


def part(name: str, words: Sequence[str], says: str) -> Bad:
    return Bad(name, [*RUN, *SMALL, *words], says)


def within(name: str, override: str, word: str, says: str) -> Bad:
    """A setting of a part that an entry's own override brings along."""
    entry = 'decoders=[{decoder: lantern, name: x, overrides: ["' + override + '"]}]'
    return Bad(name, [*RUN[:2], entry, *RUN[3:], *SMALL, word], says)


def mine(name: str, word: str, says: str) -> Bad:
    words = ["acceptance._target_=mine_rule.Mine", "~acceptance.k", "~acceptance.delta"]
    words += ["~acceptance.residual", "~acceptance.metric", word]
    return Bad(name, [*RUN, *SMALL, *words], says, plugin)


CASES = [
    study("seed of five thousand digits", "seed=" + "9" * 5000, "seed"),
    study("the reseeds leave 64 bits", "seed=9223372036854775807", "64 bits"),
    study("guidance is an enormous integer", "sampling.cfg=" + "9" * 400, "64 bits"),
    study("top_p is zero", "sampling.top_p=0", "above 0"),
    study("run_dir is a number", "run_dir=2026", 'run_dir="2026"'),
    part("delta is not a number", ["acceptance.delta=nan"], "finite"),
    within("a chain of a billion", "tree=chain", "tree.depth=1000000000", "at most"),
    within("too many nodes", "tree=dynamic", "tree.nodes=1000000000", "at most"),
    within("too wide a tree", "tree=dynamic", "tree.top_k=1000000", "at most"),
    within("a rank beyond 64 bits", "tree=static", "tree.choices=[[99999999999999999999]]", "64"),
    within("a rank is a boolean", "tree=static", "tree.choices=[[true]]", "integer"),
    part("drafter is a number", ["drafter.checkpoint=3"], "string"),
    within("heads without end", "drafter=medusa", "drafter.heads=1000000000", "at most"),
    Bad("checkpoint is a number", [*RUN, "model.checkpoint=5"], "string"),
    part("prompts are a number", ["prompts=file", "prompts.path=3"], "string"),
    part("the scenes' seed is infinite", ["prompts.seed=inf"], "integer"),
    mine("a plug-in's integer is a boolean", "+acceptance.width=true", "mine: width must be"),
    mine("a plug-in's number is not a number", "+acceptance.rate=nan", "finite"),
    mine("a plug-in's list holds a word", "+acceptance.sizes=[1,b]", "sizes[1]"),
    mine("a plug-in's own range", "+acceptance.share=1.5", "at most 1"),
    training("the training's folder is null and its name a number", "name=3", "string"),
    training("start is a number", "start=1", "string"),
    Bad("a batch of a list is infinite", ["run", "latency.batch=[1,inf]"], "integer"),
    Bad("batch without end", ["run", "latency.batch=[1,10000000000000]"], "at most"),
    Bad("evaluated seed beyond 64 bits", ["evaluate", "images={tmp}", f"seed={2**63}"], "64 bits"),
    Bad("evaluated batch without end", ["evaluate", "images={tmp}", "batch=9" + "0" * 20], "64"),
]
