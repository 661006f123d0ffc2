"""Drafts that the CPU kernel grows in one call beside those of the tensor code."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.api import DecoderError, Draft, Sampling, TextFeatures
from decoders.executed import executed
from decoders.execution.cpu.drafting import NativeDraft, native_draft
from decoders.models.small import random_model
from decoders.noise import Noise
from decoders.propose.drafters.eagle import Eagle, EagleSession
from decoders.propose.grown import GrownSession
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static
from decoders.verify.children import ancestry
from tests.decoders.execution.cpu.cases import needs_kernel

pytestmark = [needs_kernel, pytest.mark.usefixtures("two_threads")]
VOCAB = 50  # no multiple of a panel
TREES = {
    "chain": Chain(depth=4),
    "one": Chain(depth=1),
    "binary_8": Static(choices="binary_8"),
    "narrow_5": Static(choices="narrow_5"),
    "naive_extend_57": Static(choices="naive_extend_57"),
    "small": Dynamic(depth=3, top_k=2, nodes=6),
    "root alone": Dynamic(depth=1, top_k=4, nodes=4),
    "dynamic_58": Dynamic(depth=5, top_k=10, nodes=58),
}


class Replaced(GrownSession):
    """A proposer's session around a drafter's that is given."""

    def __init__(self, session: EagleSession, tree: Any, sampling: Sampling) -> None:
        self.session, self.tree, self.sampling = session, tree, sampling


@dataclass
class Drafting:
    """Sessions of some images, and what they are told in two steps."""

    tree: Any
    sampling: Sampling
    batch: int = 3
    dtype: torch.dtype = torch.float32
    rows: tuple[int, ...] | None = None  # these images alone
    call: NativeDraft | None = None  # the draft in the kernel

    def session(self, kernel: bool, kind: type[EagleSession] = EagleSession) -> EagleSession:
        model = random_model(vocab=VOCAB, grid=4, width=32, dtype=self.dtype)
        if kernel:
            model = executed(model, "cpu")
        text = model.text.encode(["a"] * self.batch)
        text = TextFeatures(text.features[self.images], text.mask[self.images])
        copies = self.sampling.guidance_rows
        cache = model.target.new_cache(text.batch * copies, model.target.prefix)
        hidden = model.target.prefill(text, copies, cache)
        size = (self.tree.depth + 1, self.tree.session_nodes)
        net = Eagle(model).net
        if kernel:
            model.execution.offer(net, "the drafter")
        session = kind(net, model, text, hidden, self.sampling, *size)
        if kernel:
            whole = Replaced(session, self.tree, self.sampling)
            self.call = native_draft(whole, model.execution)
        return session

    @property
    def images(self) -> list[int]:
        return list(range(self.batch) if self.rows is None else self.rows)

    def told(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hidden [R, T, D], codes [B, T], count [B], start [B]; ragged."""
        random = torch.Generator().manual_seed(step)
        copies, length = self.sampling.guidance_rows, self.tree.depth + 1
        hidden = torch.randn(copies, self.batch, length, 32, generator=random)
        codes = torch.randint(VOCAB, (self.batch, length), generator=random)
        before = torch.tensor([1, length, 2])[: self.batch].clamp_max(length)
        count = torch.tensor([length, 1, 2])[: self.batch].clamp_max(length)
        start = before * step
        keep = self.images
        states = hidden[:, keep].flatten(0, 1).to(self.dtype)
        return states, codes[keep], (count if step else before)[keep], start[keep]

    def draft(self, session: EagleSession, step: int) -> Draft:
        told = self.told(step)
        logits = self.of(session).advance(*told)
        noise = Noise(torch.rand(self.batch, 80, 33, generator=torch.Generator().manual_seed(7)))
        noise = Noise(noise.uniform[self.images])
        return self.grow(session, logits, noise, told[2] + told[3])

    def grow(self, session: EagleSession, logits: Tensor, noise: Noise, place: Tensor) -> Draft:
        whole = self.of(session)
        if isinstance(whole, NativeDraft):
            return whole.grow(logits, noise, place)
        return self.tree.grow(session, logits, self.sampling, noise, place)

    def of(self, session: EagleSession) -> Any:
        """The call in the session's place, where there is one."""
        return self.call if self.call is not None and self.call.inner is session else session


def alike(have: Draft, want: Draft) -> None:
    for field in ("codes", "parents", "depth", "children"):
        assert torch.equal(getattr(have, field), getattr(want, field)), field
    assert (have.q is None) == (want.q is None)
    if have.q is not None:
        torch.testing.assert_close(have.q, want.q, rtol=1e-4, atol=1e-6)
    assert (have.expected is None) == (want.expected is None)
    if have.expected is not None:
        torch.testing.assert_close(have.expected, want.expected, rtol=1e-4, atol=1e-5)
    assert have.ancestry is not None
    assert torch.equal(have.ancestry, ancestry(want.parents, int(want.depth.max())))


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(
    ("batch", "cfg", "temperature"), [(3, 3.0, 0.0), (3, 3.0, 0.7), (3, 1.0, 1.0), (1, 3.0, 1.0)]
)
@torch.inference_mode()
def test_a_draft_is_that_of_the_tensor_code(name, batch, cfg, temperature):
    case = Drafting(TREES[name], Sampling(temperature=temperature, cfg=cfg), batch)
    own, plain = case.session(True), case.session(False)
    for step in (0, 1):
        have, want = case.draft(own, step), case.draft(plain, step)
        alike(have, want)
        assert torch.equal(own.root_code, plain.root_code)
        assert torch.equal(own.root_slot, plain.root_slot)
        for field in ("features", "seen"):
            mine, right = getattr(own, field), getattr(plain, field)
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    assert case.call is not None
    assert own.calls == plain.calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["narrow_5", "dynamic_58"])
@torch.inference_mode()
def test_an_image_alone_has_the_bits_it_has_in_a_batch(name, dtype):
    def drafts(rows: tuple[int, ...] | None) -> tuple[EagleSession, Draft]:
        case = Drafting(TREES[name], Sampling(cfg=3.0), 3, dtype, rows)
        session = case.session(True)
        case.draft(session, 0)
        return session, case.draft(session, 1)

    together, all_of_it = drafts(None)
    for image in range(3):
        session, alone = drafts((image,))
        assert torch.equal(alone.codes[0], all_of_it.codes[image])
        assert torch.equal(session.features, together.features[image::3])
        assert torch.equal(session.seen, together.seen[image::3])
        if alone.q is not None and all_of_it.q is not None:
            assert torch.equal(alone.q[0], all_of_it.q[image])


@pytest.mark.parametrize("name", ["binary_8", "small"])
@torch.inference_mode()
def test_filtered_distributions_grow_as_in_the_tensor_code(name):
    for filters in ({"top_k": 4}, {"top_p": 0.8}):
        case = Drafting(TREES[name], Sampling(cfg=3.0, **filters))
        own, plain = case.session(True), case.session(False)
        have, want = case.draft(own, 0), case.draft(plain, 0)
        assert case.call is not None
        assert torch.equal(have.codes, want.codes) and torch.equal(have.children, want.children)
    case = Drafting(TREES[name], Sampling(temperature=0, top_k=4))  # greedy reads them all
    session = case.session(True)
    case.draft(session, 0)
    assert case.call is not None


@torch.inference_mode()
def test_subclasses_that_change_nothing_are_calls_too_and_others_tensor_code():
    class Same(Dynamic):
        """Overrides nothing."""

    class Tree(Dynamic):
        def grow(self, *given: Any) -> Draft:
            return super().grow(*given)

    class Session(EagleSession):
        def advance(self, *given: Any) -> Tensor:
            return super().advance(*given)

    case = Drafting(Same(depth=3, top_k=2, nodes=6), Sampling(cfg=3.0))
    want = case.draft(case.session(True), 0)
    assert case.call is not None
    case = Drafting(Tree(depth=3, top_k=2, nodes=6), Sampling(cfg=3.0))
    assert torch.equal(case.draft(case.session(True), 0).codes, want.codes) and case.call is None
    case.tree = TREES["small"]
    assert torch.equal(case.draft(case.session(True, Session), 0).codes, want.codes)
    assert case.call is None


@torch.inference_mode()
def test_equal_likeliest_codes_come_first_index_first():
    for tree in (Static(choices=[[0], [1], [2]]), Dynamic(depth=1, top_k=3, nodes=3)):
        case = Drafting(tree, Sampling(temperature=0, cfg=3.0), 1)
        session = case.session(True)
        case.draft(session, 0)
        logits = torch.zeros(1, VOCAB)
        logits[:, [5, 20, 40, 49]] = 2.0
        noise, place = Noise(torch.zeros(1, 80, 33)), torch.ones(1, dtype=torch.long)
        draft = case.grow(session, logits, noise, place)
        assert draft.codes[0, 1:].tolist() == [5, 20, 40]


@torch.inference_mode()
def test_a_support_smaller_than_the_tree_leaves_fewer_children():
    tree = Static(choices=[[0], [1], [2], [3]])
    case = Drafting(tree, Sampling(cfg=3.0), 1)
    session = case.session(True)
    case.draft(session, 0)
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[:, [7, 30]] = 0.0
    noise = Noise(torch.full((1, 80, 33), 0.25))
    draft = case.grow(session, logits, noise, torch.ones(1, dtype=torch.long))
    assert draft.codes[0, 1:3].tolist() == [7, 30]
    assert draft.children[0, 0].tolist() == [1, 2, 0, 0]


@torch.inference_mode()
def test_what_is_told_is_checked_before_anything_is_written():
    case = Drafting(TREES["narrow_5"], Sampling(cfg=3.0), 2)
    session = case.session(True)
    hidden, codes, count, start = case.told(0)
    kept = [t.clone() for t in (session.cache.data, session.root_slot, session.root_code)]
    for wrong in (
        (hidden, codes + VOCAB, count, start),
        (hidden, codes, count - count, start),
        (hidden, codes, count + 99, start),
        (hidden, codes, count, start - 1),
        (hidden, codes, count, start + 999),
    ):
        with pytest.raises(DecoderError, match="lies outside its table"):
            case.of(session).advance(*wrong)
    with pytest.raises(DecoderError, match="expected hidden states"):
        case.of(session).advance(hidden[:1], codes, count, start)
    now = (session.cache.data, session.root_slot, session.root_code)
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    logits = case.of(session).advance(hidden, codes, count, start)
    noise = Noise(torch.zeros(2, 80, 33))
    with pytest.raises(DecoderError, match="lies outside its table"):
        case.grow(session, logits, noise, count - 99)
    with pytest.raises(DecoderError, match="expected noise"):
        case.grow(session, logits, Noise(noise.uniform[:1]), count)
    with pytest.raises(DecoderError, match="expected logits"):
        case.grow(session, logits.double(), noise, count)
