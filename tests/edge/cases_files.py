"""Paths that cannot be what they are asked to be, and files that describe something wrongly."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.edge.table import Bad

RUN = ["run", "study=smoke", "decoders=[ar]", "gate=false", "metric=none"]
LLAMAGEN = [
    "model=llamagen_xl_256", "model.grid=4", "model.checkpoint={tmp}/m", "run_dir={tmp}/run"
]  # fmt: skip
READ = ["fetch", "study=smoke", "decoders=[ar]"]  # composes the study, no more
CONF = "hydra.searchpath=[file://{tmp}/conf]"
GIVEN = {
    "hidden_size": 64, "vocab_size": 32, "num_hidden_layers": 2, "intermediate_size": 96,
    "num_attention_heads": 4, "block_size": 16, "rms_norm_eps": 1e-5,
}  # fmt: skip
PART = {"config": {}, "sha256": "0" * 64}
DEEP = "[" * 100_000


def write(name: str, text: str | bytes) -> Callable[[Path], object]:
    """Makes one file."""

    def prepare(tmp: Path) -> None:
        path = tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return prepare


def folder(name: str) -> Callable[[Path], object]:
    return lambda tmp: (tmp / name).mkdir(parents=True)


def pipe(name: str) -> Callable[[Path], object]:
    def prepare(tmp: Path) -> None:
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp / name)

    return prepare


def loop(tmp: Path) -> None:
    (tmp / "loop").symlink_to(tmp / "loop")


def at(name: str, words: list[str], says: str, prepare: Any = None) -> Bad:
    return Bad(name, words, says, prepare or write("file", "x"))


def checkpoint(name: str, says: str, **changed: Any) -> Bad:
    """A folder whose config.json says one thing wrongly."""
    return described(name, json.dumps(GIVEN | changed), says)


def described(name: str, text: str | bytes, says: str) -> Bad:
    return Bad(name, [*RUN, *LLAMAGEN], says, write("m/config.json", text))


def index(name: str, text: str, says: str) -> Bad:
    return Bad(name, [*RUN, *LLAMAGEN], says, write("m/model.safetensors.index.json", text))


def card(name: str, content: Any, says: str) -> Bad:
    words = [*RUN, "model.checkpoint={tmp}/m", "run_dir={tmp}/run"]
    return Bad(name, words, says, write("m/models.json", json.dumps(content)))


def study(name: str, text: str | bytes, says: str) -> Bad:
    """A run's folder with rows and a study.json that is none."""

    def prepare(tmp: Path) -> None:
        write("run/rows/ar-0/latency-0-00000.parquet", "x")(tmp)
        write("run/study.json", text)(tmp)

    return Bad(name, [*RUN, "run_dir={tmp}/run"], says, prepare)


def option(name: str, group: str, text: str | bytes, says: str, word: str = "") -> Bad:
    """A plug-in's own YAML."""
    words = [*READ, CONF, word or f"{group}=mine", "run_dir={tmp}/run"]
    return Bad(name, words, says, write(f"conf/{group}/mine.yaml", text))


DECODER = """# @package _global_
defaults:
  - /drafter: none
  - /tree: none
  - /acceptance: none
loop:
  _target_: decoders.loops.autoregressive.Autoregressive
"""


CASES = [
    at("run_dir is a file", [*RUN, "run_dir={tmp}/file"], "is a file"),
    at("run_dir lies under a file", [*RUN, "run_dir={tmp}/file/run"], "under a file"),
    at("run_dir is too long", [*RUN, "run_dir={tmp}/" + "x" * 300], "too long"),
    at("run_dir is a link to itself", [*RUN, "run_dir={tmp}/loop"], "loop", loop),
    at("run_dir where nothing can be made", [*RUN, "run_dir=/proc/run"], "/proc/run"),
    at("run_dir is a device", [*RUN, "run_dir=/dev/full"], "is a file"),
    at("train into a file", ["train", "run_dir={tmp}/file"], "as a file"),
    at("train where the drafter is a file", ["train", "run_dir={tmp}/t"], "as a file",
       write("t/drafter", "x")),
    at("train where nothing can be made", ["train", "run_dir=/proc/train"], "/proc/train"),
    at("evaluate writes under a file", ["evaluate", "images={tmp}", "out={tmp}/file/a.csv"],
       "as a file"),
    at("evaluate writes onto a folder", ["evaluate", "images={tmp}", "out={tmp}/d"], "is a folder",
       folder("d")),
    at("evaluated images are a file",
       ["evaluate", "images={tmp}/file", "metrics=[kid]", "reference={tmp}"], "not a folder"),
    at("prompts under a file", [*RUN, "prompts=file", "prompts.path={tmp}/file/a.txt",
       "run_dir={tmp}/run"], "under a file"),
    at("prompts in too long a name", [*RUN, "prompts=file", "prompts.path={tmp}/" + "x" * 300 +
       ".txt", "run_dir={tmp}/run"], "too long"),
    at("a path with a bracket", [*RUN, "run_dir={tmp}/run(1)"], "/run(1)\"'"),
    at("a path with an equals sign", [*RUN, "run_dir={tmp}/lr=1"], "/lr=1\"'"),
    at("a path with a comma", [*RUN, "run_dir={tmp}/a,b"], "/a,b\"'"),
    at("a path with a quote", [*RUN, "run_dir={tmp}/it's"], "quoted"),
    at("a path with a hash", [*RUN, "run_dir={tmp}/a#b"], "/a#b\"'"),
    at("a checkpoint with a bracket", [*RUN, "model.checkpoint=/x/m(2).pt"], "m(2).pt\"'"),
    at("a training's path with a bracket", ["train", "run_dir={tmp}/run(1)"], "/run(1)\"'"),
    at("home has no such model", [*RUN, "model.checkpoint=~/no-such-model", "run_dir={tmp}/run"],
       str(Path.home())),
    described("config.json is cut off", '{"hidden_size": 64', "not valid JSON"),
    described("config.json is empty", "", "empty (0 bytes)"),
    described("config.json is a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\n",
              "git lfs pull"),
    described("config.json is a page", "<!DOCTYPE html><html>log in</html>", "HTML"),
    Bad("config.json is a pipe", [*RUN, *LLAMAGEN], "a named pipe", pipe("m/config.json")),
    Bad("config.json is a folder", [*RUN, *LLAMAGEN], "is a folder", folder("m/config.json")),
    Bad("a pipe for models.json", [*RUN, "model.checkpoint={tmp}/m", "run_dir={tmp}/run"],
        "a named pipe", pipe("m/models.json")),
    described("config.json is a list", "[1]", "must hold an object"),
    described("config.json is not UTF-8", b'{"a": "\xff"}', "config.json"),
    described("config.json holds NaN", '{"rms_norm_eps": NaN}', "NaN"),
    described("config.json is nested without end", DEEP, "nested too deeply"),
    described("config.json holds an endless number", '{"a": ' + "9" * 5000 + "}", "config.json"),
    checkpoint("hidden size is a word", "hidden_size must be an integer", hidden_size="wide"),
    checkpoint("epsilon is infinite", "Infinity", rms_norm_eps=1e999),
    checkpoint("rotation is a word", "rope_scaling must be a mapping", rope_scaling="linear"),
    checkpoint("vocabulary is a list", "vocabulary_map must be a mapping", vocabulary_map=["a"]),
    checkpoint("our section is a word", "lantern_bench must be a mapping", lantern_bench="x"),
    index("weight_map is a list", '{"weight_map": ["a"]}', "weight_map must be a mapping"),
    index("weight_map holds numbers", '{"weight_map": {"a": 1}}', "weight_map.a must be a string"),
    index("weight_map is missing", "{}", "has no `weight_map`"),
    index("weight_map is empty", '{"weight_map": {}}', "has no `weight_map`"),
    index("the index is no JSON", "shards", "not valid JSON"),
    card("models.json lacks a part", {}, "does not describe"),
    card("models.json is of another kind", [1], "must hold an object"),
    card("a part is a word", {"vq": "x"}, "vq must be a mapping"),
    card("a part has no configuration", {"vq": {"sha256": "0"}}, "config is missing"),
    card("a digest is a number", {"vq": PART | {"sha256": 1}}, "sha256 must be a string"),
    card("an unknown key", {"vq": PART | {"config": {"codse": 3}}}, "codes"),
    card("codes are a word", {"vq": PART | {"config": {"codes": "many"}}}, "codes must be"),
    card("widths are words", {"vq": PART | {"config": {"ch_mult": ["a"]}}}, "ch_mult[0]"),
    study("study.json is cut off", '{"config_hash": "1', "damaged"),
    study("study.json is a list", "[]", "must hold an object"),
    study("study.json is not UTF-8", b"\xff\xfe", "damaged"),
    study("study.json is nested without end", DEEP, "nested too deeply"),
    study("its configuration is a list", '{"schema_version": 3, "config": []}', "config must be"),
    study("its machine is a word", '{"schema_version": 3, "machine": "x"}', "machine must be"),
    study("its version is a word", '{"schema_version": "three"}', "schema_version must be"),
    option("a YAML that is none", "model", "name: [1", "damaged"),
    option("a YAML with tabs", "model", "name: x\n\tother: y\n", "damaged"),
    option("a YAML with a key twice", "model", "name: a\nname: b\n", "mine"),
    option("a YAML that is not UTF-8", "model", b"name: \xff\n", "damaged"),
    option("a YAML that is a list", "model", "- a\n- b\n", "must be a mapping"),
    option("a YAML without a target", "model", "name: x\n", "_target_"),
    option("a YAML whose target is a number", "model", "name: x\n_target_: 3\n", "string"),
    option("a YAML whose name is a list", "model", "name: [x]\n_target_: a.b\n", "string"),
    option("a backend that is empty", "backend", "", "backend"),
    option("a backend without a device", "backend", "name: x\n", "device"),
    option("a backend with a word too many", "backend", "name: x\ndevcie: cpu\n", "device"),
    option("prompts without a target", "prompts", "name: x\n", "_target_"),
    option("a decoder whose sampling is a word", "decoder", DECODER + "sampling: hot\n",
           "sampling", "decoders=[mine]"),
    option("a decoder whose baseline is a word", "decoder", DECODER + "baseline: perhaps\n",
           "baseline", "decoders=[mine]"),
    option("a decoder whose loop is a word", "decoder", "# @package _global_\nloop: ar\n",
           "loop", "decoders=[mine]"),
    option("a decoder with NaN", "decoder", DECODER + "sampling: {temperature: .nan}\n",
           "finite", "decoders=[mine]"),
    option("a decoder's unknown verdict", "decoder", DECODER + "expect: perfect\n",
           "exact", "decoders=[mine]"),
]  # fmt: skip
