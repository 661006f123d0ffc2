"""The official networks on random weights of their layouts: features and scores as the papers' code
computes them. Their weight files: one list of what is missing, layouts that load."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import interpolate, linear, normalize
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from decoders.models.loading.weights import read_state
from metrics import MetricError
from metrics.clip import clip_score
from metrics.images import ImageSet, image_files, to_pil
from metrics.networks import PUBLIC_FILES, InceptionFeatures, OpenClip, Vgg16Features, locate

from .small_weights import clip_file, of, small_kind, write

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """uint8 [6, 3, 64, 64]"""
    coarse = torch.rand(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    return (interpolate(coarse, 64, mode="bilinear") * 255).to(torch.uint8)


def test_the_trunk_is_the_whole_forward_pass_of_the_network(tmp_path, pictures):
    """At 299 px torch-fidelity's own resizing is the identity."""
    inception = InceptionFeatures(of(write(tmp_path / "inception.pth", "inception")))
    large = interpolate(pictures[:2].float(), 299).to(torch.uint8)
    ours, theirs = inception(large.float()), inception.network(large)[0]
    assert ours.shape == (2, 2048)
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5 * float(theirs.max()))


def test_precision_and_recall_are_of_the_features_of_the_papers_script(tmp_path, pictures):
    """VGG16's fc2 before its ReLU, of the whole image, whatever its shape."""
    written = read_state(write(tmp_path / "vgg.pth", "vgg"))
    extractor = Vgg16Features(of(tmp_path / "vgg.pth")).eval()
    wide = to_pil(pictures[0, :, 10:50])  # 64 x 40
    found = extractor(extractor.preparation(256).apply(wide)[None])
    image = F.to_tensor(F.resize(wide, [224, 224]))
    image = F.normalize(image, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))[None]
    hidden = extractor.network.features(image).flatten(1)  # [1, 512 * 7 * 7]
    first = extractor.network.classifier[0](hidden).relu()
    weight, bias = (written[f"classifier.3.{name}"].float() for name in ("weight", "bias"))
    want = linear(first, weight, bias)
    assert found.shape == (1, 4096)
    assert torch.allclose(found, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
    assert (found < 0).any()


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> OpenClip:
    weights = clip_file(tmp_path_factory.mktemp("clip"), quick_gelu=True)
    return OpenClip(small_kind("clip"), of(weights))


def test_the_prefix_stands_before_the_caption(clip):
    """The released script joins the tokens of the prefix and of the caption; so do we."""
    captions = ["Two dogs, on a beach.", "word " * 90]
    alone = clip.tokenizer(captions)  # [2, 77]
    prefix = clip.tokenizer(["A photo depicts "])[:, 1:4].expand(2, 3)
    tokens = torch.cat([alone[:, :1], prefix, alone[:, 1:]], dim=1)[:, :77]
    tokens[1, -1] = clip.tokenizer.eot_token_id
    assert torch.equal(clip.tokens(captions), tokens)
    want = normalize(clip.model.encode_text(tokens), dim=-1)
    assert torch.allclose(clip.text_features(captions), want, atol=1e-6)
    assert clip.note(captions) == "1 of 2 captions cut at 77 tokens, the rest not scored"
    fits = "word " * (75 - 3)  # with start, prefix and end
    assert clip.note([fits]) == "" and clip.note([fits + "word"])


def test_the_score_is_100_cos_of_clips_own_preprocessing(clip, pictures):
    captions = [f"picture number {i}" for i in range(6)]
    unit = [
        F.to_tensor(F.resize(to_pil(x), 32, interpolation=InterpolationMode.BICUBIC))
        for x in pictures
    ]
    seen = clip.model.encode_image(F.normalize(torch.stack(unit), MEAN, STD))
    said = clip.text_features(captions)
    want = 100 * torch.nn.functional.cosine_similarity(seen, said)
    found = clip_score(clip, ImageSet(pictures, clip.preparation(64)), captions, batch=4)
    assert found == pytest.approx(want.numpy(), abs=1e-4)


def test_hps_takes_its_layout_no_prefix_and_images_of_any_shape(tmp_path, pictures):
    """hpsv2's transform: floats, the longer side first, then black bars."""
    hps = OpenClip(small_kind("hps"), of(clip_file(tmp_path, wrap=True)))
    assert torch.equal(hps.tokens(["a cat"]), hps.tokenizer(["a cat"]))
    drawn = [pictures[0], pictures[1, :, 8:48], pictures[2, :, :, :20]]  # [3, H, W] of three shapes
    for number, picture in enumerate(drawn):
        to_pil(picture).save(tmp_path / f"{number}.png")
    found = clip_score(hps, ImageSet(image_files(tmp_path), hps.preparation(256)), ["a cat"] * 3)
    bicubic = InterpolationMode.BICUBIC
    square = F.resize(drawn[0] / 255, [32, 32], bicubic, antialias=True)
    wide = F.pad(F.resize(drawn[1] / 255, [20, 32], bicubic, antialias=True), [0, 6, 0, 6])
    tall = F.pad(F.resize(drawn[2] / 255, [32, 10], bicubic, antialias=True), [11, 0, 11, 0])
    seen = hps.model.encode_image(F.normalize(torch.stack([square, wide, tall]), MEAN, STD))
    want = 100 * torch.nn.functional.cosine_similarity(seen, hps.text_features(["a cat"]))
    assert found == pytest.approx(want.numpy(), abs=1e-4)


# ---- weight files -----------------------------------------------------------------------------

STATE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


def test_everything_that_is_missing_is_listed_at_once(tmp_path):
    here = tmp_path / "here.pth"
    here.write_bytes(b"x")
    given = {"inception": str(here), "hps": str(tmp_path / "gone.pt")}
    with pytest.raises(MetricError) as caught:
        locate(["inception", "vgg", "clip", "hps"], given, tmp_path / "weights")
    text = str(caught.value)
    assert "are missing, and nothing is downloaded" in text and "inception" not in text
    for key in ("vgg", "clip", "hps"):
        assert PUBLIC_FILES[key].url not in text and f"weights.{key}=FILE" in text
        assert str(tmp_path / "weights" / PUBLIC_FILES[key].path) in text
    assert f"weights.hps={tmp_path / 'gone.pt'} does not exist" in text
    folder = f"metric.weights.folder={tmp_path / 'weights'}"
    assert f"`python -m bench fetch metric=coco metric.hps=true {folder}`" in text


@pytest.mark.parametrize("named", [True, False])
def test_files_are_found_by_their_public_names_in_the_folder(tmp_path, named, monkeypatch):
    """One that is named, else that of the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "lantern-bench" / "metrics"
    for key, name in (("clip", PUBLIC_FILES["clip"].other), ("hps", PUBLIC_FILES["hps"].path)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(key.encode())
    found = locate(["clip", "hps"], {}, folder if named else None)
    assert found["clip"].path.name == "open_clip_pytorch_model.bin" and found["clip"].public
    assert found["hps"].sha256 != found["clip"].sha256
    with pytest.raises(MetricError, match="no weights 'hpsv2'"):
        locate(["clip"], {"hpsv2": "x"}, tmp_path)


@pytest.mark.parametrize("key", ["inception", "vgg", "clip"])
def test_weights_that_are_not_the_public_ones_are_said_to_be_others(key, tmp_path, caplog):
    """As LAION's ViT-B/32, which has the layout of OpenAI's."""
    path = tmp_path / "laion.safetensors"
    path.write_bytes(b"others")
    (weights,) = locate([key], {key: str(path)}).values()
    assert not weights.public
    assert f"laion.safetensors is not the public file {PUBLIC_FILES[key].path}" in caplog.text


def test_a_score_by_other_weights_has_their_name(tmp_path, monkeypatch):
    path = clip_file(tmp_path)
    for digest, name in (
        ("e6d1bd7789aa", "CLIP ViT-B/32 (100 cos)"),
        ("0123", "CLIP by the weights 0123 (100 cos)"),
    ):
        monkeypatch.setattr("metrics.networks.sha256_of", lambda _, digest=digest: digest)
        weights = locate(["clip"], {"clip": str(path)})["clip"]
        assert OpenClip(small_kind("clip"), weights).name == name


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save(STATE, path),
        lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False),
        lambda path: torch.save({"state_dict": STATE, "epoch": 3}, path),
        lambda path: torch.save({f"module.{k}": v for k, v in STATE.items()}, path),
        lambda path: save_file(STATE, path),
    ],
    ids=["zip", "legacy", "state_dict", "module", "safetensors"],
)
def test_every_layout_loads(tmp_path, write, request):
    path = tmp_path / ("w.safetensors" if "safetensors" in request.node.name else "w.pt")
    write(path)
    found = read_state(path)
    assert all(torch.equal(found.pop(name), wanted) for name, wanted in STATE.items()) and not found
