"""VQ tokenizers of released models agree with transformers', wherever their files are; Chameleon's
codebook with a row end."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.janus.modeling_janus import (
    JanusVQVAE,
    JanusVQVAEConfig,
    JanusVQVAEDecoder,
)

from decoders.api import DecoderError
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.loading.checkpoint import Checkpoint, open_checkpoint
from decoders.models.pictures import (
    CHAMELEON,
    JANUS,
    LLAMAGEN,
    config_from_tensors,
    load_vq,
    read_vq,
)
from decoders.verify.lantern import neighbour_table
from tests import checkpoints as K

GRID, CODES = K.GRID["chameleon"], K.CODES["chameleon"]


def some_codes(count: int, side: int = GRID) -> Tensor:
    return torch.randint(count, (2, side**2), generator=torch.Generator().manual_seed(4))


def some_pictures(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.rand(count, 3, 2 * GRID, 2 * GRID, generator=generator)


def in_unit(x: Tensor) -> Tensor:
    return (x / 2 + 0.5).clamp(0, 1)


@pytest.mark.parametrize("kind", ["janus", "emu3"])
def test_pictures_of_janus_and_emu3_agree_with_transformers(theirs, folders, kind):
    side, count = K.GRID[kind], K.CODES[kind]
    codes = some_codes(count, side)
    lines = codes.view(2, side, side)
    rows = F.pad(lines, (0, 1), value=count).flatten(1)
    ours = K.load(kind, folders[kind]).tokenizer.decode(rows if kind == "emu3" else codes)
    expected = in_unit(theirs[kind].model.vqmodel.decode(lines if kind == "emu3" else codes))
    assert ours.shape == (2, 3, 2 * side, 2 * side) and float(ours.std()) > 0.02
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


# ---- Chameleon's VQGAN: transformers has the encoder alone; Janus's decoder is the same ----------


@pytest.fixture(scope="module")
def hf(theirs):
    return theirs["chameleon"]


@pytest.fixture(scope="module")
def bare(hf, tmp_path_factory):
    """As transformers saves it: without the VQGAN's decoder."""
    folder = tmp_path_factory.mktemp("bare")
    return K.write_hf(folder, hf, K.vocabulary("chameleon"))


def vqgan(hf: Any) -> dict[str, Tensor]:
    """The release's vqgan.ckpt: encoder, codebook and decoder, and a piece of the discriminator."""
    own = {k: v.clone() for k, v in hf.model.vqmodel.state_dict().items()}
    more = {"loss.discriminator.main.0.weight": torch.zeros(2)}
    return own | K.chameleon_decoder() | more


def reference_pictures(hf: Any, codes: Tensor) -> Tensor:
    """codes [B, GRID**2] -> [B, 3, H, W] in [0, 1]. Janus's decoder has attention in the coarsest
    level besides, and counts levels from the coarsest."""
    net = JanusVQVAEDecoder(JanusVQVAEConfig(
        base_channels=32, channel_multiplier=[1, 2], num_res_blocks=1, latent_channels=12,
    ))  # fmt: skip
    for level in net.up:
        level.attn = torch.nn.ModuleList()
    w = vqgan(hf)
    state = {n.removeprefix("decoder."): x for n, x in w.items() if n.startswith("decoder.")}
    swapped = {"up.0": "up.1", "up.1": "up.0"}
    net.load_state_dict({swapped.get(n[:4], n[:4]) + n[4:]: x for n, x in state.items()})
    z = w["quantize.embedding.weight"][codes].view(len(codes), GRID, GRID, -1).permute(0, 3, 1, 2)
    with torch.no_grad():
        return in_unit(net(F.conv2d(z, w["post_quant_conv.weight"], w["post_quant_conv.bias"])))


@pytest.mark.parametrize(
    "where",
    ["inside", "vqgan.ckpt", "tokenizer/vqgan.ckpt", "named", "another checkpoint", "alone"],
)
def test_pictures_of_chameleon_agree_with_transformers(hf, folders, bare, tmp_path, where):
    checkpoint, tokenizer = bare, None
    if where == "inside":
        checkpoint = folders["anole"]
    elif where == "another checkpoint":
        tokenizer = folders["anole"]
    elif where == "alone":  # as leloy/Anole-7b-v0.1-vqvae-hf has it
        tokenizer = tmp_path
        save_file(vqgan(hf), tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text('{"model_type": "chameleon_vqgan"}')
    else:
        checkpoint = K.write_hf(tmp_path / "own", hf, K.vocabulary("chameleon"))
        file = tmp_path / "vqgan.ckpt" if where == "named" else checkpoint / where
        file.parent.mkdir(exist_ok=True)
        torch.save({"state_dict": vqgan(hf)}, file)
        tokenizer = file if where == "named" else None
    model = K.load("anole", checkpoint, tokenizer=tokenizer and str(tokenizer))
    codes = some_codes(CODES)
    ours = model.tokenizer.decode(codes)
    assert model.draws and ours.dtype == torch.float32
    expected = reference_pictures(hf, codes)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    assert float(expected.std()) > 0.05  # a picture, not a constant
    assert ("vqgan.ckpt" in model.weights_sha256) == ("vqgan" in where or where == "named")


def test_codes_of_pictures_agree_with_transformers(hf, folders):
    images = some_pictures(3)
    with torch.inference_mode():
        expected = hf.model.vqmodel.encode(images * 2 - 1).image_tokens.view(3, -1)
    assert len(expected.unique()) > 3
    assert torch.equal(K.load("anole", folders["anole"]).tokenizer.encode(images), expected)
    lumina = K.load("lumina", folders["lumina"])
    rows = lumina.tokenizer.encode(images).view(3, GRID, GRID + 1)
    assert torch.equal(rows[:, :, :-1].flatten(1), expected)
    assert (rows[:, :, -1] == CODES).all()


def test_row_ends_carry_no_picture_and_are_nobodys_neighbours(hf, folders):
    lumina, anole = (K.load(kind, folders[kind]) for kind in ("lumina", "anole"))
    codes = some_codes(CODES)
    lines = F.pad(codes.view(2, GRID, GRID), (0, 1), value=CODES)
    pictures = lumina.tokenizer.decode(lines.flatten(1))
    assert torch.equal(pictures, anole.tokenizer.decode(codes))
    for wrong, says in (
        (codes, "4 rows of 4 codes and a row end, found 16 codes"),
        (torch.full((1, 20), CODES), "found 16 inside a row"),
    ):
        with pytest.raises(DecoderError, match=says):
            lumina.tokenizer.decode(wrong)
    torch.testing.assert_close(lumina.codebook[:-1], hf.model.vqmodel.quantize.embedding.weight)
    table = neighbour_table(lumina.codebook, CODES)
    assert (table[:-1, -1] == CODES).all()
    assert torch.equal(table[:-1, :-1], neighbour_table(anole.codebook, CODES - 1))


@pytest.mark.parametrize("kind", ["anole", "lumina"])
def test_without_a_decoder_there_are_neighbours_but_no_pictures(bare, folders, caplog, kind):
    model = K.load(kind, bare)
    assert not model.draws and "no pictures made" in caplog.text
    assert torch.equal(model.codebook, K.load(kind, folders[kind]).codebook)
    with pytest.raises(DecoderError, match=r"no Chameleon VQGAN with a decoder.*vqgan\.ckpt"):
        model.tokenizer.decode(some_codes(CODES))


def test_the_released_shape_is_read_off_the_tensors(tmp_path):
    """Channels, multipliers and blocks of the release, on tensors without storage."""
    released = VQConfig(codes=8192, dim=256, grid=32, l2_norm=False, group_width=1, attention=False)
    with torch.device("meta"):
        module = LlamaGenVQ(released)
    named = {CHAMELEON.name(n, 5): p.data for n, p in module.named_parameters()}
    assert "encoder.down.4.block.1.conv2.weight" in named
    assert "decoder.up.0.block.2.norm1.bias" in named and "decoder.up.4.upsample.conv.bias" in named
    assert not any(".attn." in name for name in named)
    opened = Checkpoint(tmp_path, {}, dict.fromkeys(named, tmp_path), named)
    assert config_from_tensors(CHAMELEON, opened, "", 32) == released


# ---- LlamaGen's, against transformers' of Janus, which is the same network -----------------------

CONFIG = VQConfig(
    codes=40, dim=8, channels=32, ch_mult=(1, 2), z_channels=64, grid=GRID, group_width=1
)


def write_release(path) -> JanusVQVAE:
    """Writes random weights as LlamaGen's release has them; returns transformers' model of them."""
    shape = {"embed_dim": 8, "num_embeddings": 40, "latent_channels": 64, "base_channels": 32}
    more = {"channel_multiplier": [1, 2], "num_res_blocks": 2, "num_patches": GRID}
    janus = K.randomise(JanusVQVAE(JanusVQVAEConfig(**shape, **more)), seed=3)
    with torch.device("meta"):
        names = list(LlamaGenVQ(CONFIG).state_dict())
    state = janus.state_dict()
    state = {name: state[JANUS.name(name, 2)] for name in names}
    torch.save({"model": state | {"quantize.codebook_used": torch.zeros(9)}, "steps": 5}, path)
    return janus


def test_decoding_and_encoding_of_llamagen_agree_with_transformers(tmp_path):
    path = tmp_path / "vq_ds16_t2i.pt"
    janus = write_release(path)
    vq = read_vq(LLAMAGEN, open_checkpoint(str(path)), GRID)
    assert vq.config == CONFIG
    codes, images = some_codes(40), some_pictures(2)
    expected = in_unit(janus.decode(codes))
    assert float(expected.std()) > 0.05
    torch.testing.assert_close(vq.decode(codes), expected, atol=2e-4, rtol=0)
    z = F.normalize(janus.quant_conv(janus.encoder(images * 2 - 1)), dim=1)  # [B, C, h, w]
    table = F.normalize(janus.quantize.embedding.weight, dim=-1)
    found = torch.einsum("bchw,vc->bhwv", z, table).argmax(-1).flatten(1)
    assert torch.equal(vq.encode(images), found) and len(found.unique()) > 3


def test_the_tokenizer_beside_the_target_is_found_and_another_file_is_none(tmp_path):
    folder = K.write_llamagen(tmp_path / "m")
    write_release(folder / "vq_ds16_t2i.pt")
    opened = open_checkpoint(str(folder))
    tokenizer, digests = load_vq(LLAMAGEN, opened, None, 40, GRID, torch.device("cpu"))
    assert tokenizer.codebook.shape == (40, 8)
    assert list(digests) == ["vq_ds16_t2i.pt"]
    with pytest.raises(DecoderError, match="draws with 24 codes, its VQ tokenizer has 40"):
        load_vq(LLAMAGEN, opened, None, 24, GRID, torch.device("cpu"))
    torch.save(K.llamagen(), tmp_path / "t2i.pt")
    with pytest.raises(DecoderError, match="holds no LlamaGen VQ tokenizer"):
        read_vq(LLAMAGEN, open_checkpoint(str(tmp_path / "t2i.pt")), GRID)
