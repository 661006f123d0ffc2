"""Released LlamaGen, EAGLE and VQ layouts load, agree with a reference, and decode."""

import hashlib

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.models.janus.modeling_janus import JanusVQVAE, JanusVQVAEConfig

from decoders.api import DecoderError, Sampling, TextFeatures
from decoders.loops.autoregressive import Autoregressive
from decoders.models.llamagen import LabelEncoder, load
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.loading.checkpoint import open_checkpoint
from decoders.models.pictures import JANUS, LLAMAGEN, load_vq, read_vq
from decoders.propose.drafters.eagle import Eagle, net_of
from decoders.verify.lantern import Lantern
from tests.decoders.compositions import images, prefilled, through_cache
from tests.decoders.models import released as R
from tests.decoders.models.random_checkpoints.chameleon import randomise

VALID = [False, False, True, True, True, True]
CODES = [3, 17, 0, 9, 23, 5, 5]


def hub(folder):
    """A model of the hub conversion's layout."""
    return load(dtype="float32", checkpoint=str(R.write_hub(folder / "m")))


def features(batch: int = 2) -> TextFeatures:
    x = torch.randn(batch, R.PREFIX, R.TEXT, generator=torch.Generator().manual_seed(7))
    mask = torch.tensor([VALID] * batch)
    mask[1:, 2] = False
    return TextFeatures(x * mask[..., None], mask)


LAYOUTS = {
    "safetensors": lambda d: R.write_hub(d / "m"),
    "sharded": lambda d: R.write_hub(d / "m", shards=3),
    "bin": lambda d: R.write_hub(d / "m", pickled=True),
    "sharded bin": lambda d: R.write_hub(d / "m", shards=2, pickled=True),
    "original": lambda d: R.write_original(d / "t2i.pt", R.original_llamagen()),
    "original, wrapped": lambda d: R.write_original(
        d / "t2i.pt", {"model": R.original_llamagen(), "steps": 3}
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_every_layout_agree_with_the_float64_reference(tmp_path, layout):
    path = LAYOUTS[layout](tmp_path)
    model = load(dtype="float32", checkpoint=str(path), grid=R.GRID)
    text = features()
    with torch.inference_mode():
        states, _ = through_cache(model, text, torch.tensor([CODES] * 2))
        ours = model.target.logits(states)  # [2 B, P + T, V]
    for file in model.weights_sha256:
        content = ((path if path.is_dir() else path.parent) / file).read_bytes()
        assert model.weights_sha256[file] == hashlib.sha256(content).hexdigest()
    for b in range(2):
        valid = text.mask[b].tolist()
        for row, conditional in ((b, True), (2 + b, False)):
            states = R.reference_states(text.features[b], valid, CODES, conditional)
            theirs = R.reference_logits(states)
            torch.testing.assert_close(ours[row].double(), theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_the_drafter_reads_the_released_conventions(tmp_path, file):
    drafter = R.write_drafter(tmp_path / "d", pickled=file.endswith("bin"))
    model = hub(tmp_path)
    text = features(1)
    with torch.inference_mode():
        states, _ = through_cache(model, text, torch.tensor([CODES[:3]]))
        eagle = Eagle(model, str(drafter))
        prefill = prefilled(model, text, states[:, : R.PREFIX], Sampling(cfg=3.0))
        session = eagle.begin(prefill, 3, 1)
        one = torch.ones(1, dtype=torch.long)
        codes = torch.tensor([CODES[:3]])
        got = session.advance(states[:, R.PREFIX - 1 : -1], codes, 3 * one, 0 * one)  # [1, V]
    logits = []
    for conditional in (True, False):
        theirs = R.reference_states(text.features[0], VALID, CODES[:3], conditional)
        logits.append(R.reference_logits(R.reference_draft(theirs, CODES[:3])[None])[0])
    expected = logits[1] + 3.0 * (logits[0] - logits[1])
    torch.testing.assert_close(got[0].double(), expected, atol=2e-4, rtol=1e-3)
    assert f"{drafter}/{file}" in model.weights_sha256


def test_a_missing_embedding_is_the_targets_and_a_missing_bias_is_zero(tmp_path):
    model = hub(tmp_path)
    bare = net_of(model, str(R.write_drafter(tmp_path / "d", without="embed_tokens.weight")))
    assert torch.equal(bare.embed_tokens.weight, model.target.tok_embeddings.weight)
    unbiased = net_of(model, str(R.write_drafter(tmp_path / "e", without="fc.bias")))
    assert not unbiased.fc.bias.any()
    full = net_of(model, str(R.write_drafter(tmp_path / "f")))
    assert torch.equal(full.embed_tokens.weight, R.drafter_tensors()["embed_tokens.weight"])


def test_class_conditional_checkpoints_decode(tmp_path):
    path = R.write_original(tmp_path / "c2i_B_256.pt", {"model": R.original_llamagen(classes=10)})
    model = load(dtype="float32", checkpoint=str(path), grid=R.GRID, cfg=2.0)
    assert model.target.prefix == 1
    assert model.target.config.classes == 10
    codes = images(Autoregressive(model, Sampling(cfg=2.0)), ["3", "9"]).codes
    assert codes.shape == (2, R.GRID**2)


def test_without_a_tokenizer_codes_are_had_and_pictures_say_what_is_missing(tmp_path, caplog):
    model = hub(tmp_path)
    assert "no LlamaGen VQ tokenizer" in caplog.text
    with pytest.raises(DecoderError, match=r"pictures need the VQ tokenizer.*vq_ds16_t2i\.pt"):
        model.tokenizer.decode(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(DecoderError, match="neighbours of codes need the VQ tokenizer"):
        Lantern(model)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    whole, torn = R.write_hub(tmp_path / "m"), R.write_hub(tmp_path / "torn", shards=3)
    (torn / "model-00002-of-00003.safetensors").unlink()
    lost = R.write_hub(tmp_path / "lost")
    tensors = {k: v.contiguous() for k, v in R.hub_names(R.original_llamagen()).items()}
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors | {"surprise": torch.zeros(1)}, lost / "model.safetensors")
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(2)}, other)
    (tmp_path / "empty").mkdir()
    odd = tmp_path / "t2i.pt"  # of a width that was not released, without a config.json
    torch.save(R.original_llamagen(), odd)
    for path, settings, says in (
        (torn, {}, r"lacks 1 of the 3 shards"),
        (lost, {}, r"missing model\.layers\.1\.mlp\.up_proj\.weight; unexpected surprise"),
        (other, {}, "is no LlamaGen checkpoint"),
        (tmp_path / "empty", {}, "found nothing"),
        (odd, {"grid": R.GRID}, r"width 32.*num_attention_heads"),
        (whole, {"grid": 16}, r"4 x 4 codes .*contradicts model\.grid=16"),
    ):  # fmt: skip
        with pytest.raises(DecoderError, match=says):
            load(checkpoint=str(path), **settings)
    assert load(checkpoint=str(whole), grid=R.GRID).target.length == R.GRID**2


def test_labels():
    text = LabelEncoder(1000).encode(["207", " 0 ", "999"])
    assert text.features.tolist() == [[207], [0], [999]] and text.features.dtype == torch.int64
    assert text.mask.all() and text.mask.shape == (3, 1)
    for bad in ("1000", "-1", "cat", "", "1.5", "²"):
        with pytest.raises(DecoderError, match="from 0 to 999"):
            LabelEncoder(1000).encode(["1", bad])
    with pytest.raises(DecoderError, match="no prompts"):
        LabelEncoder().encode([])


# ---- the VQ tokenizer, against transformers' of Janus, which is the same network -----------------

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
    assert vq.config == CONFIG
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
    tokenizer, digests = load_vq(LLAMAGEN, opened, None, 40, 4, torch.device("cpu"))
    assert tokenizer.codebook.shape == (40, 8)
    assert list(digests) == ["vq_ds16_t2i.pt"]
    with pytest.raises(DecoderError, match="draws with 24 codes, its VQ tokenizer has 40"):
        load_vq(LLAMAGEN, opened, None, R.VOCAB, 4, torch.device("cpu"))
    torch.save(R.original_llamagen(), tmp_path / "t2i.pt")
    with pytest.raises(DecoderError, match="holds no LlamaGen VQ tokenizer"):
        read_vq(LLAMAGEN, open_checkpoint(str(tmp_path / "t2i.pt")), 4)
