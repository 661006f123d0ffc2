"""The official networks on random weights of their layouts: features and scores as the papers' code
computes them."""

import pytest
import torch
from torch.nn.functional import interpolate, linear, normalize
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from decoders.models.checkpoint import read_state
from metrics.clip import clip_score
from metrics.images import ImageSet, to_pil
from metrics.official.networks import InceptionFeatures, Vgg16Features
from metrics.official.open_clip_model import KINDS, OpenClip
from metrics.preparations import centre_crop

from .made import clip_files, of, write

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """uint8 [6, 3, 64, 64]"""
    coarse = torch.rand(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    return (interpolate(coarse, 64, mode="bilinear") * 255).to(torch.uint8)


@pytest.fixture(scope="module")
def inception(tmp_path_factory) -> InceptionFeatures:
    path = tmp_path_factory.mktemp("inception") / "inception.pth"
    return InceptionFeatures(of(write(path, "inception")))


def test_clean_resize_equals_the_network_on_images_that_need_no_resizing(inception, pictures):
    """At 299 px both resizings are the identity: the trunk must be the whole forward pass."""
    large = interpolate(pictures[:2].float(), 299).to(torch.uint8)
    clean, tf = inception(large), inception.network(large)[0]
    assert clean.shape == (2, 2048)
    assert torch.allclose(clean, tf, rtol=1e-3, atol=1e-5 * float(tf.max()))
    small, large = inception(pictures[:1]), inception.network(pictures[:1])[0]
    assert (small - large).norm() > 0.01 * large.norm()


def test_vgg_features_are_fc2_before_its_relu(tmp_path, pictures):
    written = read_state(write(tmp_path / "vgg.pth", "vgg"))
    extractor = Vgg16Features(of(tmp_path / "vgg.pth")).eval()
    found = extractor(pictures[:1])
    image = F.to_tensor(F.resize(to_pil(pictures[0]), [224, 224]))
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
    weights, arch = clip_files(tmp_path_factory.mktemp("clip"), quick_gelu=True)
    return OpenClip(KINDS["clip"], of(weights), arch=str(arch))


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
    found = clip_score(clip, ImageSet(pictures, centre_crop(64)), captions, batch=4)
    assert found.per_image == pytest.approx(want.numpy(), abs=1e-4)
    assert found.mean.lo <= found.mean.value <= found.mean.hi


def test_hps_takes_its_layout_no_prefix_and_float_pixels(tmp_path, pictures):
    weights, arch = clip_files(tmp_path, wrap=True)
    hps = OpenClip(KINDS["hps"], of(weights), arch=str(arch))
    assert torch.equal(hps.tokens(["a cat"]), hps.tokenizer(["a cat"]))
    unit = F.resize(pictures / 255, [32, 32], InterpolationMode.BICUBIC, antialias=True)
    want = normalize(hps.model.encode_image(F.normalize(unit, MEAN, STD)), dim=-1)
    assert torch.allclose(hps.image_features(pictures), want, atol=1e-5)
