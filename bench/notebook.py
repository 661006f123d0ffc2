"""From Python: one image of any decoder, and what runs hold as data frames.

    from bench.notebook import decode, rows, summary

    one = decode("a red circle", decoder="lantern_pp", model="tiny")
    one.codes, one.image, one.mal
    summary("results/runs/main")[["decoder", "speedup", "fid"]]

`docs/running.md` walks through it. A figure to publish is of a run: `decode` times one image once.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from bench.analyse.analyse import load
from bench.config.arguments import groups_with
from bench.config.compose import Texts, compose_study
from bench.config.schema import SamplingConfig, variants
from bench.errors import ConfigError, Failure
from bench.measure.device import prepare, require_unforked
from bench.measure.meter import Meter
from bench.prompts import Prompt, check
from bench.run.contender import build, load_model
from bench.run.decode import generate
from decoders.api import Decoder, ImageModel, Trace
from decoders.execution.gpu import card_fault
from decoders.kinds import Seed, validate
from decoders.spec import PARTS

__all__ = ["Decoded", "decode", "rows", "summary"]
# A loaded decoder keeps memory from call to call, and Hydra one configuration.
ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, repr=False)
class Decoded:
    """One image. codes: [L] int64; image: None for a model without a tokenizer; trace: what
    happened, in a batch of one (`decoders.api.Trace`); seconds: prefill and decoding, timed once
    and, the first time, with what is set up then. In a notebook it shows its picture."""

    decoder: str
    prompt: str
    codes: Tensor
    image: Image.Image | None
    trace: Trace
    seconds: float

    def __repr__(self) -> str:
        speed = f"{self.mal:.2f} codes per forward, {self.seconds:.3f} s"
        return f"Decoded({self.decoder}: {self.prompt!r}, {speed})"

    @property
    def mal(self) -> float:
        """Codes committed per target forward; the first code is the prefill's."""
        return (len(self.codes) - 1) / int(self.trace.target_calls[0])

    def show(self) -> Image.Image:
        """The picture, and beside it the map of how each code came to be, in the colours of a run's
        page (`bench.report.page.CODE_KINDS`). Raises ConfigError without a picture."""
        from bench.report.page import COLORS, code_map

        if self.image is None:
            raise ConfigError(f"{self.decoder}: the model has no tokenizer, so there is no picture")
        kinds = code_map(COLORS[self.trace.kind[0].numpy()])
        both = Image.new("RGB", (2 * self.image.width, self.image.height), "white")
        both.paste(self.image, (0, 0))
        both.paste(kinds.resize(self.image.size, Image.Resampling.NEAREST), (self.image.width, 0))
        return both

    def _repr_png_(self) -> bytes | None:
        if self.image is None:
            return None
        drawn = io.BytesIO()
        self.image.save(drawn, "png")
        return drawn.getvalue()


def decode(
    prompt: str,
    decoder: str = "ar",
    model: str = "tiny",
    seed: int = 0,
    overrides: Sequence[str] | str = (),
    **others: object,
) -> Decoded:
    """Decodes one prompt. decoder: of study=main, with its settings there, or any other of conf/;
    model: a name of conf/; overrides: one or several, as on the command line: `study=sweep`,
    `acceptance.lam=5`, `sampling.temperature=0` or `backend=cuda`. It runs on the GPU where there
    is one, else in the CPU kernel. A model is loaded once for equal arguments. Calls from several
    threads wait for each other.

    Raises what a run raises: ConfigError with the nearest names, PromptError, DecoderError; and
    TypeError for other keywords.
    """
    if others:
        settings = ", ".join(as_override(name, value) for name, value in others.items())
        raise TypeError(
            "decode takes prompt, decoder, model, seed and overrides; expected a setting as on the "
            f"command line, decode(overrides=[{settings}]), found the keyword {next(iter(others))}"
        )
    require_unforked()  # a forked child may have a lock that nobody opens
    validate("seed", seed, Seed)
    one = Prompt("given", prompt)
    check([one], "decode")
    where = "cpu" if card_fault() else "cuda"
    given = validate("overrides", overrides, Texts)
    arguments = [f"backend={where}", f"model={model}", *given]
    with ONE_AT_A_TIME, fresh_defaults():
        loaded, built, name = _built(f"decoders=[{decoder}]", *arguments)
        meter = Meter(loaded.device)
        generation, pictures = generate(loaded, built, [one.text], seed, meter)
    image = None if pictures is None else Image.fromarray(pictures[0])
    codes, seconds = generation.codes[0], meter.seconds["total"]
    return Decoded(name, prompt, codes, image, generation.trace, seconds)


def as_override(name: str, value: object) -> str:
    """A setting of this name as the command line has it, with its group: `"acceptance.lam=5"`."""
    having = [group for group in groups_with(name) if group in (*PARTS, "backend")]
    having = ["sampling"] * (name in SamplingConfig.__dataclass_fields__) + having
    places = [f"{group}.{name}" for group in having] or [name]
    return " or ".join(f'"{place}={value}"' for place in places)


@contextmanager
def fresh_defaults() -> Iterator[None]:
    """Gives torch its first defaults inside: a notebook's own (dtype, device, autocast) would give
    other codes than a run."""
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device() != torch.device("cpu"):
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@lru_cache(maxsize=8)
def _built(*arguments: str) -> tuple[ImageModel, Decoder, str]:
    """The model and the one decoder that the arguments name."""
    config = compose_study(arguments)
    model = load_model(config, prepare(config.backend))
    variant, *more = variants(config, model.sampling)
    if more:
        raise ConfigError(f"decode takes one decoder, found {len(more) + 1}: call it for each")
    built = build(model, variant)
    if isinstance(built, Failure):
        raise ConfigError(f"{variant.name} cannot be built: {built.error}")
    return model, built, variant.name


def rows(run: str | Path) -> pd.DataFrame:
    """A run's rows, one per image of a protocol (`bench.store.columns.ROW`). Raises FolderError."""
    return load(Path(run)).rows


def summary(run: str | Path) -> pd.DataFrame:
    """A run's table, one row per decoder, with the ends of intervals in `_lo` and `_hi`. Figures:
    `bench.analyse.figures.FIGURES`. Raises FolderError."""
    found = load(Path(run))
    return found.tables["summary"].assign(decoder=[entry.label for entry in found.entries])
