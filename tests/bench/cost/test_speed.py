"""The speed model's arithmetic: acceptance of trees that were not run, steps of an image, the
frontier. Checked against enumeration and simulation."""

import random

import pytest

from bench.cost.speed import (
    SpeedError,
    StepSeconds,
    chain_depth,
    codes_a_step,
    expected_steps,
    front,
    predict,
    reach,
    shallower,
)
from decoders.propose.trees.chain import Chain
from decoders.propose.trees.dynamic import Dynamic
from decoders.propose.trees.static import Static


def test_reach_leaves_out_the_step_that_the_images_end_cut() -> None:
    reached = reach([[2, 0, 1, 0, -1], [1, 2, 0]], depth=3)
    assert reached == (4 / 5, 2 / 5, 0.0)
    assert codes_a_step(reached) == pytest.approx(2.2)
    with pytest.raises(SpeedError, match="accepted 2 drafts in a tree of 1"):
        reach([[2, 0]], depth=1)
    with pytest.raises(SpeedError, match="no steps"):
        reach([[2], []], depth=3)


def test_a_shallower_chain_is_the_first_levels_of_a_deeper_one() -> None:
    assert shallower((0.8, 0.4, 0.1), 2) == (0.8, 0.4)
    with pytest.raises(SpeedError, match="recorded to depth 3, the tree has 4 levels"):
        shallower((0.8, 0.4, 0.1), 4)
    deep, wide = Chain(depth=3), Static(choices="binary_8")
    assert [chain_depth(t) for t in (deep, wide, Dynamic(depth=2, top_k=1, nodes=2))] == [3, 0, 0]


@pytest.mark.parametrize("batch", [1, 5])
def test_steps_of_an_image_agree_with_simulated_images(batch: int) -> None:
    reached, length, dice = (0.7, 0.4, 0.35), 40, random.Random(0)
    steps = []
    for _ in range(6000):
        slowest = 0
        for _ in range(batch):
            done = count = 0
            while done < length:
                u = dice.random()
                done += 1 + sum(u < r for r in reached)
                count += 1
            slowest = max(slowest, count)
        steps.append(slowest)
    assert expected_steps(length, reached, batch) == pytest.approx(sum(steps) / 6000, rel=0.01)


def test_steps_in_cases_that_can_be_counted() -> None:
    assert expected_steps(255, ()) == pytest.approx(255)  # AR
    assert expected_steps(10, (1.0, 1.0)) == pytest.approx(4)  # 3 + 3 + 3 + 1, cut by the end
    assert expected_steps(0, (0.5,)) == 0


def test_the_speed_up_is_that_of_an_image_with_its_prefill() -> None:
    step = StepSeconds(prefill=3.5, step=2.0)
    made = predict(StepSeconds(3.0, 1.0), step, (1.0, 1.0, 1.0), length=257)
    assert made.codes == 4 and made.steps == pytest.approx(64)
    assert made.seconds == pytest.approx(3.5 + 64 * 2.0)
    assert made.speedup == pytest.approx((3.0 + 256) / 131.5)
    long = predict(StepSeconds(0, 1.0), StepSeconds(0.0, 2.0), (1.0,) * 3, length=40001)
    assert long.speedup == pytest.approx(4 * 1.0 / 2.0, rel=1e-3)  # MAL x t_AR / t_step


def test_a_batch_waits_for_its_slowest_row() -> None:
    baseline, step, reached = StepSeconds(0.0, 1.0), StepSeconds(0.0, 1.0), (0.6, 0.3)
    alone = predict(baseline, step, reached, length=65)
    many = predict(baseline, step, reached, length=65, batch=16)
    assert many.steps > alone.steps + 1 and many.speedup < alone.speedup
    assert many.codes == alone.codes


def test_the_front_keeps_what_nothing_beats() -> None:
    points = [(0.0, 1.0), (0.0, 1.2), (0.1, 1.1), (0.2, 2.0), (0.3, 2.0), (0.2, 1.9), (0.0, 1.2)]
    assert front(points) == [1, 3]
    assert front([]) == []
