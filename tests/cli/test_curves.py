import math

import pytest

from cloudrl.cli._curves import braille, number, panel


def test_a_line_that_rises_from_corner_to_corner():
    assert braille([(0, 0.0), (1, 1.0)], 2, 1) == ["⡠⠊"]
    assert braille([(0, 0.0), (1, 1.0)], 4, 2) == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]


def test_what_is_no_number_is_a_gap():
    points = [(0, 0.0), (1, math.nan), (2, 0.0), (3, math.inf)]
    assert braille(points, 2, 1) == ["⠂⠂"]


@pytest.mark.parametrize("points", [[(5, 0.3)], [(1, 2.0), (2, 2.0)]])
def test_what_does_not_change_lies_in_the_middle(points: list[tuple[int, float]]):
    [line] = braille(points, 3, 1)
    assert len(line) == 3
    assert set(line) - {"⠀"} <= {"⠂", "⠒", "⠐"}


@pytest.mark.parametrize("points", [[], [(1, math.nan)]])
def test_nothing_to_draw(points: list[tuple[int, float]]):
    assert braille(points, 10, 2) == ["", ""]
    assert panel("reward", points, 30, 5) == ["reward", "        no value yet", "", "", ""]


def test_more_points_than_dots_show_the_whole_range():
    points = [(step, float(step % 2)) for step in range(1000)]
    assert braille(points, 3, 1) == ["⣿⣿⣿"]


def test_a_panel_has_bounds_and_the_last_value():
    lines = panel("critic/score/mean", [(10, 0.25), (20, 1.5), (30, -2.0)], 30, 5)

    assert lines[0] == "critic/score/mean -2"
    assert [line[:8].strip() for line in lines[1:-1]] == ["1.5", "", "-2"]
    assert lines[-1] == "         step 10            30"
    assert {len(line) for line in lines[1:]} == {30}


def test_a_title_that_is_too_long_leaves_room_for_the_value():
    assert panel("a" * 50, [(1, 0.5)], 30, 5)[0] == "a" * 26 + " 0.5"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.12345, "0.1235"), (-0.5, "-0.5"), (12.0, "12"), (1234.5, "1234"), (0.00001, "1.0e-05"),
        (-1234567.0, "-1.2e+06"), (-1e100, "-1e+100"), (-1e-100, "-1e-100"),
    ],
)  # fmt: skip
def test_numbers_fit_their_column(value: float, text: str):
    assert number(value) == text
    assert len(text) <= 8


def test_a_level_line_has_its_value_once_beside_it():
    lines = panel("entropy", [(1, 0.5), (2, 0.5)], 30, 7)
    assert [line[:8].strip() for line in lines[1:-1]] == ["", "", "0.5", "", ""]
    assert any(ord(letter) > 0x2800 for letter in lines[3])
