"""`python -m bench context`: how far the laws that codes were drawn from are from the target's own,
place by place.

A decoder of rows in parallel draws a code before the codes above it are all there. No rule bounds
what that does. But the run records its laws. A second, teacher-forced
pass over the finished image gives the law at complete context, and TV between the two is a map on
the raster. A decoder that reads the target in its true context has zeros there, up to the model's
precision: the floor of the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from bench.config.compose import compose_study
from bench.config.hydra_edge import own_settings
from bench.config.schedule import cells
from bench.console import complain, progress, say
from bench.data.errors import ConfigError
from bench.data.files import ready_folder, write_text
from bench.judge.gate.sampled import Captions
from bench.report.plots.chart import Chart, Spec, layer, linked, save, tooltip
from bench.report.table import Column, csv_text, figures, filled, number, terminal
from bench.run.session import opened
from decoders.api import ImageModel, Sampling
from decoders.compose import DecoderSpec, build_decoder
from decoders.distribution import probabilities
from decoders.kinds import Within, require
from decoders.noise import Noise

CAPTION = (
    "TV between the law that a code was drawn from and the target's law given all codes before it, "
    "mean over images. White: nothing recorded."
)
SIDE = 240  # pixels of a map


@dataclass(frozen=True)
class ContextSettings:
    """`context.*`."""

    images: Annotated[int, Within(1, 10**6)] = 4  # images of each decoder

    def __post_init__(self) -> None:
        require(self, "context.", ConfigError)


@dataclass(frozen=True)
class Map:
    """tv [rows, columns]: mean over images, NaN where no law was recorded; codes: per forward."""

    decoder: str
    tv: np.ndarray
    codes: float

    def over(self, area: Any = ...) -> float:
        """Of the places of an area with a law; NaN where none has one."""
        values = self.tv[area]
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    @property
    def most(self) -> float:
        return float(np.nanmax(self.tv))


FIRST, LAST = np.s_[1:, 0], np.s_[1:, -1]  # codes of the rows, but for the first row's
COLUMNS = (
    Column("decoder", "decoder", words=True),
    Column("codes", "codes per forward", figures(2)),
    Column("", "TV, mean", lambda one: number(one.over(), 4)),
    Column("", "first column", lambda one: number(one.over(FIRST), 4)),
    Column("", "last column", lambda one: number(one.over(LAST), 4)),
    Column("most", "largest place", figures(4)),
)


def cmd_context(words: Sequence[str]) -> int:
    """What incomplete context does to each code's law: a map of TV on the raster.
    Decodes a few images of every decoder of a study that records laws, and compares the law of
    each code with the target's, given all codes before it. Writes context.csv and a picture to
    run_dir/context.
    Settings: study decoders run_dir ...
        context.*  bench/commands/context.py ContextSettings
    Example: context decoders=[zipar,pjd,sjd] context.images=2

    1 where no decoder recorded a law.
    """
    settings, rest = own_settings(ContextSettings, "context", words)
    config = compose_study(rest)
    folder = Path(config.run_dir) / "context"
    ready_folder(folder)
    own = opened(config, settings.images)
    texts = [prompt.text for prompt in own.prompts]
    every = cells(config, own.model.sampling)
    found = []
    with progress(len(every), "context", unit="decoder") as bar:
        for cell in every:
            bar.set_postfix_str(cell.entry.name)
            one = mapped(own.model, cell.entry.name, cell.entry.spec, cell.sampling, texts,
                         config.seed)  # fmt: skip
            found += [] if one is None else [one]
            bar.update()
    if not found:
        complain("no decoder recorded the laws of its codes: ask for one that is not plain AR")
        return 1
    say(terminal(filled(COLUMNS, found)))
    write_text(folder / "context.csv", csv_text(rows_of(found)))
    for path in [folder / "context.csv", *save(draw(found), folder)]:
        say(f"saved: {path}")
    return 0


def mapped(
    model: ImageModel, name: str, spec: DecoderSpec, sampling: Sampling, texts: list[str], seed: int
) -> Map | None:
    """The map of one decoder, image by image; None where it records no laws."""
    decoder = build_decoder(model, spec, sampling)
    size = model.target.length
    total, count, calls = torch.zeros(size), torch.zeros(size), 0
    for text in texts:
        with torch.inference_mode():
            shown = Captions(model, sampling, [text], model.text.encode([text]))
            noise = Noise.for_prompts(seed, [text], size).to(model.device)
            made = decoder.generate(shown.features, noise, pairs=size)
            pairs = made.trace.pairs
            if pairs is None or pairs.place is None or pairs.depth is None:
                return None
            at = (pairs.place + pairs.depth).cpu()  # [M]
            p = probabilities(shown.logits(0, made.codes[0]), sampling)[at]  # [M, V]
            away = 0.5 * (p - pairs.p.cpu()).abs().sum(-1)
        total.index_add_(0, at, away)
        count.index_add_(0, at, torch.ones_like(away))
        calls += int(made.trace.target_calls[0])
    height, width = model.target.grid()
    tv = torch.full((height * width,), torch.nan)
    tv[:size] = torch.where(count > 0, total / count, torch.nan)
    codes = len(texts) * (size - 1) / max(calls, 1)
    return Map(name, tv.view(height, width).numpy(), codes)


def rows_of(maps: Sequence[Map]) -> list[dict[str, Any]]:
    """A row for every place of every map."""
    return [
        {"decoder": one.decoder, "row": row, "column": column, "tv": float(one.tv[row, column])}
        for one in maps
        for row, column in np.argwhere(np.isfinite(one.tv)).tolist()
    ]


def draw(maps: Sequence[Map]) -> Chart:
    """A picture of every map, in one scale."""
    said = tooltip(decoder="decoder", row="row", column="column", tv="TV")
    scale = {"scheme": "viridis", "domain": [0, max(one.most for one in maps)]}
    panels: list[Spec] = []
    for one in maps:
        place = {
            name: {"field": name, "type": "ordinal", "title": name,
                   "axis": {"labels": False, "ticks": False}}
            for name in ("column", "row")
        }  # fmt: skip
        tone = {"field": "tv", "type": "quantitative", "scale": scale, "legend": {"title": "TV"}}
        drawn = layer("rect", rows_of([one]), x=place["column"], y=place["row"], color=tone,
                      tooltip=said)  # fmt: skip
        title = f"{one.decoder}: mean {one.over():.3f}, {one.codes:.2f} codes per forward"
        panels.append({"title": title, "width": SIDE, "height": SIDE, "layer": [drawn]})
    return Chart("context", "TV by incomplete context", CAPTION, linked(panels, {}, columns=2))
