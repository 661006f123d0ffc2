"""LlamaGen's VQ tokenizer against transformers' of Janus, which is the same network."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.janus.modeling_janus import JanusVQVAE, JanusVQVAEConfig

from decoders.api import DecoderError
from decoders.models.checkpoint import open_checkpoint
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.pictures import JANUS, LLAMAGEN, load_pictures, read_vq
from tests.decoders.models import released as R
from tests.decoders.models.made.chameleon import randomise

CONFIG = VQConfig(
    codes=40, dim=8, channels=32, ch_mult=(1, 2), z_channels=64, grid=4, group_width=1
)


def release_file(path) -> JanusVQVAE:
    """Writes random weights as LlamaGen's release has them; returns transformers' model of them."""
    shape = {"embed_dim": 8, "num_embeddings": 40, "latent_channels": 64, "base_channels": 32}
    more = {"channel_multiplier": [1, 2], "num_res_blocks": 2, "num_patches": 4}
    theirs = randomise(JanusVQVAE(JanusVQVAEConfig(**shape, **more)), seed=3)
    with torch.device("meta"):
        names = list(LlamaGenVQ(CONFIG).state_dict())
    state = theirs.state_dict()
    state = {name: state[JANUS.name(name, 2)] for name in names}
    torch.save({"model": state | {"quantize.codebook_used": torch.zeros(9)}, "steps": 5}, path)
    return theirs


def test_decoding_and_encoding_agree_with_transformers(tmp_path):
    path = tmp_path / "vq_ds16_t2i.pt"
    theirs = release_file(path)
    vq = read_vq(LLAMAGEN, open_checkpoint(str(path)), 4)
    assert vq.cfg == CONFIG
    codes = torch.randint(0, 40, (2, 16), generator=torch.Generator().manual_seed(1))
    expected = (theirs.decode(codes) * 0.5 + 0.5).clamp(0, 1)
    assert float(expected.std()) > 0.05
    torch.testing.assert_close(vq.decode(codes), expected, atol=2e-4, rtol=0)
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    z = F.normalize(theirs.quant_conv(theirs.encoder(images * 2 - 1)), dim=1)  # [B, C, h, w]
    table = F.normalize(theirs.quantize.embedding.weight, dim=-1)
    found = torch.einsum("bchw,vc->bhwv", z, table).argmax(-1).flatten(1)
    assert torch.equal(vq.encode(images), found) and len(found.unique()) > 3


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
