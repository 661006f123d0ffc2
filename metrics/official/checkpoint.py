"""Weight files of the official networks: which are needed, where they are, and their download.

An evaluation downloads nothing, as it often runs where there is no network: a missing file is one
error that lists every file, its public name and where to put it. `bench fetch` gets them before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from decoders.models.loading.weights import sha256_of
from metrics import MetricError

FOLDER = Path("~/.cache/lantern-bench/metrics")
HUB = "https://huggingface.co"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightFile:
    """A public weight file. path: its place under the weights folder; other: of the same weights in
    another format. prefix: how its SHA-256 begins, where the public name says so."""

    about: str
    path: str
    url: str
    prefix: str = ""
    other: str | None = None

    def places(self, folder: Path | None) -> list[Path]:
        """Where it may lie; the first place is the usual one. folder None: `FOLDER`."""
        root = (FOLDER if folder is None else folder).expanduser()
        return [root / name for name in (self.path, self.other) if name]


FILES = {
    "inception": WeightFile(
        "Inception-v3 with the FID weights of 2015-12-05",
        "weights-inception-2015-12-05-6726825d.pth",
        "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
        "weights-inception-2015-12-05-6726825d.pth",
        "6726825d",
    ),
    "vgg": WeightFile(
        "VGG16 of torchvision (IMAGENET1K_V1)",
        "vgg16-397923af.pth",
        "https://download.pytorch.org/models/vgg16-397923af.pth",
        "397923af",
    ),
    "clip": WeightFile(
        "CLIP ViT-B/32 of OpenAI, open_clip layout",
        "timm/vit_base_patch32_clip_224.openai/open_clip_model.safetensors",
        f"{HUB}/timm/vit_base_patch32_clip_224.openai/resolve/main/open_clip_model.safetensors",
        other="timm/vit_base_patch32_clip_224.openai/open_clip_pytorch_model.bin",
    ),
    "hps": WeightFile(
        "HPSv2.1 on CLIP ViT-H/14",
        "xswu/HPSv2/HPS_v2.1_compressed.pt",
        f"{HUB}/xswu/HPSv2/resolve/main/HPS_v2.1_compressed.pt",
    ),
}


@dataclass(frozen=True)
class Weights:
    """A file that is there, and its SHA-256."""

    path: Path
    sha256: str


def locate(
    keys: Iterable[str], settings: Mapping[str, str | None], folder: Path | None = None
) -> dict[str, Weights]:
    """The files of these keys: as `settings` name them, else under `folder` by their public names.

    folder None: `FOLDER`. Raises MetricError for an unknown key, and one that lists all files that
    are missing. Logs a warning for a file whose SHA-256 is not the one in its public name.
    """
    for key in settings:
        if key not in FILES:
            raise MetricError(f"there are no weights {key!r}; known: {', '.join(FILES)}")
    paths, missing = {}, []
    for key in keys:
        named, file = settings.get(key), FILES[key]
        usual = file.places(folder)
        files = [
            path for path in ([Path(named).expanduser()] if named else usual) if path.is_file()
        ]
        if files:
            paths[key] = files[0]
            continue
        where = f"; weights.{key}={named} does not exist" if named else ""
        missing.append(
            f"  {key}: {file.about}{where}.\n"
            f"    Download {file.url}\n    to {usual[0]}, or give weights.{key}=FILE"
        )
    if missing:
        raise MetricError(
            "weights of the metrics asked for are missing, and nothing is downloaded here. `bench "
            "fetch` gets those of a study (another folder than the one named: weights.folder=DIR)"
            ":\n" + "\n".join(missing)
        )
    return {key: _hashed(key, path) for key, path in paths.items()}


def download(keys: Iterable[str], folder: Path | None = None) -> list[Path]:
    """Downloads the public files of these keys that are not there; returns the new ones. Raises
    MetricError: no network, or another file than the public one."""
    from torch.hub import download_url_to_file

    downloaded = []
    for file in (FILES[key] for key in keys):
        path, *others = file.places(folder)
        if any(one.is_file() for one in (path, *others)):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(file.url, str(path), file.prefix or None)
        except (OSError, RuntimeError) as error:
            raise MetricError(
                f"{file.about} could not be downloaded ({error}): put {file.url} at {path} by hand"
            ) from error
        downloaded.append(path)
    return downloaded


def _hashed(key: str, path: Path) -> Weights:
    digest, prefix = sha256_of(path), FILES[key].prefix
    if not digest.startswith(prefix):
        _LOG.warning(
            "%s is not the public file %s (SHA-256 %s..., expected %s...): figures made with it "
            "are not comparable with published ones",
            path,
            FILES[key].path,
            digest[:8],
            prefix,
        )
    return Weights(path, digest)
