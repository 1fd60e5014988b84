"""Which file a process of the test run takes next."""

from tests.support.by_stack import next_file, stack_of_file

OWN, OTHER, NEEDS_NONE = "tests/acceptance/walk/test_a.py", "tests/acceptance/limits/test_b.py", "tests/unit/test_c.py"
FLIGHTS, OWNERSHIP = "tests/acceptance/test_d.py", "tests/acceptance/ownership/test_e.py"
ALL = [NEEDS_NONE, OTHER, FLIGHTS, OWN, OWNERSHIP]


def test_a_file_uses_the_stack_of_its_folder() -> None:
    stacks = [stack_of_file(path) for path in (OWN, FLIGHTS, NEEDS_NONE)]
    assert stacks == ["tests/acceptance/walk", "tests/acceptance", None]


def test_a_process_stays_with_its_stack_and_starts_one_that_another_has_only_in_the_end() -> None:
    own = "tests/acceptance/walk"
    taken = {own, "tests/acceptance/ownership"}
    files, order = list(ALL), []
    while files:
        order.append(next_file(files, own, taken))
        files.remove(order[-1])
    assert order == [OWN, FLIGHTS, OTHER, NEEDS_NONE, OWNERSHIP]


def test_the_stack_with_most_to_do_is_begun_first() -> None:
    assert next_file(ALL, None, set()) == OWNERSHIP
