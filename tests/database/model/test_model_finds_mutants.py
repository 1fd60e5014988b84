"""The model can fail: it finds each thing that may go wrong in the product within a bounded number of steps."""

from collections.abc import Iterator

import pytest

from tests.database.model.machine import LeaseModel
from tests.database.model.mutants import MUTANTS
from tests.database.model.run import finds, model_on
from tests.support.databases import fresh_database

# `make lease-model` looks for each of them; one shows here that the model can fail
QUICK = ("acceptance without lease",)


@pytest.fixture(scope="module")
def model(server_url: str) -> Iterator[type[LeaseModel]]:
    """One database for all of them."""
    with fresh_database(server_url) as url, model_on(url) as made:
        yield made


@pytest.mark.parametrize("mutant", QUICK)
def test_model_finds_mutant(model: type[LeaseModel], mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finds(model, MUTANTS[mutant], monkeypatch)
    assert found is not None, "not found"
