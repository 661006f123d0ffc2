"""On a GPU pictures and metrics are computed in float32, without TF32: the switches are off where
networks run, and as they were afterwards."""

import pytest
import torch

from decoders.models.pictures import PICTURES_AT_ONCE, VQTokenizer, decode_pictures
from metrics.clip import ImageText, clip_score
from metrics.images import features_of

SWITCHES = torch.backends.cudnn, torch.backends.cuda.matmul


def allowed():
    return [switch.allow_tf32 for switch in SWITCHES]


@pytest.fixture(autouse=True)
def tf32():
    """Both are on, as a user may have set them."""
    before = allowed()
    for switch in SWITCHES:
        switch.allow_tf32 = True
    yield
    assert allowed() == [True, True]
    for switch, value in zip(SWITCHES, before, strict=True):
        switch.allow_tf32 = value


class Vq:
    grid, codebook, raw_codebook = 2, torch.eye(4), torch.eye(4)

    def __init__(self):
        self.seen, self.sizes = [], []

    def decode(self, codes):
        self.seen.append(allowed())
        self.sizes.append(len(codes))
        return codes.view(-1, 1, 2, 2).expand(-1, 3, -1, -1).float()

    def encode(self, images):
        self.seen.append(allowed())
        return images[:, 0].flatten(1).long()


class Images:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def part(self, start, stop):
        return torch.ones(min(stop, self.count) - start, 3, 2, 2)


def test_pictures_are_decoded_and_encoded_without_tf32():
    vq = Vq()
    tokenizer = VQTokenizer(vq)
    codes = torch.tensor([[0, 1, 2, 3]])
    assert torch.equal(tokenizer.encode(tokenizer.decode(codes)), codes)
    assert vq.seen == [[False, False]] * 2


def test_features_and_scores_are_computed_without_tf32():
    seen = []

    class Towers(ImageText):
        def __init__(self):
            pass

        def image_features(self, images):
            seen.append(allowed())
            return images.flatten(1)

        def text_features(self, captions):
            seen.append(allowed())
            return torch.ones(len(captions), 12)

    features_of(Towers().image_features, Images(3))
    clip_score(Towers(), Images(2), ["a", "b"])
    assert seen == [[False, False]] * 3


@pytest.mark.parametrize("count", [1, 3, PICTURES_AT_ONCE, PICTURES_AT_ONCE + 2])
def test_a_picture_does_not_depend_on_how_many_are_decoded_with_it(count, monkeypatch):
    """A GPU decodes batches of one size alone, and single pictures singly."""
    codes = torch.randint(4, (count, 4))
    alone = torch.cat([Vq().decode(row) for row in codes.split(1)])

    class OnCard(torch.Tensor):
        device = torch.device("cuda")

    for given in (codes, codes.as_subclass(OnCard)):
        vq = Vq()
        assert torch.equal(decode_pictures(vq, given).as_subclass(torch.Tensor), alone)
        on_card = isinstance(given, OnCard) and count > 1
        assert {*vq.sizes} == {PICTURES_AT_ONCE if on_card else 1}
