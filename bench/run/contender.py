"""A contender, which is one decoder under study, and the study itself: what a run is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from bench.config.schema import DecoderVariant, StudyConfig
from bench.errors import Failure
from bench.measure.meter import Meter
from bench.prompts import Prompt, load_prompts
from bench.run.shared_state import SharedState
from bench.store.columns import Row
from bench.store.run_folder import RunFolder
from decoders.api import Decoder, ImageModel
from decoders.compose import DecoderSpec, is_synthetic


@dataclass(eq=False)
class Contender:
    """decoder: built, or why it cannot be run; digest: of the code and weights that decode;
    constants: what all of its rows share, labels of its parts among it; jobs_left: how many are to
    come, and warm: which were warmed up, by how many images are decoded at once; fits: how many
    quality images the memory holds at once, None where all that were asked for."""

    variant: DecoderVariant
    decoder: Decoder | Failure
    digest: str = ""
    constants: Row = field(default_factory=dict)
    jobs_left: Counter[int] = field(default_factory=Counter)
    warm: set[int] = field(default_factory=set)
    fits: int | None = None

    @property
    def name(self) -> str:
        return self.variant.name

    @cached_property
    def synthetic(self) -> bool:
        return is_synthetic(self.variant.entry.spec)

    @cached_property
    def plug_ins(self) -> list[str]:
        return plug_ins(self.variant.entry.spec)


def plug_ins(spec: DecoderSpec) -> list[str]:
    """Lists the parts that are not the project's own."""
    return [part.target for part in spec.parts if not part.target.startswith("decoders.")]


@dataclass(eq=False)
class Study:
    """config; the model; contenders in the study's order, and what they share; the folder; the
    meter of their calls; rows: those that were merged, none before the run."""

    config: StudyConfig
    model: ImageModel
    contenders: list[Contender]
    shared: SharedState
    folder: RunFolder
    meter: Meter
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def prompts(self) -> list[Prompt]:
        """Those that the largest of its protocols decodes. Raises ConfigError, PromptError."""
        config = self.config
        return load_prompts(config.prompts, config.prompts_needed, config.replicate)

    @property
    def captions(self) -> list[str]:
        """The texts of two of them at most."""
        return [prompt.text for prompt in self.prompts[:2]]

    @property
    def variants(self) -> list[DecoderVariant]:
        return [contender.variant for contender in self.contenders]

    @property
    def path(self) -> Path:
        return self.folder.path
