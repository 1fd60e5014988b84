"""The size of the next chunk."""

from bulklane.activities.chunk_size import ChunkSize


def test_it_grows_while_chunks_are_fast_and_shrinks_when_they_are_slow() -> None:
    size = ChunkSize(0.1, 1000)
    size.took(1000, 0.02)
    assert size.records == 2000
    size.took(2000, 0.4)
    assert size.records == 500


def test_a_slow_commit_never_makes_chunks_of_one_record() -> None:
    size = ChunkSize(0.1, 1000)
    for _ in range(50):
        size.took(size.records, 0.3)
    assert size.records == 100


def test_a_short_chunk_at_the_end_of_a_block_says_nothing() -> None:
    size = ChunkSize(0.1, 1000)
    size.took(7, 0.01)
    assert size.records == 1000


def test_a_remnant_of_a_block_is_taken_along_unless_a_record_is_suspected() -> None:
    size = ChunkSize(0.1, 4000)
    assert [size.of(ahead, deaths=0) for ahead in (5001, 5000, 4000, 3)] == [4000, 5000, 4000, 3]
    assert size.of(5000, deaths=1) == 833
    size.halve(8)
    assert [size.of(ahead, deaths=0) for ahead in (6, 5)] == [4, 5]
    size.bisect(4)
    assert [size.of(ahead, deaths=0) for ahead in (3, 2, 1)] == [2, 2, 1]


def test_halving_goes_down_to_one_and_it_grows_back_by_twos() -> None:
    size = ChunkSize(0.1, 1000)
    for _ in range(12):
        size.halve(size.records)
    assert size.records == 1
    sizes = []
    for _ in range(4):
        size.took(size.records, 0.01)
        sizes.append(size.records)
    assert sizes == [2, 4, 8, 16]


def test_after_five_deaths_the_record_stands_alone() -> None:
    size = ChunkSize(0.1, 5000)
    assert [size.after(deaths) for deaths in range(7)] == [5000, 833, 138, 23, 3, 1, 1]


def test_a_bad_record_is_narrowed_down_and_the_size_grows_back_fast() -> None:
    size = ChunkSize(0.1, 1000)
    sizes: list[int] = []
    bad, at = 400, 0
    while True:
        taken = 1000 if not sizes else size.after(0)
        sizes.append(taken)
        if at <= bad < at + taken:
            if taken == 1:
                break
            size.bisect(taken)
        else:
            size.took(taken, 0.01)
            at += taken
    assert sizes == [1000, 500, 250, 125, 63, 32, 16, 8, 4, 2, 1, 1]
    size.found()
    for _ in range(6):
        sizes.append(size.after(0))
        size.took(size.after(0), 0.01)
    assert sizes[12:] == [1, 4, 16, 64, 256, 1024]
    assert size.records == 2048


def test_suspects_that_turn_out_good_leave_the_size_as_it_was() -> None:
    size = ChunkSize(0.1, 1000)
    size.bisect(8)
    for taken in (4, 2, 1, 1):
        assert size.after(0) == taken
        size.took(taken, 0.01)
    assert size.after(0) == 1000
