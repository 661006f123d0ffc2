"""Without a GPU the kernels are still compiled for the GPUs they are written for: every launch that
the wrappers make, for Hopper (CUDA) and CDNA3 (ROCm)."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
import torch

from decoders.kernels import candidates, sampling, tree_attention
from decoders.kernels.candidates import AttentionShape, Triton

triton = pytest.importorskip("triton", reason="no kernels without Triton")
resources = pytest.importorskip("tests.cuda.lowered").binary
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "i1",
}
HOPPER = ("cuda", 90, 32)
CDNA3 = ("hip", "gfx942", 64)


class Recorded:
    """Stands in for a kernel: keeps the launch instead of making it."""

    def __init__(self, kernel) -> None:
        self.kernel, self.launches = kernel, []

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, args, options))


def specialised(value):
    """A launch argument as Triton's own launcher would type it: (type, constant, aligned)."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}", None, True
    if isinstance(value, float):
        return "fp32", None, False
    return ("constexpr", 1, False) if value == 1 else ("i32", None, value % 16 == 0)


def compiled(recorded: Recorded, target):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _, args, options = recorded.launches[-1]
    signature, constants, attributes = {}, {}, {}
    for at, name in enumerate(recorded.kernel.arg_names):
        if at < len(args):
            kind, constant, aligned = specialised(args[at])
            if aligned:
                attributes[(at,)] = [["tt.divisibility", 16]]
        else:
            kind, constant = "constexpr", options[name]
        signature[name] = kind
        if constant is not None:
            constants[name] = constant
    source = ASTSource(recorded.kernel, signature, constants, attributes)
    own = {k: options[k] for k in ("num_warps", "num_stages") if k in options}
    return triton.compile(source, target=GPUTarget(*target), options=own)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def attention(monkeypatch, queries, size, dtype, slots=440, group=1):
    from decoders.kernels import tree_attention_programs as programs

    recorded = Recorded(programs.attend_tree)
    fake = SimpleNamespace(attend_tree=recorded, unit=programs.unit, PRECISION=programs.PRECISION)
    monkeypatch.setattr(tree_attention, "programs", lambda name, device: fake)
    monkeypatch.setattr(tree_attention, "processors", lambda device: 132)
    shared = 20 // group
    one, cpu = Triton(), torch.device("cpu")
    shape = AttentionShape(2, queries, 20, slots, size, dtype, cpu, group)
    mask = torch.ones(2, queries, slots, dtype=torch.bool)
    prepared = one.prepare(shape, mask, torch.arange(queries).repeat(2, 1))
    qkv = torch.empty(2, queries, 20 + 2 * shared, size, dtype=dtype)
    rope = torch.empty(2, queries, size // 2, dtype=torch.complex64)
    one.attend(qkv, rope, prepared, *torch.empty(2, 2, shared, slots, size, dtype=dtype).unbind(0))
    return recorded


ATTENTION = [  # T, d, dtype, an instruction that must be there
    (1, 64, torch.bfloat16, "mma.sync"),
    (58, 100, torch.float16, "wgmma.mma_async"),
    (58, 128, torch.float32, "wgmma.mma_async"),
]


@pytest.mark.parametrize(("queries", "size", "dtype", "instruction"), ATTENTION)
def test_tree_attention_compiles_for_hopper(monkeypatch, cache, queries, size, dtype, instruction):
    recorded = attention(monkeypatch, queries, size, dtype)
    (programs, splits), _, _ = recorded.launches[0]
    assert programs == 40 and splits > 1  # batch 1 with guidance does not leave the GPU idle
    made = compiled(recorded, HOPPER)
    assert made.metadata.shared <= 227 * 1024
    code = made.asm["ptx"]
    assert instruction in code
    assert "cp.async" in code  # keys and values are fetched ahead
    # What a program appends is behind a barrier before its loop over the cache.
    steps = made.asm["ttir"]
    stored = steps.index("tt.store")
    loop = steps.index("scf.for", stored)
    assert "barrier" in steps[steps.rindex("tt.store", 0, loop) : loop]


def sampled(monkeypatch, vocab, draws):
    from decoders.kernels import sampling_programs as programs

    recorded = Recorded(programs.sample_rows)
    fake = SimpleNamespace(sample_rows=recorded)
    monkeypatch.setattr(sampling, "programs", lambda name, device: fake)
    sampling.sampled(torch.empty(1, 7, vocab), torch.empty(1, 1, draws), 1.0, 1000, 0.9)
    return recorded


ROOM = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}  # shared memory of a program


@pytest.mark.parametrize("capability", ROOM)
def test_every_program_compiles_for_every_architecture(monkeypatch, cache, capability):
    """Ampere, Ada, Hopper and consumer Blackwell: within their shared memory, and real code. And
    nothing is spilled."""
    room = ROOM[capability]
    monkeypatch.setattr(tree_attention, "shared_memory", lambda device: room)
    for size, group in ((64, 1), (128, 4)):
        recorded = attention(monkeypatch, 58, size, torch.bfloat16, group=group)
        made = compiled(recorded, ("cuda", capability, 32))
        options = recorded.launches[0][2]
        cut = options["BLOCK"], options["num_stages"]
        most = tree_attention.shared_bytes(58, size, torch.bfloat16, *cut)
        assert made.metadata.shared <= most <= room
        assert f".target sm_{capability}" in made.asm["ptx"]
        assert resources(made, "made").spilled == 0
    for vocab in (1000, 16384):
        made = compiled(sampled(monkeypatch, vocab, 4), ("cuda", capability, 32))
        assert made.metadata.shared <= 48 << 10 and resources(made, "made").spilled == 0


@pytest.mark.parametrize(("capability", "size"), [(89, 128), (90, 256)])
def test_float32_fits_or_is_refused(monkeypatch, cache, capability, size):
    """A float32 tree of 64 queries: 128 wide fits every card, 256 wide an H100 and no Ada."""
    room = ROOM[capability]
    monkeypatch.setattr(tree_attention, "shared_memory", lambda device: room)
    made = compiled(attention(monkeypatch, 64, size, torch.float32), ("cuda", capability, 32))
    assert made.metadata.shared <= room


def test_a_tree_that_no_block_fits_is_refused(monkeypatch):
    monkeypatch.setattr(tree_attention, "shared_memory", lambda device: ROOM[89])
    monkeypatch.setattr(candidates, "missing", lambda device: None)
    wide = AttentionShape(2, 64, 8, 440, 256, torch.float32, torch.device("cpu"))
    expected = r"need 163,840 bytes of shared memory, found 101,376 on this device"
    assert re.search(expected, Triton().reason(wide) or "")


def test_the_kernels_compile_for_rocm(monkeypatch, cache):
    from decoders.kernels import tree_attention_programs as programs

    monkeypatch.setattr(programs, "PRECISION", "ieee")  # what ROCm is given
    assert compiled(attention(monkeypatch, 58, 64, torch.bfloat16), CDNA3).asm["hsaco"]
    assert compiled(sampled(monkeypatch, 1000, 1), CDNA3).asm["hsaco"]
