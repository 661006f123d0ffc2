"""Models that `transformers` loads by its own classes: whole and finite, without foreign code."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as theirs

from decoders.api import DecoderError
from decoders.models.loading.checkpoint import Checkpoint, some
from decoders.models.loading.weights import checked

# Code that a folder brings along is never run.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
# What a class raises that does not take what it is given.
UNFIT = (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError)


def read_model(
    opened: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    kind: Any = None,
    unread: tuple[str, ...] = (),
) -> Any:
    """The model of a checkpoint by the library's own loader, frozen.

    kind: a class of transformers; None: the causal model that config.json names. unread: how names
    of tensors begin that the class does without. Raises DecoderError for weights that are
    incomplete, damaged, quantised or of another model.
    """
    with loading(opened):
        loaded: Any = (kind or AutoModelForCausalLM).from_pretrained(
            opened.folder, dtype=dtype, output_loading_info=True, **LOCAL
        )
    model, report = loaded
    unexpected = [name for name in report["unexpected_keys"] if not name.startswith(unread)]
    odd = {"missing": report["missing_keys"], "unexpected": unexpected}
    if any(odd.values()):
        wrong = "; ".join(f"{name} {some(keys)}" for name, keys in odd.items() if keys)
        raise DecoderError(f"{opened.path} is no {type(model).__name__}: {wrong}")
    for name, values in model.named_parameters():
        if name in opened.index:
            opened.read(name)  # transformers would convert another dtype in silence
        checked(values, name, opened.path)
    return model.to(device).eval().requires_grad_(False)


@contextmanager
def loading(opened: Checkpoint) -> Iterator[None]:
    """What goes wrong while transformers loads is a DecoderError; its log, which would say it a
    second time, is silent, and it draws no progress bar."""
    before, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        yield
    except (*UNFIT, OSError, ImportError, StrictDataclassError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DecoderError(
            f"{opened.folder} cannot be read ({reason}); are all files of the release in it?"
        ) from error
    finally:
        theirs.set_verbosity(before)
        if bars:
            theirs.enable_progress_bar()
