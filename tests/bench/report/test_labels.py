"""Names beside the points of a chart: clear of each other, inside it, or left out."""

from __future__ import annotations

from bench.report.page.labels import LETTER, placed

SIZE = (400.0, 300.0)


def left_edges(points: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Where each placed name begins, in pixels, for points in pixels from the left."""
    found = placed(points, [0, 400], [0, 300], SIZE)
    part = {"left": 0.0, "center": 0.5, "right": 1.0}
    return {
        name: points[name][0] + spot["dx"] - part[spot["align"]] * LETTER * len(name)
        for name, spot in found.items()
    }


def test_a_lone_name_is_to_the_right_and_above() -> None:
    assert placed({"ar": (1.0, 1.0)}, [0, 2], [0, 2], SIZE) == {
        "ar": {"align": "left", "dx": 8, "dy": -8}
    }


def test_a_name_at_the_right_edge_turns_to_the_left() -> None:
    found = placed({"lantern": (2.0, 1.0)}, [0, 2], [0, 2], SIZE)
    assert found["lantern"]["align"] == "right"


def test_neighbours_take_different_sides() -> None:
    found = placed({"lantern": (200, 150), "eagle": (204, 152)}, [0, 400], [0, 300], SIZE)
    assert len(found) == 2 and found["lantern"] != found["eagle"]


def test_names_without_room_are_left_out_and_the_first_come_first() -> None:
    crowd = {f"decoder_{n:02d}": (200.0 + n / 10, 150.0) for n in range(40)}
    found = left_edges(crowd)
    assert "decoder_00" in found and 0 < len(found) < 40
    assert min(found.values()) >= -6


def test_equal_values_do_not_divide_by_zero() -> None:
    assert placed({"ar": (0.0, 1.0)}, [0.0], [1.0], SIZE)["ar"]["align"] == "left"
