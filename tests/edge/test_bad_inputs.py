"""Bad inputs, one row each: every answer is a message that says what was expected, what was found
and what to do. Readers of files and single settings have more of them in their own tests."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.store.columns import SCHEMA_VERSION

HERE = Path(__file__).parents[1]
PLACES = f"file://{HERE}/bench/conf"
OWN = f"hydra.searchpath=[{PLACES},file://{{tmp}}/conf]"
MOST_SECONDS = 20.0  # of processor time: an answer that takes longer is a hang
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13\n"
PAGE = "<!DOCTYPE html>\n<html><title>Sign in</title></html>"
TENSOR = "model.layers.1.self_attn.k_proj.weight"
Change = Callable[[Path], object]


@dataclass(frozen=True)
class Bad:
    """words: a command line, `{tmp}` standing for a fresh folder; says: a word that the message
    holds, whatever its case; prepare: makes the files that it names, given the fresh folder;
    status: the exit status (2: a request that cannot be, 1: decoders failed)."""

    name: str
    words: Sequence[str]
    says: str
    prepare: Change | None = None
    status: int = 2


def file(name: str, content: str | bytes = "x") -> Change:
    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


# ---- checkpoints --------------------------------------------------------------------------------

LLAMAGEN = (
    "model=llamagen_xl_256", "model.grid=4", "model.checkpoint={tmp}/m", "model.tokenizer=null",
)  # fmt: skip
LOAD = ("check", "study=smoke", "decoders=[ar]")


def target(about: str, says: str, change: Change, **settings: Any) -> Bad:
    """A small random LlamaGen checkpoint, and what is wrong with it."""

    def prepare(tmp: Path) -> None:
        from tests.checkpoints import write_llamagen

        change(write_llamagen(tmp / "m", **settings))

    return Bad(f"target: {about}", [*LOAD, *LLAMAGEN], says, prepare)


def tensor(value: Callable[[Any], Any]) -> Change:
    """Another tensor in the file, which `value` makes with torch."""

    def change(folder: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        path = folder / "model.safetensors"
        save_file(load_file(path) | {TENSOR: value(torch)}, path)

    return change


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def program(folder: Path) -> None:
    """A pickle that would run code."""
    import argparse

    import torch

    torch.save({"args": argparse.Namespace(x=1)}, folder / "pytorch_model.bin")


def card(about: str, content: Any, says: str) -> Bad:
    words = [*LOAD, "model.checkpoint={tmp}/m"]
    return Bad(f"models.json: {about}", words, says, file("m/models.json", json.dumps(content)))


def config(about: str, text: str, says: str) -> Bad:
    return Bad(f"config.json: {about}", [*LOAD, *LLAMAGEN], says, file("m/config.json", text))


CHECKPOINTS = [
    target("a Git LFS pointer", "git lfs pull", file("model.safetensors", POINTER)),
    target("an HTML page", "HTML", file("model.safetensors", PAGE)),
    target("truncated", "truncated", cut),
    target("a pickled program", "it wants argparse.Namespace", program, pickled=True),
    target("NaN", "NaN or infinity", tensor(lambda torch: torch.full((32, 32), torch.nan))),
    target("another shape", "expected [96, 32]", tensor(lambda torch: torch.ones(32, 1))),
    Bad("a checkpoint that is not there", [*LOAD, "model.checkpoint=ck"], "json does not exist"),
    card("a word for a part", {"vq": "x"}, "vq: Input should be"),
    config("cut off", '{"hidden_size": 64', "not valid JSON"),
    config("another kind", '{"hidden_size": "wide"}', "hidden_size: Input should be"),
    config("nested without end", "[" * 100_000, "not valid JSON (maximum recursion"),
]  # fmt: skip


# ---- places, folders of runs, YAML --------------------------------------------------------------

RUN = ("run", "study=smoke", "decoders=[ar]", "gate=false", "metric=none")
REPORT = ("report", "study=smoke", "run_dir={tmp}/run")


def study(**changed: Any) -> Change:
    """A finished run of other settings."""
    identity = {"schema_version": SCHEMA_VERSION, "config_hash": "0", "config": {"seed": 0}}

    def prepare(folder: Path) -> None:
        file("run/study.json", json.dumps(identity | {"machine": {}} | changed))(folder)
        file("run/summary.csv", "")(folder)
        file("run/records.parquet", "")(folder)

    return prepare


def option(about: str, group: str, text: str, says: str) -> Bad:
    """A YAML that a user wrote."""
    words = [*LOAD, OWN, f"{group}=mine"]
    return Bad(f"{group}: {about}", words, says, file(f"conf/{group}/mine.yaml", text))


FILES = [
    Bad("run_dir is a file", [*RUN, "run_dir={tmp}/x"], "is a file", file("x")),
    Bad("run_dir is of something else", [*RUN, "run_dir={tmp}/mine"], "no run folder",
        file("mine/thesis.tex")),
    Bad("run_dir is too long", [*RUN, "run_dir={tmp}/" + "x" * 300], "too long"),
    Bad("run_dir where nothing can be made", [*RUN, "run_dir=/proc/run"], "/proc/run"),
    Bad("run_dir with a bracket", [*RUN, "run_dir={tmp}/run(1)"], "/run(1)\"'"),
    Bad("run_dir is a number", [*RUN, "run_dir=2026"], 'run_dir="2026"'),
    Bad("train into a file", ["train", "run_dir={tmp}/x"], "as a file", file("x")),
    Bad("evaluate writes under a file", ["evaluate", "images={tmp}", "out={tmp}/x/a.csv"],
        "as a file", file("x")),
    Bad("report of another seed", [*REPORT, "seed=5"], "another configuration", study()),
    Bad("report of older rows", REPORT, "schema version 1", study(schema_version=1)),
    Bad("report of no run", REPORT, "holds no run", file("run/a.txt")),
    Bad("report of no folder", REPORT, "holds no run"),
    Bad("report of a version in words", ["report", "{tmp}/run"], "should be a valid integer, found",
        file("run/study.json", '{"config": {"version": "zwei"}}')),
    Bad("report of a damaged study.json", REPORT, "damaged", file("run/study.json", '{"con')),
    Bad("out is not empty", [*REPORT, "out={tmp}/mine"], "not empty", file("mine/thesis.tex")),
    Bad("a search path that is not there", [*LOAD, "hydra.searchpath=[file://{tmp}/nowhere]"],
        "nowhere is no folder"),
    option("no YAML", "model", "name: [1", "damaged"),
    Bad("study: no first line", ["check", OWN, "study=mine"], "study=mine: its YAML must begin "
        "with the line `# @package", file("conf/study/mine.yaml", "name: mine\ndecoders: [ar]\n")),
    Bad("decoder: no first line", ["check", "study=smoke", OWN, "decoders=[mine]"],
        "decoder=mine: its YAML must begin with the line `# @package _global_`",
        file("conf/decoder/mine.yaml", "loop:\n  _target_: decoders.loops.autoregressive.A\n")),
    option("a typo", "backend", "name: x\ndevcie: cpu\n", "device"),
    option("an unquoted off", "backend", "defaults: [cpu]\nexecution: off\n", 'write "off"'),
    option("no class", "metric", "name: mine\n", "metric has no `_target_`, which names the class"),
    Bad("drafter: no class", ["check", "study=smoke", OWN, "decoders=[sd_chain]", "drafter=mine"],
        "sd_chain: drafter has no `_target_`", file("conf/drafter/mine.yaml", "width: 3\n")),
    Bad("prompts of a device", [*RUN, "prompts=coco", "prompts.path=/dev/zero"], "device"),
    Bad("too few prompts", [*RUN, "prompts=file", "prompts.path={tmp}/p.txt"], "1 prompt, ",
        file("p.txt", "a red ring\n")),
]  # fmt: skip


# ---- plug-ins that break ------------------------------------------------------------------------


def plug(group: str, name: str, code: str) -> Change:
    """NAME.py, and the option NAME of a group, which names `load` in it."""

    def prepare(folder: Path) -> None:
        file(f"{name}.py", code)(folder)
        file(f"conf/{group}/{name}.yaml", f"name: {name}\n_target_: {name}.load\n")(folder)

    return prepare


def loader(group: str, about: str, code: str, says: str) -> Bad:
    """A prompt set, model or metric that a user wrote."""
    name = f"broken_{group}_{about}"
    words = ["run", "study=fake", "run_dir={tmp}/run", OWN, f"{group}={name}", "decoders=[fake_ar]"]
    return Bad(f"{group}: {about}", words, says, plug(group, name, code))


def drafter(about: str, code: str, says: str, status: int = 1) -> Bad:
    name = f"broken_drafter_{about}"
    entry = f"{{decoder: eagle2, name: mine, overrides: ['drafter={name}', '~drafter.name']}}"
    words = [
        "run", "study=fake", "run_dir={tmp}/run", OWN, f"decoders=[ar,{entry}]", "model=random24",
        "latency.prompts=0", "quality.images=1", "quality.reseeds=0", "backend=cpu_torch",
    ]  # fmt: skip
    return Bad(f"drafter: {about}", words, says, plug("drafter", name, code), status)


SCORER = "class load:\n    def __init__(self, device): pass\n    def score(self, *_): {}\n"
PLUG_INS = [
    drafter("syntax", "import os\ndef load(:\n", "broken_drafter_syntax.py:2"),
    drafter("raises", "\n\n1 / 0\n", "broken_drafter_raises.py:3"),
    drafter("no_class", "load = 3\n", "must be a class", status=2),
    loader("prompts", "fails", "def load(count):\n    [][count]\n", "broken_prompts_fails.py:2"),
    loader(
        "metric",
        "fails",
        SCORER.format("return {}['x']"),
        "broken_metric_fails (broken_metric_"
        "fails.load) failed: KeyError: 'x', at {tmp}/broken_metric_fails.py:3; `python -m bench -v",
    ),
    loader(
        "metric", "returns", SCORER.format("return {'x': 1}"), "must return metrics.scores.Scores"
    ),
    loader("prompts", "strings", "def load(count):\n    return ['a'] * count\n", "Prompt("),
    loader("model", "none", "def load(device, dtype):\n    pass\n", "ImageModel"),
    loader("model", "keyword", "def load(device):\n    pass\n", "dtype"),
]


# ---- words and values; `test_values` has every setting ------------------------------------------


WORDS = [
    Bad("seed of five thousand digits", [*LOAD, "seed=" + "9" * 5000], "seed"),
    Bad("a batch of infinity", ["run", "latency.batch=[1,inf]"], "integer"),
    Bad("batches without 1", ["run", "latency.batch=[4,16]"], "must hold 1"),
    Bad("a batch twice", ["run", "latency.batch=[1,4,4]"], "each once"),
    Bad("fewer requests than a batch", ["run", "latency.batch=[1,4]", "latency.requests=3"],
        "latency.requests=4 or more"),
    Bad("a run without a name", [*RUN, "name="], "name: String should have at least 1 character"),
    Bad("a run nowhere", [*RUN, "run_dir="], "run_dir: String should have at least 1 character"),
    Bad("a reference of too few scenes", ["run", "study=smoke", "decoders=[ar]", "gate=false",
        "metric.reference=4"], "reference: Input should be greater than or equal to 5, found 4"),
    Bad("a cache nowhere", ["run", "study=smoke", "decoders=[ar]", "gate=false",
        "metric.cache_dir="], "cache_dir: String should have at least 1 character"),
    Bad("a model of no codes", [*LOAD, *LLAMAGEN, "model.grid=0"], "equal to 1, found 0"),
    *(Bad(f"a word for a size in {' '.join(words)}", [*words, "study=smoke", "model=emu3_gen",
        "model.grid=wide"], "grid: Input should be a valid integer, found 'wide'")
      for words in (["run"], ["run", "dry=true"], ["fetch"])),
    Bad("fetch with a number for files", ["fetch", "study=smoke", "metric=coco",
        "metric.weights=3"], "weights: Input should be an object, found 3"),
    Bad("a dry run of a tree of some nodes", ["run", "study=smoke", "decoders=[eagle2]", "dry=true",
        "tree.nodes=many", "run_dir={tmp}/run"], "nodes: Input should be a valid integer"),
    Bad("a shard, and all of them", [*RUN, "ray.shards=2", "shard=0/2"], "give one of the two"),
    Bad("a typo of ray.shards", [*RUN, "ray.shard=2"], "did you mean 'ray.shards'"),
    Bad("GPUs of no shards", [*RUN, "ray.gpus=1"], "ray.shards"),
    Bad("no shards", [*RUN, "ray.shards=0"], "ray.shards"),
    Bad("shards of timed images", [*RUN, "ray.shards=2", "quality.images=0"],
        "shards time nothing"),
    Bad("check of a tree without levels", ["check", f"hydra.searchpath=[{PLACES}]", "study=fake",
        "decoders=[{decoder: sd_chain, overrides: ['tree.depth=0']}]", "model=random24"],
        "cannot be built"),
    Bad("help of no command", ["help", "evaluat"], "'evaluate'"),
    Bad("no command", ["rum"], "'run'"),
    Bad("a typo of an option", ["list", "acceptance=lantrn"], "'lantern'"),
    Bad("train a typo", ["train", "train.stepz=3"], "did you mean 'train.steps'"),
    Bad("train nothing", ["train", "drafter=none"], "nothing to train"),
    Bad("train on nothing", ["train", "data=pictures"], "data.path: Missing mandatory value"),
    Bad("train on pictures of no size", ["train", "data=pictures", "data.path=a", "data.captions=a",
        "data.size=0"], "size: Input should be greater than or equal to 1, found 0"),
    Bad("train no stage", ["train", "recipe=tiny", "stages=[]"], "stages is empty: expected some"),
    Bad("evaluate a typo", ["evaluate", "images=a", "imges=a"], "did you mean 'images'"),
    Bad("evaluate a word", ["evaluate", "a", "limit=many"], "as an integer, found 'many'"),
    Bad("evaluate batches of 0", ["evaluate", "a", "batch=0"], "equal to 1, found '0'"),
    Bad("evaluate no metric", ["evaluate", "a", "metrics=[]"], "at least 1 item"),
    Bad("evaluate two folders", ["evaluate", "a", "b"], "expected one folder of images, found 2"),
    Bad("evaluate nothing", ["evaluate"], "expected one folder of images, found 0"),
    Bad("compare without a run", ["compare"], "results/runs/main does not exist"),
    Bad("report of no folder", ["report", "{tmp}/no"], "no does not exist; correct the path"),
    Bad("list of a part", ["list", "loop"], "loop is set in decoder: `list decoder=NAME`"),
    Bad("list of a setting", ["list", "executions"], "execution is set in backend: `list backend="),
    Bad("list of all settings of a word", ["list", "settings=seed"], "expected `list settings`"),
    Bad("compare a typo", ["compare", "studi=main"], "did you mean 'study'"),
    Bad("compare two runs", ["compare", "study=main", "run_dir=x"], "keep one of them"),
    Bad("compare a folder and a study", ["compare", "results/runs/a", "study=main"],
        "each name runs; keep one"),
    Bad("compare within 200 %", ["compare", "tolerance=2", "run_dir=x"], "less than 1, found '2'"),
    Bad("diff of nothing", ["diff"], "expected 2 run folders, found 0"),
    Bad("diff of no folders", ["diff", "a", "b"], "the folder a does not exist"),
    *(Bad(f"{one} of a folder twice", [one, "{tmp}", "{tmp}/."], "is named twice")
      for one in ("diff", "compare", "report")),
    Bad("report of an empty folder", ["report", "{tmp}"], "no run; name a run's, or make one"),
    Bad("compare of a folder of runs", ["compare", "{tmp}"], "name one of those in it: run",
        study()),
    Bad("diff of a run without rows", ["diff", "{tmp}/run", "b"], "holds no finished run",
        file("run/study.json", "{}")),
    Bad("diff at the level 0", ["diff", "a", "b", "level=0"], "greater than 0, found '0'"),
    Bad("diff of a typo", ["diff", "a", "b", "lvel=2"], "did you mean 'level'"),
]  # fmt: skip


# ---- settings of a study: words of `check study=main`, and what the message says -----------------

# Names of decoders are names of files, also where a file system ignores case and accents' form.
TWINS = (("ar", "ar"), ("ar_T", "ar_t"), ("Ä", "a\u0308"), ("groß", "GROSS"), ("Σ", "ς"))
INNER = "in quotes: 'decoders=[ar,{decoder: eagle2, name: a, overrides: [\"tree="
MEDUSA = "decoders=[{decoder: sd_chain, overrides: ['drafter=medusa', 'drafter.haeds=2']}]"
SETTINGS = [
    (["study=mian"], "'main'"),
    (["acceptance.dleta=0.1"], "did you mean 'acceptance.delta'"),
    ([MEDUSA], "did you mean 'drafter.heads'? (`python -m bench list drafter=NAME` shows all)"),
    (["latency.prompts=abc"], "latency.prompts: Input should be a valid integer, found 'abc'"),
    (["latency.prompts"], "write key=value"),
    (["=5"], "names no setting); write key=value"),
    (["model="], "expected model=NAME, found 'model=' (`python -m bench list model`"),
    (["tree=null"], "expected tree=NAME, found 'tree=null'"),
    (["quality=[1]"], "one by one, as in quality.images=8"),
    (["decoders=[]"], "at least one decoder"),
    (["decoders=[ar,ar]"], "named twice: ar"),
    *(
        ([f"decoders=[{{decoder: ar, name: '{a}'}}, {{decoder: ar, name: '{b}'}}]"], "named twice")
        for a, b in TWINS
    ),
    (["decoders=[{decoder: ar, overrides: [tree=x]}]"], INNER),
    (["decoders=[{decoder: ar, overrides: 3}]"], "overrides: Input should be a valid array"),
    (["decoders=[{decoder: ar, name: ../x}]"], "letters, digits"),
    (["prompts=coco"], "prompts.path"),
    (["prompts=/a/x.txt"], "A path is given as prompts.path=/a/x.txt; to set it, add prompts="),
    (
        ["prompts.path=x.txt"],
        "'prompts.path'; to set it, add prompts=coco or prompts=dpg or",
    ),
    (["latency.zebra=1"], "unknown setting 'latency.zebra' (`python -m"),  # nothing is near
    (["latency.prompts=0", "quality.images=0"], "nothing to run"),
    (["decoders=[ar]", "drafter.checkpoint=x"], "has a part `drafter`"),
    (["seed=1,2"], "sweep"),
    (["backend.execution=compiled"], "'compile'"),
    (["model=3"], "model=3: as a name it is written 'model=\"3\"'"),
    (["tree=1e5"], "tree=1e5: as a name it is written 'tree=\"1e5\"'"),
    (["decoders=[{decoder: ar, name: 1e5}]"], "a text that reads as a number stands in quotes"),
    (["name=1e5"], "as text it is written 'name=\"1e5\"'"),
    (["seed=9223372036854775807"], "quality.reseeds=1"),
    (["rule=exact"], "chosen by acceptance=NAME"),
    (["drafter=mine"], "Your own drafter/mine.yaml is found with hydra.searchpath=[file:///"),
    (["++latency.prompst=3"], "did you mean 'latency.prompts'"),
    (["acceptance.delta=interval(0,1)"], "or key=A,B to sweep a part"),
]
STUDIES = [Bad(" ".join(words), ["check", "study=main", *words], says) for words, says in SETTINGS]


@pytest.mark.parametrize(
    "case", [*CHECKPOINTS, *FILES, *PLUG_INS, *WORDS, *STUDIES], ids=lambda case: case.name
)
def test_a_bad_input_is_answered_with_a_message(case, tmp_path, capsys, monkeypatch):
    if case.prepare is not None:
        case.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    began = time.process_time()
    status = main([word.replace("{tmp}", str(tmp_path)) for word in case.words])
    spent = time.process_time() - began
    out, err = capsys.readouterr()
    assert status == case.status, f"exit status {status}: {err or out}"
    assert "Traceback" not in err + out
    says = case.says.replace("{tmp}", str(tmp_path))
    assert says.lower() in (err + out).lower(), f"{says!r} is not in: {err or out}"
    assert spent < MOST_SECONDS, f"{spent:.0f} s"
