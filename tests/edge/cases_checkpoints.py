"""Checkpoints that are none, are damaged, or point elsewhere."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.edge.table import Bad

TENSOR = "model.layers.1.self_attn.k_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13\n"
PAGE = "<!DOCTYPE html>\n<html><title>Sign in</title></html>"
ONE = ("study=smoke", "decoders=[ar]", "prompts=classes", "prompts.limit=1")
READ = ("check", *ONE)
LLAMAGEN = ("model=llamagen_xl_256", "model.grid=4", "model.checkpoint={tmp}/m")
MODEL = (*READ, *LLAMAGEN)
Change = Callable[[Path], object]


def _hub(change: Change, **settings: Any) -> Change:
    """A small random LlamaGen checkpoint in {tmp}/m, and what is wrong with it."""

    def prepare(tmp: Path) -> None:
        from tests.decoders.models import released

        change(released.write_hub(tmp / "m", **settings))

    return prepare


def _target(about: str, says: str, change: Change, *more: str, **settings: Any) -> Bad:
    return Bad(f"target: {about}", [*MODEL, *more], says, _hub(change, **settings))


def _file(content: str | bytes, name: str = "model.safetensors") -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def _bin(content: str | bytes) -> Change:
    return _file(content, "pytorch_model.bin")


def _with(value: Callable[[Any], Any], name: str = TENSOR) -> Change:
    """The checkpoint with another tensor of that name, which `value` makes with torch."""

    def change(folder: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        path = folder / "model.safetensors"
        save_file(load_file(path) | {name: value(torch)}, path)

    return change


def _like(kind: str) -> Change:
    """[32, 32] ones of a dtype."""
    return _with(lambda torch: torch.ones(32, 32).to(getattr(torch, kind)))


def _cut(name: str) -> Change:
    def change(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])

    return change


def _index(change: Callable[[str], Any]) -> Change:
    """The names of the shards in the index, changed."""

    def prepare(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"] = {k: change(v) for k, v in index["weight_map"].items()}
        path.write_text(json.dumps(index))

    return prepare


def _linked(folder: Path) -> None:
    """A shard that is a link out of the folder."""
    shard = folder / "model-00001-of-00002.safetensors"
    shard.rename(folder.parent / "elsewhere.safetensors")
    shard.symlink_to(folder.parent / "elsewhere.safetensors")


def _pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def _swapped(folder: Path) -> None:
    """safetensors under the name of a pickle."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _program(folder: Path) -> None:
    """A pickle that would run code."""
    import argparse

    import torch

    torch.save({"args": argparse.Namespace(x=1)}, folder / "pytorch_model.bin")


def _nothing_named(folder: Path) -> None:
    import torch

    torch.save([torch.ones(2)], folder / "pytorch_model.bin")


def _tokenizer(content: str | bytes) -> Change:
    return _file(content, "vq_ds16_t2i.pt")


def _encoder_alone(folder: Path) -> None:
    """A VQ file without a decoder."""
    import torch

    tensors = {"encoder.conv_in.weight": torch.ones(8, 3, 3, 3)}
    torch.save({"model": tensors}, folder / "vq_ds16_t2i.pt")


def _text(change: Change) -> Change:
    """A small random T5 encoder in {tmp}/t5, and what is wrong with it, behind a whole target."""

    def prepare(tmp: Path) -> None:
        from tests.decoders.models import released
        from tests.decoders.models.made.t5 import save_t5

        released.write_hub(tmp / "m")
        change(save_t5(tmp / "t5"))

    return prepare


def _t5(about: str, says: str, change: Change) -> Bad:
    words = ["run", *ONE[:2], *LLAMAGEN, "model.text={tmp}/t5", "run_dir={tmp}/run"]
    return Bad(f"text encoder: {about}", words, says, _text(change))


def _t5_int8(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(n for n in tensors if n.endswith("q.weight"))
    save_file(tensors | {name: tensors[name].char()}, path, {"format": "pt"})


def _t5_code(folder: Path) -> None:
    """A tokenizer whose class is in the folder: its code must not run."""
    (folder / "custom.py").write_text("raise SystemExit('the folder ran its own code')\n")
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        names = {"AutoConfig": "custom.Config", "AutoTokenizer": [None, "custom.Mine"]}
        content |= {"auto_map": names, "tokenizer_class": "Mine"}
        if name == "config.json":
            content["model_type"] = "mine"
        (folder / name).write_text(json.dumps(content))


def _metric(about: str, says: str, content: str) -> Bad:
    """Weights of a metric's network that are none."""

    def prepare(tmp: Path) -> None:
        from PIL import Image

        (tmp / "drawn").mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp / "drawn" / f"{number}.png")
        (tmp / "c.txt").write_text("a\nb\n")
        (tmp / "clip.safetensors").write_text(content)

    words = ["evaluate", "images={tmp}/drawn", "captions={tmp}/c.txt", "metrics=clip",
             "weights.clip={tmp}/clip.safetensors", "device=cpu"]  # fmt: skip
    return Bad(f"metric weights: {about}", words, says, prepare)


def _tiny(tmp: Path) -> None:
    """The embedded models as a clone without Git LFS would have them."""
    import shutil

    from decoders.tiny.bundle import WEIGHTS

    shutil.copytree(WEIGHTS, tmp / "tiny", ignore=shutil.ignore_patterns("large"))
    (tmp / "tiny/vq.safetensors").write_text(POINTER)


CASES = [
    _target("empty", "empty (0 bytes)", _file("")),
    _target("a Git LFS pointer", "git lfs pull", _file(POINTER)),
    _target("an HTML page", "HTML", _file(PAGE)),
    _target("a hub's answer", "Entry not found", _file("Entry not found")),
    _target("zero bytes", "zero bytes", _file(bytes(5000))),
    _target("an archive", "archive", _file(gzip.compress(b"weights"))),
    _target("truncated", "truncated", _cut("model.safetensors")),
    _target("a named pipe", "named pipe", _pipe),
    _target("bin, empty", "empty (0 bytes)", _bin(""), pickled=True),
    _target("bin, a Git LFS pointer", "git lfs pull", _bin(POINTER), pickled=True),
    _target("bin, JSON", "text that begins", _bin('{"error": "no access"}'), pickled=True),
    _target("bin, truncated", "truncated PyTorch", _cut("pytorch_model.bin"), pickled=True),
    _target("bin, noise", "damaged", _bin(bytes(range(200, 256)) * 9), pickled=True),
    _target("bin, a damaged pickle", "cannot be read", _bin(b"\x80\x02\xff\xfe"), pickled=True),
    _target("bin, a program", "it wants argparse.Namespace", _program, pickled=True),
    _target("bin, no names", "no named tensors", _nothing_named, pickled=True),
    _target("safetensors named bin", "ending .safetensors", _swapped),
    *(
        _target(kind, f"is {kind}", _like(kind))
        for kind in ("int8", "float8_e4m3fn", "float8_e5m2", "bool", "complex64", "int64")
    ),
    _target("all zero", "only zeros", _with(lambda torch: torch.zeros(32, 32))),
    _target("NaN", "NaN or infinity", _with(lambda torch: torch.full((32, 32), torch.nan))),
    _target("infinite", "NaN or infinity", _with(lambda torch: torch.full((32, 32), -torch.inf))),
    _target("no dimensions", "expected [96, 32]", _with(lambda torch: torch.ones(()))),
    _target("one column", "expected [96, 32]", _with(lambda torch: torch.ones(32, 1))),
    _target("an embedding of one dimension", "2 dimensions",
            _with(lambda torch: torch.ones(8), "model.embed_tokens.weight")),
    _target("layer 999999999", "without gaps",
            _with(lambda torch: torch.ones(2, 2), "model.layers.999999999.mlp.up_proj.weight")),
    _target("a shard above the folder", "../", _index(lambda f: f"../{f}"), shards=2),
    _target("an absolute shard", "/etc/passwd", _index(lambda f: "/etc/passwd"), shards=2),
    _target("a shard that is a link out", "which is not in", _linked, shards=2),
    _target("shards that are numbers", "weight_map", _index(lambda f: 3), shards=2),
    _target("a shard that is the folder", "no ending", _index(lambda f: "."), shards=2),
    _target("a shard that is a text", "expected a file .safetensors",
            _index(lambda f: "config.json"), shards=2),
    _target("tokenizer, an LFS pointer", "git lfs pull", _tokenizer(POINTER)),
    _target("tokenizer without a decoder", "decoder.conv_in.weight", _encoder_alone),
    _t5("an LFS pointer", "git lfs pull", _file(POINTER)),
    _t5("int8", "is int8", _t5_int8),
    _t5("code of its own", "cannot be read", _t5_code),
    _metric("an LFS pointer", "git lfs pull", POINTER),
    Bad("training: the target is an HTML page",
        ["train", *LLAMAGEN, "run_dir={tmp}/trained"],
        "HTML", _hub(_file(PAGE))),
    Bad("run: the target is int8",
        ["run", "study=smoke", *LLAMAGEN, "decoders=[ar]", "metric=none", "run_dir={tmp}/run"],
        "is int8", _hub(_like("int8"))),
    Bad("tiny: weights that are a pointer",
        [*READ, "model=tiny", "model.checkpoint={tmp}/tiny"], "git lfs pull",
        _tiny),
]  # fmt: skip
