"""The lease model for some seconds; `make lease-model` runs it for 20,000 steps and looks for every mutant."""

from tests.database.model.run import explore, model_on


def test_interleavings_of_everything_that_touches_a_job(database_url: str) -> None:
    with model_on(database_url) as model:
        explore(model, number=1, examples=12)
        assert model.steps.total() > 300
