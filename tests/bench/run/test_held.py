"""What recorded steps hold, and when: the runner drops a state behind its last call, and the plan
counts those that are held at the same time."""

import dataclasses
import gc
import weakref

import pytest

from bench.config import schedule
from bench.plan.command import cmd_plan
from bench.plan.plan import CONTEXT, Call, Load, Plan, cache_bytes
from bench.run.lineup import LATE, Lineup
from bench.run.runner import Run, Shard, run_shard, run_study
from decoders.models.sizes import Shape
from tests.bench import fakes
from tests.bench.run.test_run import FAILING
from tests.decoders.execution.test_recorded_memory import FIRST, decoded, decoder_of

NAMES = {"fake_ar": "ar", "fake_spec": "spec"}
UNTIMED = "latency.prompts=0"
UNFREEZE = gc.unfreeze  # which tests do without (tests/conftest.py)


def held() -> set[tuple[str, int]]:
    """(decoder, batch) of what is recorded at the moment."""
    return {(label, size) for label, size, kept in fakes.PREPARED if size in kept}


@pytest.fixture
def moments(monkeypatch) -> list[set[tuple[str, int]]]:
    """What is held behind every batch of a run, before any of it is dropped."""
    found: list[set[tuple[str, int]]] = []
    run = Run.run

    def watched(self, batch):
        run(self, batch)
        found.append(held())

    monkeypatch.setattr(Run, "run", watched)
    return found


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_runner_holds_what_the_schedule_says(fake_study, moments, blocks):
    config = fake_study(f"latency.blocks={blocks}", "decoders=[fake_ar,fake_spec]")
    result = run_study(config)
    every = result.cells
    parts = schedule.parts(
        schedule.latency_batches(config, every),
        schedule.quality_batches(config, every),
        config.latency.parts,
    )
    wanted = [
        {(NAMES[b.cell.entry.name], len(b.indices)) for b in kept}
        for _, kept in schedule.held(parts)
    ]
    assert moments == wanted
    assert max(map(len, wanted)) == {1: 3, 2: 5}[blocks]
    assert held() == set()


def test_a_decoder_is_done_behind_its_last_batch_of_each_size(fake_study, moments):
    run_study(fake_study("decoders=[fake_ar,fake_spec]"))
    both = {("ar", 1), ("spec", 1)}
    assert moments[:7] == [both] * 7, "timed in turns, so both are kept to the last prompt"
    assert moments[7] in ({("ar", 1)}, {("spec", 1)})
    # AR is decoded again under another seed, behind the other decoder.
    assert moments[8:] == [
        {("ar", 4)},
        {("ar", 4), ("ar", 2)},
        {("ar", 4), ("ar", 2), ("spec", 4)},
        {("ar", 4), ("ar", 2), ("spec", 2)},
        {("ar", 4), ("ar", 2)},
        {("ar", 2)},
    ]


def test_a_worker_holds_one_decoder_at_a_time(fake_study, moments):
    config = fake_study("quality.reseeds=0", "decoders=[fake_ar,fake_spec]", UNTIMED)
    run_shard(config, Shard(0, 1))
    assert moments == [{("ar", 4)}, {("ar", 2)}, {("spec", 4)}, {("spec", 2)}]
    assert held() == set()


def test_what_is_tried_again_image_by_image_is_dropped_too(fake_study):
    run_shard(fake_study(f"decoders=[fake_ar,{FAILING}]", UNTIMED), Shard(0, 1))
    assert ("spec", 1) in {(label, size) for label, size, _ in fakes.PREPARED}
    assert held() == set()


def test_a_decoder_that_is_not_tried_any_more_holds_nothing(fake_study, moments):
    slow = "{decoder: fake_spec, name: slow, overrides: ['loop.seconds=20', 'loop.label=slow']}"
    run_study(fake_study(f"decoders=[fake_ar,{slow}]", "time_limit=1", "quality.images=0"))
    assert ("slow", 1) in moments[0], "of the warm-up, which ran into the limit"
    assert not any(("slow", 1) in kept for kept in moments[LATE:])


class Cyclic:
    """A state that refers to itself, as one that a compiler has seen."""

    def __init__(self) -> None:
        self.own = self


def test_a_dropped_state_is_freed_though_it_refers_to_itself(fake_study, monkeypatch):
    generate, done = fakes.FakeLoop.generate, Lineup.done
    made, alive = [], []

    def recording(self, text, noise, *, pairs=0):
        found = generate(self, text, noise, pairs=pairs)
        size = len(found.codes)
        if not isinstance(self.prepared[size], Cyclic):
            self.prepared[size] = Cyclic()
            made.append(weakref.ref(self.prepared[size]))
        return found

    def watched(self, batch):
        done(self, batch)
        alive.append(sum(one() is not None for one in made))

    monkeypatch.setattr(fakes.FakeLoop, "generate", recording)
    monkeypatch.setattr(Lineup, "done", watched)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)  # what is dropped is freed though it was frozen
    try:
        run_study(fake_study("decoders=[fake_ar,fake_spec]"))
    finally:
        gc.freeze()  # the tests after this one collect little again
    assert alive[:8] == [2] * 6 + [1, 0], "made by the warm-up, whose objects are frozen"
    assert alive[-1] == 0 and len(made) == 6


SHAPE = Shape(vocab=10, width=4, layers=2, ffn=8, length=16, prefix=4, side=32)
AR, TREE = Load(1, 2), Load(1, 2, nodes=5, depth=2, session=4)
# By hand, of an image with guidance, in bfloat16. AR: 2 layers, keys and values, 2 rows, 21 slots.
AR_CACHE = 2 * 2 * 2 * 21 * 4 * 2
TREE_CACHE = 2 * 2 * 2 * 26 * 4 * 2 + 2 * 2 * 27 * 4 * 2  # the drafter has one layer
AR_PASSING = 2 * 10 * 2 + 4 * 4 * 10  # logits of 2 rows, and four float32 laws
TREE_RETURNED = 2 * 4 * 6 * 10  # p and q at 6 places
TREE_PASSING = 6 * AR_PASSING - TREE_RETURNED


def plan_of(config) -> Plan:
    calls = [
        Call(name, protocol, load)
        for name, load in (("fake_ar", AR), ("fake_spec", TREE))
        for protocol, load in (("latency", load), ("quality", dataclasses.replace(load, batch=4)))
    ]
    return Plan(config, SHAPE, None, [], calls, [])


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_plan_counts_what_is_held_at_the_same_time(fake_study, blocks):
    graph = ["backend.device=cuda", "backend.execution=graph", "backend.dtype=bfloat16"]
    words = f"latency.blocks={blocks}", "decoders=[fake_ar,fake_spec]"
    moments = plan_of(fake_study(*words, *graph)).fullest()
    latency, quality = moments["latency"], moments["quality"]
    timed = AR_CACHE + TREE_CACHE
    if blocks == 1:
        assert (latency.states, latency.caches) == (2, timed)
        assert latency.pool == TREE_PASSING + TREE_RETURNED
        assert latency.peak == latency.caches + latency.pool + CONTEXT
    # AR in batches of 4 and 2, to come again under another seed, and the first batch of the tree;
    # with a second latency block to come, what is timed there too.
    others = (0, 0, 0) if blocks == 1 else (2, timed, TREE_RETURNED)
    assert quality.call.decoder == "fake_spec" and quality.call.load.batch == 4
    assert quality.states == 3 + others[0]
    assert quality.caches == 6 * AR_CACHE + 4 * TREE_CACHE + others[1]
    assert quality.pool == 4 * (TREE_PASSING + TREE_RETURNED) + others[2]
    assert quality.peak == quality.caches + quality.pool + CONTEXT


def test_a_backend_that_records_nothing_holds_one_call(fake_study):
    plan = plan_of(fake_study("decoders=[fake_ar,fake_spec]"))
    moments = plan.fullest()
    assert {m.states for m in moments.values()} == {0}
    assert moments["latency"].peak == plan.memory(TREE)
    assert dataclasses.replace(plan, shape=None).fullest() == {}


def test_the_printed_plan_says_how_many_steps_are_recorded(capsys):
    few = ["study=lantern_table", "metric=none", "decoders=[ar,eagle2]", "quality.images=0"]
    assert cmd_plan([*few, "latency.prompts=3", "latency.blocks=1", "backend=cuda_graph"]) == 0
    assert "latency (batch 1): caches of 2 recorded steps 0." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ar", "lantern_pp"])
def test_the_counted_caches_are_those_that_are_made(name):
    """But for what their slots are rounded up to."""
    decoder = decoder_of(name)
    decoded(decoder, FIRST)
    run, cfg, tree = decoder.prepared[2].run, decoder.model.target.cfg, getattr(decoder, "tree", 0)
    made = run.cache.data.nbytes
    load = Load(2, 2)
    if tree:
        made += run.session.session.cache.data.nbytes
        load = Load(2, 2, tree.nodes, tree.depth, tree.session_nodes)
    slot = 2 * 4 * cfg.width * 4 * (cfg.layers + bool(tree))  # bytes of one, of all 4 rows
    assert abs(made - cache_bytes(Shape.of(cfg), load, 4)) < 8 * slot
