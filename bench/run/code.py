"""What decodes the images of a decoder: a digest of its code and weights.

Why: folders stay for days while drafters are edited and trained again. A resumed run keeps the
records of a decoder where this digest is the same, and decodes its images again where it is not.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import decoders
from bench.config.schema import DecoderVariant, digest
from bench.data.files import WEIGHTS
from bench.run.generate import foreign
from decoders.api import ImageModel
from decoders.models.weights import sha256_of

CODE = (".py", ".cpp", ".h", ".json")


class Code:
    """The project's code and a model's own weights, before any decoder is built: loading a drafter
    takes its name away from the model."""

    def __init__(self, model: ImageModel) -> None:
        self.model, self.weights = model, dict(model.weights_sha256)
        self.named = {name: at for name, at in model.drafters.items() if isinstance(at, str)}
        folder = Path(decoders.__file__).parent
        files = sorted(
            p for p in folder.rglob("*") if p.suffix in CODE and "weights" not in p.parts
        )
        self.project = digest([sha256_of(path) for path in files])

    def digest(self, variant: DecoderVariant) -> str:
        """Of decoders/, the files of the decoder's plug-ins, the model's weights and its own: once
        it is built."""
        weights = self.weights | self._weights(variant)
        return digest([self.project, _plug_ins(variant), weights])[:12]

    def _weights(self, variant: DecoderVariant) -> dict[str, str]:
        """Of the checkpoints and files that the decoder's settings name."""
        kwargs = (part.kwargs for part in variant.entry.spec.parts)
        words = {value for given in kwargs for value in given.values() if isinstance(value, str)}
        weights: dict[str, str] = {}
        for place in {self.named.get(word, word) for word in words}:
            loaded = self.model.weights_sha256.items()
            mine = {k: v for k, v in loaded if place in (k, k.rpartition("/")[0])}
            weights |= mine or {str(path): sha256_of(path) for path in _files(Path(place))}
        return weights


def _files(place: Path) -> list[Path]:
    """A file of weights, or those in a folder; none where there is no such place."""
    inside = sorted(place.iterdir()) if place.is_dir() else [place]
    return [path for path in inside if path.suffix in WEIGHTS and path.is_file()]


def _plug_ins(variant: DecoderVariant) -> list[str]:
    """Hashes of the files of the parts that are not the project's own; "" for one that is not
    there."""
    hashes = []
    for target in foreign(variant.entry.spec):
        spec = importlib.util.find_spec(target.replace(":", ".").rpartition(".")[0])
        hashes.append(sha256_of(Path(spec.origin)) if spec and spec.origin else "")
    return hashes
