"""Who is compared with whom: the ways of sampling, our decoders and the ways to call `generate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from bench.config.schema import DecoderEntry
from bench.errors import ConfigError, unknown
from bench.peers.convert import llama_of
from bench.peers.generate import Assisted, Generate
from bench.run.outcome import Failure, attempt
from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import build_decoder
from decoders.kinds import Count, Positive, Within, require
from decoders.training.states import transformer_of

MODES = ("sampling", "greedy", "guided_sampling", "guided_greedy")
VARIANTS = {
    "dynamic": "generate, dynamic cache (its default)",
    "eager": "generate, dynamic cache, eager attention",
    "static": "generate, static cache",
    "compiled": "generate, static cache, compiled",
    "assisted": "generate, assisted",
}
OURS, THEIRS = "ours", "transformers"


@dataclass(frozen=True)
class PeersSettings:
    """`peers.*`. prompts: timed images a contender; check: images on which equality is shown first;
    attention: transformers' kernel (sdpa is its default; the variant `eager` has its own); layers,
    drafts: the assistant's first layers of the target and its codes a round, where none of our
    decoders names them."""

    prompts: Annotated[int, Within(2, 10**9)] = 8
    check: Count = 2
    tolerance: Positive = 1e-4
    modes: list[str] = field(default_factory=lambda: list(MODES[:3]))
    variants: list[str] = field(default_factory=lambda: list(VARIANTS))
    attention: str = "sdpa"
    layers: Count = 2
    drafts: Annotated[int, Within(1, 4096)] = 3

    def __post_init__(self) -> None:
        require(self, "peers.", ConfigError)
        for name, known in (("modes", MODES), ("variants", tuple(VARIANTS))):
            chosen = getattr(self, name)
            if not chosen:
                raise ConfigError(f"peers.{name} is empty; known: {', '.join(known)}")
            for item in chosen:
                if item not in known:
                    raise ConfigError(unknown(f"item of peers.{name}", str(item), known))
        if self.attention not in ("sdpa", "eager"):
            raise ConfigError(unknown("peers.attention", self.attention, ("sdpa", "eager")))


@dataclass(frozen=True)
class Mode:
    """A way of sampling under which all are compared."""

    name: str
    sampling: Sampling


def modes_of(names: Sequence[str], base: Sampling) -> list[Mode]:
    """The modes over the baseline's own sampling. Guided ones take its cfg, drawn ones its
    temperature (1 where that is 0). Raises ConfigError for guidance that the model has not."""
    found = []
    for name in dict.fromkeys(names):
        if name.startswith("guided") and base.cfg == 1:
            raise ConfigError(
                f"peers.modes: {name}, but the model has no guidance of its own; set sampling.cfg= "
                "or peers.modes=[sampling,greedy]"
            )
        temperature = 0.0 if name.endswith("greedy") else base.temperature or 1.0
        cfg = base.cfg if name.startswith("guided") else 1.0
        found.append(Mode(name, dataclasses.replace(base, temperature=temperature, cfg=cfg)))
    return found


@dataclass(frozen=True)
class Contender:
    """One row of a mode's table. drafter: "" for plain decoding; equal words mean equal drafts.
    compiled: its first call compiles, which is reported apart."""

    name: str
    engine: str
    decoder: Decoder | Failure
    drafter: str = ""
    baseline: bool = False
    compiled: bool = False


@dataclass(frozen=True)
class Early:
    """An early exit that drafts a chain: the target's first `layers`, `drafts` codes a round."""

    layers: int
    drafts: int

    def __str__(self) -> str:
        return f"first {self.layers} layers, {self.drafts} codes a round"


class Lineup:
    """All contenders of a mode; the converted models are made once for all modes."""

    def __init__(
        self, model: ImageModel, entries: Sequence[DecoderEntry], settings: PeersSettings
    ) -> None:
        self.model, self.entries, self.settings = model, entries, settings
        target = transformer_of(model)
        kernels = {"eager": "eager"}
        self.llamas = {
            name: llama_of(target, kernels.get(name, settings.attention))
            for name in settings.variants
        }

    def of(self, mode: Mode) -> list[Contender]:
        """Ours first. A contender that cannot be built carries its failure."""
        ours = [self._ours(entry, mode.sampling) for entry in self.entries]
        early = next((e for c in ours if (e := _early(c.decoder))), None)
        early = early or Early(self.settings.layers, self.settings.drafts)
        return ours + [self._theirs(name, mode.sampling, early) for name in self.settings.variants]

    def _ours(self, entry: DecoderEntry, sampling: Sampling) -> Contender:
        built = attempt(lambda: build_decoder(self.model, entry.spec, sampling))
        drafter = getattr(built, "drafter", None)
        words = "" if drafter is None else str(_early(built) or f"{drafter}, {_tree(built)}")
        compiled = getattr(self.model.execution, "name", "eager") == "compile"
        return Contender(entry.name, OURS, built, words, entry.baseline, compiled)

    def _theirs(self, name: str, sampling: Sampling, early: Early) -> Contender:
        llama, title = self.llamas[name], VARIANTS[name]
        if name == "assisted":
            make = self._assisted(sampling, early)
            return Contender(title, THEIRS, attempt(make), str(early))
        options: dict[str, Any] = {
            "static": name in ("static", "compiled"),
            "compiled": name == "compiled",
        }
        built = attempt(lambda: Generate(self.model, sampling, llama, **options))
        return Contender(title, THEIRS, built, compiled=options["compiled"])

    def _assisted(self, sampling: Sampling, early: Early) -> Callable[[], Decoder]:
        def make() -> Decoder:
            target = transformer_of(self.model)
            assistant = llama_of(target, self.settings.attention, early.layers)
            llama = self.llamas["assisted"]
            return Assisted(self.model, sampling, llama, assistant, early.drafts)

        return make


def _early(built: object) -> Early | None:
    """The early exit that one of our decoders drafts with, told by the part's own words."""
    layers = getattr(getattr(built, "drafter", None), "exit_layers", None)
    tree = getattr(built, "tree", None)
    chain = tree is not None and tree.nodes == tree.depth
    return Early(layers, tree.depth) if layers and tree is not None and chain else None


def _tree(built: object) -> str:
    return str(getattr(built, "tree", ""))
