"""What a drafter learns from: captions and codes of images, the target's states along them,
computed by teacher forcing; and what the trainer asks of a drafter.

A source of images is a pure function of an index, so that a run that resumes sees what an
uninterrupted one sees. Two layouts of rows. *Paired*: every image with and without its caption,
rows ordered [conditional; unconditional], so that distributions can be compared after guidance.
*Single*: one row per image, a share of the captions dropped, as in the released training (METHODS
6).

For the images of LlamaGen-XL's training all states would fill 96 GB. Here only those of one shard
of consecutive images are kept, gone through `reuse` times in random order. A batch is a function of
its step, so a run that resumes computes the shard again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, TextFeatures
from decoders.cache import GrowingCache, Reads
from decoders.files import (
    HIDDEN_FILE_HINT,
    is_picture,
    one_line,
    open_rgb,
    read_items,
    require_readable,
)
from decoders.kinds import Count, Positive, Seed, Within, validate_fields
from decoders.models.nets.transformer import Transformer


@dataclass(frozen=True)
class Images:
    """Captions and codes of B images, before the target has seen them."""

    text: TextFeatures
    codes: Tensor  # [B, L] int64

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, index: Tensor) -> Images:
        """Selects the images at `index` [n] int64."""
        return Images(self.text.rows(index), self.codes[index])


class ImageSource(Protocol):
    """Images by index: 0..train-1 to learn from, 0..valid-1 held out, without overlap. None: as
    many as one likes."""

    @property
    def train(self) -> int | None: ...

    @property
    def valid(self) -> int | None: ...

    def images(self, split: str, indices: Sequence[int]) -> Images:
        """Returns captions and codes of `split` ("train" or "valid"), on the model's device."""
        ...


class ImageList:
    """A finite source of `count` items, of which a share, at least one, is held out at random.
    make: numbers of items -> their images. Raises DecoderError."""

    def __init__(
        self, count: int, held_out: float, seed: int, make: Callable[[list[int]], Images]
    ) -> None:
        if count < 2 or not 0 < held_out < 1:
            raise DecoderError(
                f"expected at least 2 images and 0 < held_out < 1, found {count} and {held_out}"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        self.make, self.valid = make, max(1, round(count * held_out))
        self.parts = {"train": order[self.valid :], "valid": order[: self.valid]}
        self.train = count - self.valid

    def images(self, split: str, indices: Sequence[int]) -> Images:
        return self.make([self.parts[split][i] for i in indices])


def pictures(
    model: ImageModel,
    path: str,
    captions: str,
    size: Annotated[int, Within(1, 4096)],
    held_out: Annotated[float, Within(0, 1, above=True, below=True)] = 0.05,
    seed: Seed = 0,
) -> ImageList:
    """Reads pictures of a folder with captions, and encodes them by the model's tokenizer.
    captions: a .csv, .tsv or .json (a list of mappings) with `image`, a file name in the folder,
    and `caption`. Pictures are centre-cropped to a square and resized to `size` pixels (bicubic).
    Raises DecoderError: no such file or column, a picture that is not there, an empty caption."""
    hint = "set data.captions to a .csv, .tsv or .json"
    rows = read_items(Path(captions), "caption", (".csv", ".tsv", ".json"), hint)
    if not isinstance(rows, list):
        raise DecoderError(f"{captions} must hold a list of rows, found {type(rows).__name__}")
    pairs: list[tuple[Path, str]] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not row.get("image") or not row.get("caption"):
            raise DecoderError(
                f"{captions}: row {number} needs `image` and `caption`, found {brief(row)}"
            )
        file = Path(path) / str(row["image"])
        if not is_picture(file) or not file.is_file():
            why = f" ({HIDDEN_FILE_HINT})" if file.name.startswith(".") else ""
            raise DecoderError(f"{captions}: row {number} names {file}, which is no picture{why}")
        caption = one_line(str(row["caption"]))
        require_readable(caption, f"{captions}: the caption of row {number}")
        pairs.append((file, caption))

    def make(numbers: list[int]) -> Images:
        codes = torch.stack([read_picture(pairs[n][0], size) for n in numbers])
        text = model.text.encode([pairs[n][1] for n in numbers]).to(model.device)
        return Images(text, encode_pictures(model, codes))

    return ImageList(len(pairs), held_out, seed, make)


def read_picture(path: Path, size: int) -> Tensor:
    """Reads [3, size, size] float32 in [0, 1], centre-cropped to a square."""
    square = ImageOps.fit(open_rgb(path), (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(square, dtype=np.float32) / 255).permute(2, 0, 1)


def encode_pictures(model: ImageModel, pictures: Tensor) -> Tensor:
    """Encodes pictures [B, 3, H, W] float32 in [0, 1] to codes [B, L] int64. Raises DecoderError
    where the tokenizer only decodes, or the pictures are of another size."""
    codes: Tensor = model.tokenizer.encode(pictures.to(model.device))
    if codes.shape[1] != model.target.length:
        raise DecoderError(
            f"pictures of {pictures.shape[-1]} pixels are {codes.shape[1]} codes, the target "
            f"draws {model.target.length}; set data.size to the model's picture size"
        )
    return codes


# ---- the target's states ------------------------------------------------------------------------


@dataclass(frozen=True)
class States:
    """Teacher-forced states of B images in R rows, R = B (single) or 2 B (paired). ``hidden[:, P -
    1 + j]`` is the state that predicts code j."""

    images: Images
    hidden: Tensor  # [R, P + L - 1, D] float
    drop: Tensor  # [R] bool, rows without their caption
    keys_values: Tensor | None = None  # [R, P + L - 1, n, C], see `Learner.reads`
    noise: Tensor | None = None  # as `hidden`, added where a drafter reads it in training

    @property
    def copies(self) -> int:
        """Rows per image: 2 where guidance can be applied, else 1."""
        return len(self.hidden) // len(self.images)

    @property
    def text(self) -> TextFeatures:
        """Captions of all R rows."""
        return self.images.text.paired(self.copies)[0]

    @property
    def codes(self) -> Tensor:
        """Codes of all R rows, [R, L]."""
        return self.images.codes.repeat(self.copies, 1)

    def rows(self, index: Tensor) -> States:
        """Selects the states of the images at `index` [n] int64."""
        index = index.to(self.hidden.device)
        rows = torch.cat([copy * len(self.images) + index for copy in range(self.copies)])
        entries, noise = (None if t is None else t[rows] for t in (self.keys_values, self.noise))
        return States(self.images.rows(index), self.hidden[rows], self.drop[rows], entries, noise)


@torch.no_grad()
def target_states(
    target: Transformer, images: Images, drop: Tensor | None = None, reads: Reads = ()
) -> States:
    """Computes the target's states along the codes. Without `drop` rows are paired; with `drop` [B]
    bool they are single, and the marked ones lose their caption. reads: see `Learner.reads`."""
    if drop is None:
        rows, marked = images.text.paired(2)
        codes = images.codes.repeat(2, 1)  # [2 B, L]
    else:
        rows, marked, codes = images.text, drop, images.codes
    cache = GrowingCache()
    hidden = target.hidden_states(rows, codes, marked, cache if reads else None)
    parts = [cache.parts[layer][0][which].transpose(1, 2).flatten(2) for layer, which in reads]
    return States(images, hidden, marked, torch.stack(parts, 2) if reads else None)


@dataclass(frozen=True)
class DataConfig:
    """How states are kept: conf/train_config.yaml explains it."""

    shard: Count = 1024
    reuse: Positive = 4.0
    chunk: Count = 16
    drop: Annotated[float, Within(0, 1, below=True)] = 0.1

    def __post_init__(self) -> None:
        validate_fields(self, "data.")


class StateData:
    """States of a source's images, paired or single, in batches. Which captions are dropped follows
    from the index of the image. held_paired: whether held-out states are paired, which they are
    unless decoding does without guidance: their acceptance is that of decoding. reads: see
    `Learner.reads`."""

    def __init__(
        self,
        target: Transformer,
        source: ImageSource,
        paired: bool,
        config: DataConfig,
        batch: int,
        seed: int = 0,
        held_paired: bool = True,
        reads: Reads = (),
    ) -> None:
        self.target, self.source, self.reads = target, source, reads
        self.paired, self.held_paired = paired, held_paired
        self.config, self.batch, self.seed = config, batch, seed
        self.shard = min(config.shard, source.train or config.shard)
        self.steps = max(1, round(self.shard * config.reuse / batch))  # of a shard
        self._number = -1
        self._shard: States | None = None

    def at(self, step: int) -> States:
        """Returns the states of a step's batch."""
        number, turn = divmod(step, self.steps)
        if number != self._number:
            start, count = number * self.shard, self.source.train
            positions = range(start, start + self.shard)
            indices = positions if count is None else [position % count for position in positions]
            self._shard, self._number = self.states("train", indices), number
        generator = torch.Generator().manual_seed(self.seed * 7_919 + number)
        passes = -(-self.steps * self.batch // self.shard)
        order = [torch.randperm(self.shard, generator=generator) for _ in range(passes)]
        assert self._shard is not None
        return self._shard.rows(torch.cat(order)[turn * self.batch :][: self.batch])

    def images(self, steps: int) -> int:
        """Counts the different images that so many steps draw from."""
        count = -(-steps // self.steps) * self.shard
        return count if self.source.train is None else min(count, self.source.train)

    @torch.no_grad()
    def states(self, split: str, indices: Sequence[int]) -> States:
        """Computes the states of some images, on the target's device, `chunk` at a time. Where rows
        are single, held-out images keep their captions."""
        paired = self.paired if split == "train" else self.held_paired
        share, size = self.config.drop if split == "train" else 0.0, self.config.chunk
        parts = []
        for start in range(0, len(indices), size):
            part, drop = list(indices[start : start + size]), None
            images = self.source.images(split, part)
            if not paired:
                seeds = [self.seed * 1_000_003 + i for i in part]
                draws = [torch.rand((), generator=torch.Generator().manual_seed(s)) for s in seeds]
                drop = (torch.stack(draws) < share).to(images.codes.device)  # [B]
            parts.append(target_states(self.target, images, drop, self.reads))

        def joined(name: str) -> Any:
            """Joins a field, [R, ...], all conditional rows first."""
            values = [getattr(part, name) for part in parts]
            if values[0] is None:
                return None
            by_copy = zip(*(rows.chunk(parts[0].copies) for rows in values), strict=True)
            return torch.cat([rows for copy in by_copy for rows in copy])

        codes = torch.cat([part.images.codes for part in parts])
        whole = Images(TextFeatures.joined([part.images.text for part in parts]), codes)
        return States(whole, joined("hidden"), joined("drop"), joined("keys_values"))


# ---- what the trainer asks of a drafter ----------------------------------------------------------
# A drafter class ``package.module.Name`` is trained through ``package.module.NameLearner`` (or the
# dotted path given as ``learner=``), built as ``NameLearner(model, **options)``.


@dataclass(frozen=True)
class Drafted:
    """What was drafted at one depth for all R rows. Logits are ``head.logits(hidden)``;
    ``head.barred``: where codes may not stand, as of a target."""

    positions: Tensor  # [m] int64, the positions of the codes that are predicted
    hidden: Tensor  # [R, m, D]
    head: Any
    states: Tensor | None = None  # [R, m, D], what predicts the target's states, if anything does
    confidence: Tensor | None = None  # [B, m], the logit of being accepted, where that is predicted


class Learner(Protocol):
    """A drafter in training. ``net`` is in float32; the trainer moves it and sets autocast."""

    net: nn.Module

    @property
    def reads(self) -> Reads:
        """The target's keys and values that it reads (`States.keys_values`); those of a position
        are of the state there."""
        return ()

    def draft(self, states: States, roots: Tensor, depth: int) -> list[Drafted]:
        """Drafts for depths 1..depth along the true codes, as decoding would: a draft at depth d
        from root r (the position of the last committed code) sees true states up to r only. roots
        [m] int64, below L - depth; they hold for depth 2 and deeper. Depth 1, which costs little to
        have everywhere, predicts the positions 1..L-1."""
        ...

    def save(self, folder: Path) -> str:
        """Writes what ``drafter.checkpoint=folder`` loads; returns the SHA-256 of the weights."""
        ...
