"""JSON files that describe something: a checkpoint, a run, a list of shards. Read in one place.

Why: such a file comes from a download, a colleague or an editor. Whatever is wrong with it is said
with its name and the key. What a key must hold is a hint of `decoders.kinds`. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

from decoders.kinds import Amount, KindError, Positive, Within, entries
from decoders.stand_ins import SEEN, no_file, stand_in

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
