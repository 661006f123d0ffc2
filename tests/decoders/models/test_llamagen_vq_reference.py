"""LlamaGen's VQ tokenizer against a plain float64 reference, on a file in the release layout."""

import pytest
import torch
import torch.nn.functional as F

from decoders.api import DecoderError
from decoders.models.checkpoint import open_checkpoint
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.pictures import LLAMAGEN, load_pictures, read_vq
from tests.decoders.models import released as R
from tests.decoders.models.chameleon_checkpoint import attention, conv, decoded, level, norm, res

CONFIG = VQConfig(
    codes=40, dim=8, channels=32, ch_mult=(1, 2), z_channels=64, grid=4, group_width=1
)


def release_file(path) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    state = LlamaGenVQ(CONFIG).state_dict()
    state = {
        k: torch.randn_like(v) * 0.2 + ("norm" in k and k.endswith("weight"))
        for k, v in state.items()
    }
    torch.save({"model": state | {"quantize.codebook_used": torch.zeros(9)}, "steps": 5}, path)
    return {k: v.double() for k, v in state.items()}


def reference_decode(codes, w):
    table = F.normalize(w["quantize.embedding.weight"], dim=-1)
    z = table[codes].view(len(codes), 4, 4, -1).permute(0, 3, 1, 2)
    return decoded(z, w, "012", ("conv_blocks.0", "conv_blocks.1"), "res")


def reference_codes(images, w):
    x = conv(images * 2 - 1, w, "encoder.conv_in")
    x = F.pad(level(x, w, "encoder.conv_blocks.0", "res"), (0, 1, 0, 1))
    at = "encoder.conv_blocks.0.downsample.conv"
    x = F.conv2d(x, w[f"{at}.weight"], w[f"{at}.bias"], stride=2)
    x = res(level(x, w, "encoder.conv_blocks.1", "res"), w, "encoder.mid.0")
    x = res(attention(x, w, "encoder.mid.1"), w, "encoder.mid.2")
    x = norm(x, w, "encoder.norm_out")
    z = conv(conv(x * x.sigmoid(), w, "encoder.conv_out"), w, "quant_conv")
    z = F.normalize(z.permute(0, 2, 3, 1), dim=-1)
    table = F.normalize(w["quantize.embedding.weight"], dim=-1)
    return (z @ table.T).argmax(-1).flatten(1)


def test_decoding_and_encoding_agree_with_the_reference(tmp_path):
    path = tmp_path / "vq_ds16_t2i.pt"
    weights = release_file(path)
    vq = read_vq(LLAMAGEN, open_checkpoint(str(path)), 4)
    assert vq.cfg == CONFIG
    codes = torch.randint(0, 40, (2, 16), generator=torch.Generator().manual_seed(1))
    expected = (reference_decode(codes, weights) * 0.5 + 0.5).clamp(0, 1)
    torch.testing.assert_close(vq.decode(codes).double(), expected, atol=2e-4, rtol=0)
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(vq.encode(images), reference_codes(images.double(), weights))


def test_the_tokenizer_beside_the_target_is_found_and_another_file_is_none(tmp_path):
    folder = R.write_hub(tmp_path / "m")
    release_file(folder / "vq_ds16_t2i.pt")
    opened = open_checkpoint(str(folder))
    tokenizer, digests = load_pictures(LLAMAGEN, opened, None, 40, 4, torch.device("cpu"))
    assert tokenizer.codebook.shape == (40, 8)
    assert list(digests) == ["vq_ds16_t2i.pt"]
    with pytest.raises(DecoderError, match="draws with 24 codes, its VQ tokenizer has 40"):
        load_pictures(LLAMAGEN, opened, None, R.VOCAB, 4, torch.device("cpu"))
    torch.save(R.original_llamagen(), tmp_path / "t2i.pt")
    with pytest.raises(DecoderError, match="holds no LlamaGen VQ tokenizer"):
        read_vq(LLAMAGEN, open_checkpoint(str(tmp_path / "t2i.pt")), 4)
