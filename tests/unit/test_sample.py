"""A sample of ids is spread over them."""

import pytest

from bulklane.database.sample import spread


@pytest.mark.parametrize(
    ("number", "count", "places"),
    [(0, 10, []), (1, 10, [0]), (3, 3, [0, 1, 2]), (3, 100, [0, 1, 2]), (10, 1, [5]), (100, 4, [12, 37, 62, 87])],
)
def test_evenly_spaced_and_each_once(number: int, count: int, places: list[int]) -> None:
    assert spread([(place,) for place in range(number)], count) == [(place,) for place in places]


@pytest.mark.parametrize("number", [1, 7, 99, 1_000_003])
def test_no_key_comes_twice(number: int) -> None:
    picked = spread([(place,) for place in range(number)], 100)
    assert len(set(picked)) == len(picked) == min(100, number)
    assert picked == sorted(picked)
