"""The speed model's arithmetic: acceptance of trees that were not run, steps of an image, the
frontier. Checked against enumeration and simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bench.cost.speed import (
    SpeedError,
    StepCosts,
    StepSeconds,
    codes_a_step,
    conditional,
    expected_steps,
    front,
    predict,
    reach,
    shallower,
    step_seconds,
    tree_reach,
)


def test_reach_leaves_out_the_step_that_the_images_end_cut() -> None:
    reached = reach([[2, 0, 1, 0, -1], [1, 2, 0]], depth=3)
    assert reached == (4 / 5, 2 / 5, 0.0)
    assert conditional(reached) == (4 / 5, 1 / 2, 0.0)
    assert codes_a_step(reached) == pytest.approx(2.2)
    with pytest.raises(SpeedError, match="accepted 2 drafts in a tree of 1"):
        reach([[2, 0]], depth=1)
    with pytest.raises(SpeedError, match="no steps"):
        reach([[2], []], depth=3)


def test_a_chain_is_a_tree_of_first_children_and_a_shallower_one_its_first_levels() -> None:
    reached, chain = (0.8, 0.4, 0.1), ((0,), (0, 0), (0, 0, 0))
    assert tree_reach(chain, reached, (0.2, 0.1)) == pytest.approx(reached)
    assert shallower(reached, 2) == (0.8, 0.4)
    with pytest.raises(SpeedError, match="recorded to depth 3, the tree has 4 levels"):
        shallower(reached, 4)


def walked(paths: Sequence[tuple[int, ...]], rates: Sequence[Sequence[float]], seed: int) -> float:
    """Mean drafts accepted when children are tested in order: rates[depth][rank]."""
    dice, known, total, rounds = random.Random(seed), set(paths), 0, 40000
    for _ in range(rounds):
        node: tuple[int, ...] = ()
        while True:
            ranks = [r for r in range(8) if (*node, r) in known]
            taken = next((r for r in ranks if dice.random() < rates[len(node)][r]), None)
            if taken is None:
                break
            node = (*node, taken)
        total += len(node)
    return total / rounds


def test_a_tree_with_siblings_accepts_what_testing_its_children_in_order_would() -> None:
    paths = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0))
    first, second, third = [0.5, 0.6, 0.7], 0.4, 0.25  # later siblings fare alike at all depths
    chain = (0.5, 0.5 * 0.6, 0.5 * 0.6 * 0.7)
    survival = tuple(0.3 * f for f in (1.0, 1 - second, (1 - second) * (1 - third)))
    rates = [[c, second, third] for c in first]
    assert sum(tree_reach(paths, chain, survival)) == pytest.approx(walked(paths, rates, 1), 0.02)
    with pytest.raises(SpeedError, match="siblings were recorded to rank 2, the tree has 3"):
        tree_reach(paths, chain, survival[:2])


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
    costs = StepCosts(1.0, 3.0, 0.5, draft={"a": 0.85, "b": 9}, forward={"a": 1.8, "b": 9})
    step = step_seconds(costs, "a", accept=0.15)
    assert (step.draft, step.forward, step.accept) == (0.85, 1.8, 0.15)
    assert step.step == pytest.approx(0.85 + 1.8 + 0.15)
    assert step.prefill == 3.5


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
