"""JSON files that describe something: a checkpoint, a run, a list of shards. Read in one place.

Why: such a file comes from a download, a colleague or an editor. Whatever is wrong with it is said
with its name and the key. A download that failed leaves a file of the right name (an empty one, a
pointer, a page), which a reader would call corrupt: each kind has its own message here. What a key
must hold is a hint of `decoders.kinds`. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

from decoders.kinds import Amount, KindError, Positive, Within, entries

SEEN = 512  # bytes that are looked at
LFS, ANNEX = b"version https://git-lfs", b"/annex/objects/"
PAGES = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<error")
FETCH = "download it again, and compare its size with the one that its source gives"
# What config.json must say where it says it, of whatever family: the rest is not read.
Size = Annotated[int, Within(1, 2**24)]
CONFIG: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "block_size"), Size),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "caption_dim"), Size),
    "num_hidden_layers": Annotated[int, Within(1, 10_000)],
    **dict.fromkeys(("rms_norm_eps", "norm_eps", "rope_base", "rope_theta"), Positive),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), dict[str, Any]),
    **dict.fromkeys(("swin_norm", "tie_word_embeddings"), bool),
    **dict.fromkeys(("hidden_act", "input_type", "model_type"), str),
    "vocabulary_map": dict[str, Amount],
    "lantern_bench": dict[str, str],
}


def read_object(path: Path, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object that a JSON file holds; `known`: what certain keys must be, where they are there.
    A null under one of them means not given. Raises KindError, and OSError as it comes."""
    if kind := no_file(path):
        raise KindError(f"{path} is {kind}: expected a JSON file")
    content = path.read_bytes()
    if kind := stand_in(content[:SEEN], len(content)):
        raise KindError(f"{path} cannot be read: it is {kind}")
    try:
        found = json.loads(content.decode("utf-8"), parse_constant=_constant)
    except KindError as error:
        raise KindError(f"{path} {error}") from error
    except RecursionError as error:
        raise KindError(f"{path} is nested too deeply to be read; write it again") from error
    except ValueError as error:  # no JSON, no UTF-8, a number of thousands of digits
        raise KindError(
            f"{path} is not valid JSON ({error}); restore it, or make or download it again"
        ) from error
    if not isinstance(found, dict):
        raise KindError(f"{path} must hold an object, found {type(found).__name__}")
    return entries(found, known or {}, str(path))


def _constant(name: str) -> NoReturn:
    raise KindError(f"holds {name}, which is no JSON; write a finite number there")


def no_file(path: Path) -> str:
    """What a path is that is there and is no file; "" for a file, and where nothing is."""
    if path.is_file() or not path.exists():
        return ""
    return "a folder" if path.is_dir() else "a named pipe or a device"


def stand_in(head: bytes, size: int) -> str:
    """What a file is that holds nothing of its own, by its first bytes; "" where it may."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return f"empty (0 bytes); {FETCH}"
    if text.startswith(LFS):
        return (
            f"a Git LFS pointer of {size} bytes, which stands for the file; run `git lfs pull` in "
            "its folder"
        )
    if ANNEX in head[:SEEN] and size < SEEN:
        return "a git-annex pointer, which stands for the file; run `git annex get` in its folder"
    if text[:16].lower().startswith(PAGES):
        return (
            "an HTML or XML page, such as one that asks for a login; download the file itself, "
            "with access to it"
        )
    if not any(head):
        return f"{min(size, SEEN)} zero bytes at its beginning, a broken copy; {FETCH}"
    return ""
