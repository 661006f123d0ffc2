"""Values of another kind or outside their range: settings of a study, of a training, of parts."""

from collections.abc import Sequence
from pathlib import Path

from tests.edge.table import SMALL, Bad

STUDY = ["plan", "study=smoke", "decoders=[ar]"]  # composes a study and looks at the disk, no more
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
    study("seed beyond 64 bits", "seed=9223372036854775808", "64 bits"),
    study("seed of five thousand digits", "seed=" + "9" * 5000, "seed"),
    study("seed is negative", "seed=-1", "at least 0"),
    study("seed is a boolean", "seed=true", "integer"),
    study("seed is null", "seed=null", "integer"),
    study("the reseeds leave 64 bits", "seed=9223372036854775807", "64 bits"),
    study("first reseed is negative", "quality.reseed_from=-5", "at least 0"),
    study("too many reseeds", "quality.reseeds=1000000000000", "at most"),
    study("temperature is infinite", "sampling.temperature=inf", "finite"),
    study("temperature is not a number", "sampling.temperature=nan", "finite"),
    study("temperature is negative", "sampling.temperature=-0.5", "at least 0"),
    study("temperature is a boolean", "sampling.temperature=true", "a number"),
    study("temperature is a list", "sampling.temperature=[1]", "a number"),
    study("guidance is infinite", "sampling.cfg=inf", "finite"),
    study("guidance is not a number", "sampling.cfg=nan", "finite"),
    study("guidance is minus infinity", "sampling.cfg=-inf", "finite"),
    study("guidance is an enormous integer", "sampling.cfg=" + "9" * 400, "64 bits"),
    study("top_k beyond 64 bits", "sampling.top_k=99999999999999999999", "64 bits"),
    study("top_k is negative", "sampling.top_k=-1", "at least 0"),
    study("top_p is zero", "sampling.top_p=0", "above 0"),
    study("top_p is infinite", "sampling.top_p=inf", "finite"),
    study("too many prompts", "latency.prompts=99999999999", "at most"),
    study("images is a boolean", "quality.images=true", "integer"),
    study("batch is infinite", "quality.batch=inf", "integer"),
    study("tolerance is not a number", "latency.warmup_tolerance=nan", "finite"),
    study("too many threads", "backend.threads=1000000", "at most"),
    study("threads is a boolean", "backend.threads=true", "integer"),
    study("fairness is infinite", "fairness.factor=inf", "finite"),
    study("run_dir is null", "run_dir=null", "run_dir must be a string"),
    study("run_dir is a number", "run_dir=2026", 'run_dir="2026"'),
    study("run_dir is a boolean", "run_dir=true", "string"),
    study("run_dir is a list", "run_dir=[a,b]", "string"),
    study("run_dir is a mapping", "run_dir={a: b}", "string"),
    study("name is a number", "name=7", "string"),
    study("name is null", "name=null", "string"),
    study("keep_images is a number", "keep_images=1", "true or false"),
    study("device is a number", "backend.device=0", "string"),
    part("delta is not a number", ["acceptance.delta=nan"], "finite"),
    part("delta is infinite", ["acceptance.delta=inf"], "finite"),
    part("delta is a boolean", ["acceptance.delta=true"], "a number"),
    part("delta is null", ["acceptance.delta=null"], "a number"),
    part("k beyond 64 bits", ["acceptance.k=99999999999999999999"], "64 bits"),
    part("k is a list", ["acceptance.k=[1,2]"], "integer"),
    within("lam is infinite", "acceptance=lantern_pp", "acceptance.lam=inf", "finite"),
    within("lam is not a number", "acceptance=lantern_pp", "acceptance.lam=nan", "finite"),
    part("residual is a boolean", ["acceptance.residual=false"], "string"),
    within("a chain of a billion", "tree=chain", "tree.depth=1000000000", "at most"),
    within("depth is a boolean", "tree=chain", "tree.depth=true", "integer"),
    within("too many nodes", "tree=dynamic", "tree.nodes=1000000000", "at most"),
    within("too wide a tree", "tree=dynamic", "tree.top_k=1000000", "at most"),
    within("a rank beyond 64 bits", "tree=static", "tree.choices=[[99999999999999999999]]", "64"),
    within("a rank is a boolean", "tree=static", "tree.choices=[[true]]", "integer"),
    part("drafter is a number", ["drafter.checkpoint=3"], "string"),
    part("drafter is null", ["drafter.checkpoint=null"], "string"),
    part("drafter is a mapping", ["drafter.checkpoint={a: 1}"], "string"),
    within("heads without end", "drafter=medusa", "drafter.heads=1000000000", "at most"),
    within("layers is a boolean", "drafter=early_exit", "drafter.layers=true", "integer"),
    Bad("checkpoint is a number", [*RUN, "model.checkpoint=5"], "string"),
    Bad("checkpoint is a boolean", [*RUN, "model.checkpoint=true"], "string"),
    part("prompts are a number", ["prompts=file", "prompts.path=3"], "string"),
    part("prompts are null", ["prompts=file", "prompts.path=null"], "string"),
    part("prompts are a list", ["prompts=file", "prompts.path=[a]"], "string"),
    part("the scenes' seed is infinite", ["prompts.seed=inf"], "integer"),
    mine("a plug-in's integer is a boolean", "+acceptance.width=true", "mine: width must be"),
    mine("a plug-in's integer is null", "+acceptance.width=null", "integer"),
    mine("a plug-in's integer is too large", "+acceptance.width=99999999999999999999", "64"),
    mine("a plug-in's number is not a number", "+acceptance.rate=nan", "finite"),
    mine("a plug-in's number is infinite", "+acceptance.rate=inf", "finite"),
    mine("a plug-in's name is a number", "+acceptance.name=1", "string"),
    mine("a plug-in's switch is a number", "+acceptance.on=1", "true or false"),
    mine("a plug-in's list holds a word", "+acceptance.sizes=[1,b]", "sizes[1]"),
    mine("a plug-in's own range", "+acceptance.share=1.5", "at most 1"),
    training("learning rate is infinite", "train.lr=inf", "finite"),
    training("learning rate is not a number", "train.lr=nan", "finite"),
    training("learning rate is negative", "train.lr=-1e-4", "at least 0"),
    training("negative budget", "train.budget_seconds=-1", "above 0"),
    training("infinite budget", "train.budget_seconds=inf", "finite"),
    training("steps beyond 64 bits", "train.steps=99999999999999999999", "64 bits"),
    training("steps is a boolean", "train.steps=true", "integer"),
    training("the training's seed is negative", "train.seed=-1", "at least 0"),
    training("the training's seed beyond 64 bits", "train.seed=9223372036854775808", "64 bits"),
    training("evaluation every minus ten", "train.evaluate_every=-10", "at least 0"),
    training("loss is not a number", "loss.soft=nan", "finite"),
    training("loss guidance is infinite", "loss.cfg=inf", "finite"),
    training("dropped share is above one", "data.drop=1.5", "below 1"),
    training("reuse is infinite", "data.reuse=inf", "finite"),
    training("the training's folder is null and its name a number", "name=3", "string"),
    training("start is a number", "start=1", "string"),
    Bad("tuned total variation is infinite", ["tune", "tune.tv=inf"], "finite"),
    Bad("measured candidates without end", ["tune", "tune.measure=10000000000"], "at most"),
    Bad(
        "a batch of a list is infinite",
        ["run", "latency.batch=[1,inf]"],
        "integer",
    ),
    Bad("batch without end", ["run", "latency.batch=[1,10000000000000]"], "at most"),
    Bad("profile without end", ["profile", "study=smoke", "profile.steps=99999999999"], "at most"),
    Bad("evaluated seed beyond 64 bits", ["evaluate", "images={tmp}", f"seed={2**63}"], "64 bits"),
    Bad("evaluated batch without end", ["evaluate", "images={tmp}", "batch=9" + "0" * 20], "64"),
]
