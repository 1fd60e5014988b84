"""Keeps the tests that carry a case of the public failure reports, and those marked slow: `pytest -p` loads it.

A plugin by name, so that each process of pytest-xdist has it; what a test stands for travels in its report.
"""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the others; note with each test that is kept what it stands for."""
    names = {item: _names_of(item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not names[item]])
    items[:] = [item for item in items if names[item]]
    for item in items:
        item.user_properties += [("case", name) for name in names[item]]


def _names_of(item: pytest.Item) -> list[str]:
    """The numbers of its cases; the file's name for a slow test without one."""
    if item.get_closest_marker("chaos"):
        return []
    cases = [str(number) for mark in item.iter_markers("case") for number in mark.args]
    if not cases and item.get_closest_marker("slow"):
        return [item.path.stem.removeprefix("test_")]
    return cases
