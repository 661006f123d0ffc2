"""The networks of the papers' protocol: which network and image preparation each metric stands for.

The Inception is torch-fidelity's `inception-v3-compat` (the TensorFlow graph of 2015-12-05, which
clean-fid uses as well) on clean-fid's 299 x 299 input. VGG16's fc2 is taken before its ReLU, on the
whole image, with ImageNet's mean and deviation: what the papers' script does with torchvision's
network (Kynkaanniemi 1904.06991).

CLIP and HPSv2.1 are open_clip's architectures with a local weight file; no hub is asked. Score of
an image: 100 cos(image, caption), the mean of which is reported. Published tables give the cosine
(0.32 for 32) or 100 cos (HPS); Hessel et al. 2104.08718 would write 2.5 max(cos, 0).
    CLIP (ViT-B/32): caption behind "A photo depicts ", image 224 px by PIL's bicubic filter;
        captions are cut at 77 tokens. OpenAI's weights need the quick GELU. The papers' script goes
        through floats and back, which lowers some bytes by one: a difference in the third digit.
    HPSv2.1 (ViT-H/14, 2306.09341): caption alone, the whole image, float bicubic filter.
Everything runs in float32 (the released scripts use 16 bit on a GPU: differences below 0.1).

An evaluation downloads no weights, as it often runs where there is no network: one error lists
every missing file and where it is looked for. `bench fetch` gets them before.
"""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from decoders.cache_folder import folder as cache_folder
from decoders.models.loading.weights import load_into, read_state, sha256_of
from metrics import MetricError
from metrics.clip import ImageText, build_clip
from metrics.images import AS_IS, Extractor, Preparation, cleanfid, openai_clip, padded, squeezed

HUB_URL = "https://huggingface.co"
HTTP_PARTIAL, HTTP_BEYOND = 206, 416  # a part of a file, and where there is none
CHUNK_BYTES = 2**20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightFile:
    """A public weight file. path: its place under the weights folder; prefix: how its SHA-256
    begins, where that is known; other: of the same weights in another format."""

    about: str
    path: str
    url: str
    prefix: str = ""
    other: str | None = None

    def places(self, folder: Path | None) -> list[Path]:
        """Where it may lie; the first place is the usual one. folder None: `metrics` of the folder
        that `decoders.cache_folder` says."""
        root = cache_folder() / "metrics" if folder is None else folder.expanduser()
        return [root / name for name in (self.path, self.other) if name]


PUBLIC_FILES = {
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
        f"{HUB_URL}/timm/vit_base_patch32_clip_224.openai/resolve/main/open_clip_model.safetensors",
        "e6d1bd77",
        "timm/vit_base_patch32_clip_224.openai/open_clip_pytorch_model.bin",
    ),
    "hps": WeightFile(
        "HPSv2.1 on CLIP ViT-H/14",
        "xswu/HPSv2/HPS_v2.1_compressed.pt",
        f"{HUB_URL}/xswu/HPSv2/resolve/main/HPS_v2.1_compressed.pt",
    ),
}


@dataclass(frozen=True)
class Weights:
    """A file that is there, and its SHA-256. public: whether it may be the public one by that."""

    path: Path
    sha256: str
    public: bool = True


def locate(
    keys: Iterable[str], settings: Mapping[str, str | None], folder: Path | None = None
) -> dict[str, Weights]:
    """The files of these keys: as `settings` name them, else by their public names under `folder`
    (None: see `WeightFile.places`). Raises MetricError for an unknown key, and one that lists all
    files that are missing. Logs a warning for a file whose SHA-256 is not that of the public
    one."""
    for key in settings:
        if key not in PUBLIC_FILES:
            raise MetricError(f"there are no weights {key!r}; known: {', '.join(PUBLIC_FILES)}")
    paths, missing = {}, dict[str, str]()
    for key in keys:
        named, file = settings.get(key), PUBLIC_FILES[key]
        usual = file.places(folder)
        places = [Path(named).expanduser()] if named else usual
        if files := [path for path in places if path.is_file()]:
            paths[key] = files[0]
            continue
        where = f"; weights.{key}={named} does not exist" if named else ""
        missing[key] = (
            f"  {key}: {file.about}, expected at {usual[0]}, or weights.{key}=FILE{where}"
        )
    if missing:
        fetch = "python -m bench fetch metric=coco" + " metric.hps=true" * ("hps" in missing)
        fetch += "" if folder is None else f" metric.weights.folder={folder}"
        raise MetricError(
            "weights of the metrics asked for are missing, and nothing is downloaded here. Get "
            f"them by `{fetch}`, those of a study by `python -m bench fetch study=NAME`:\n"
            + "\n".join(missing.values())
            + "\nmetrics=[scenes] needs none: the embedded CLIP, for captions of embedded scenes"
        )
    found = {}
    for key, path in paths.items():
        digest, usual = sha256_of(path), PUBLIC_FILES[key].places(folder)
        public = digest.startswith(PUBLIC_FILES[key].prefix) or path in usual[1:]
        found[key] = weights = Weights(path, digest, public)
        if not weights.public:
            public_file = PUBLIC_FILES[key]
            _LOG.warning(
                f"{weights.path} is not the public file {public_file.path} (SHA-256 "
                f"{digest[:8]}..., expected {public_file.prefix}...): figures made with it are not "
                "comparable with published ones"
            )
    return found


def download(keys: Iterable[str], folder: Path | None = None) -> list[Path]:
    """Downloads the public files of these keys that are not there; returns the new ones. Raises
    MetricError: no network, or another file than the public one. What was interrupted goes on where
    it stopped."""
    downloaded = []
    for file in (PUBLIC_FILES[key] for key in keys):
        path, *others = file.places(folder)
        if any(one.is_file() for one in (path, *others)):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(file.url, path, file.prefix)
        except (OSError, HTTPException) as error:
            raise MetricError(
                f"{file.about} could not be downloaded ({error}): put {file.url} at {path} by hand"
            ) from error
        downloaded.append(path)
    return downloaded


def fetch(url: str, path: Path, prefix: str = "") -> None:
    """Downloads a file, from where an earlier try was interrupted. prefix: the first digits of its
    SHA-256. Raises OSError, also for a file with other digits, which is dropped."""
    part = path.with_name(f"{path.name}.part")
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request) as answer:
            goes_on = answer.status == HTTP_PARTIAL
            size = int(answer.headers.get("Content-Length", 0)) + have * goes_on
            with part.open("ab" if goes_on else "wb") as file:
                shutil.copyfileobj(answer, file, CHUNK_BYTES)
        if part.stat().st_size < size:
            raise OSError("the connection broke; the same command goes on from there")
    except HTTPError as error:
        if error.code != HTTP_BEYOND:  # all of it was there
            raise
    if not sha256_of(part).startswith(prefix):
        part.unlink()
        raise OSError(f"{url} has another SHA-256 than {prefix}...")
    part.replace(path)


class InceptionFeatures(Extractor):
    """Images [n, 3, 299, 299] in [0, 255] -> features [n, 2048] float32: pool3."""

    name, layer = "inception, clean-resize", "2048"

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        """weights: torch-fidelity's file. It unpickles whatever it is given, so it gets the tensors
        that were read safely, written anew in memory. Raises as `read_state`, and MetricError where
        the file is another network's."""
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        super().__init__()
        memory = io.BytesIO()
        torch.save(read_state(weights.path), memory)
        memory.seek(0)
        try:
            self.network = FeatureExtractorInceptionV3(
                "inception-v3-compat", ["2048"], feature_extractor_weights_path=memory
            )
        except RuntimeError as error:
            reason = str(error)[:400]
            raise MetricError(f"{weights.path} is not the FID Inception: {reason}") from error
        self.to(device).eval()

    def preparation(self, size: int | None) -> Preparation:
        return AS_IS if size is None else cleanfid(size)

    def forward(self, images: Tensor) -> Tensor:
        hidden = (images.to(next(self.network.parameters()).device) - 128) / 128
        for name, stage in self.network.named_children():  # in the order of the forward pass
            if name != "fc":
                hidden = stage(hidden)
        return hidden.flatten(1)  # [n, 2048, 1, 1] -> [n, 2048]

    def classes(self, features: Tensor) -> Tensor:
        """The law of the 1008 classes of features [n, 2048], without the layer's bias, as the first
        implementation of the Inception Score has it: [n, 1008] float64, on the CPU."""
        logits = features.double() @ self.network.fc.weight.detach().cpu().double().T
        return logits.softmax(1)


class Vgg16Features(Extractor):
    """uint8 images [n, 3, 224, 224] -> features [n, 4096] float32."""

    name, layer = "vgg16 fc2, whole image", "fc2"

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        """weights: torchvision's file. Raises as `read_state`, and DecoderError where the file is
        another network's."""
        from torchvision.models import vgg16

        super().__init__()
        with torch.device("meta"):  # 138 million weights need not be drawn to be overwritten
            network = vgg16(init_weights=False)
        network = network.to_empty(device="cpu")
        load_into(network, read_state(weights.path), str(weights.path))
        network.classifier = network.classifier[:4]  # Linear, ReLU, Dropout, Linear
        self.network = network.requires_grad_(False).eval()
        self.to(device).eval()

    def preparation(self, size: int | None) -> Preparation:
        return squeezed(224)

    def forward(self, images: Tensor) -> Tensor:
        from torchvision.transforms.functional import normalize

        pixels = images.to(next(self.network.parameters()).device) / 255
        features: Tensor = self.network(
            normalize(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        return features


@dataclass(frozen=True)
class ClipKind:
    """One official score. arch: open_clip's name. whole: images are not cropped, but padded."""

    label: str
    arch: str
    prefix: str = "A photo depicts "
    quick_gelu: bool = False
    whole: bool = False


CLIP_KINDS = {
    "clip": ClipKind("CLIP ViT-B/32", "ViT-B-32", quick_gelu=True),
    "hps": ClipKind("HPSv2.1", "ViT-H-14", prefix="", whole=True),
}


class OpenClip(ImageText):
    """An official network with its tokenizer and pixel protocol."""

    def __init__(self, kind: ClipKind, weights: Weights, device: str = "cpu") -> None:
        """Raises as `read_state`, and DecoderError where the file is another network's."""
        import open_clip
        from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
        from open_clip.tokenizer import SimpleTokenizer

        config = open_clip.get_model_config(kind.arch)
        vision, text = config["vision_cfg"], config["text_cfg"]
        model = build_clip(config["embed_dim"], vision, text, kind.quick_gelu)
        self.kind, self.side = kind, int(vision["image_size"])
        other = f"{kind.label.partition(' ')[0]} by the weights {weights.sha256[:8]}"
        self.name = f"{kind.label if weights.public else other} (100 cos)"
        self.caption = f"caption behind {kind.prefix!r}" if kind.prefix else "caption alone"
        self.tokenizer = SimpleTokenizer(context_length=int(text["context_length"]))
        load_into(model, read_state(weights.path), str(weights.path))
        super().__init__(model.requires_grad_(False), device)
        self.mean, self.std = (
            torch.tensor(x, device=device).view(3, 1, 1)
            for x in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)
        )

    def preparation(self, size: int | None) -> Preparation:
        if self.kind.whole:
            return padded(self.side)
        return AS_IS if size is None else openai_clip(size, self.side)

    def tokens(self, captions: Sequence[str]) -> Tensor:
        """The prefix put before each, cut at the context's length."""
        tokens: Tensor = self.tokenizer([self.kind.prefix + caption for caption in captions])
        return tokens  # [n, L]

    def note(self, captions: Sequence[str]) -> str:
        most = int(self.tokenizer.context_length) - 2  # besides start and end
        long = sum(len(self.tokenizer.encode(self.kind.prefix + text)) > most for text in captions)
        note = f"{long} of {len(captions)} captions cut at {most + 2} tokens, the rest not scored"
        return note if long else ""


NETWORKS: dict[str, Callable[[Weights, str], Any]] = {
    "inception": InceptionFeatures,
    "vgg": Vgg16Features,
    **{key: partial(OpenClip, kind) for key, kind in CLIP_KINDS.items()},
}
