"""The operations of the README on the accounts that it starts with."""

from sqlalchemy import Engine

from bulklane.operations.registry import load_registry
from bulklane.starter.install import install
from examples.accounts.development import prepare
from tests.database.jobs import accepted, opened, rows, walk

REGISTRY = load_registry(["examples.accounts.development"])


def ready(engine: Engine) -> None:
    """The accounts, made twice, and the trigger."""
    for _ in range(2):
        prepare(engine.url.render_as_string(hide_password=False), "")
    assert install(engine, REGISTRY) == ["account"]


def test_the_tenants_dormant_accounts_are_closed_and_told(engine: Engine) -> None:
    ready(engine)
    selection = {"filter": {"field": "state", "op": "=", "value": "dormant"}}
    job = accepted(engine, registry=REGISTRY, selection=selection, parameters={"reason": "dormant"})
    walk(engine, opened(engine, job), registry=REGISTRY)
    states = rows(engine, "SELECT company, state, row_version FROM account ORDER BY account_id")
    assert states == [("acme", "closed", 2), ("acme", "closed", 2), ("acme", "open", 1), ("other", "dormant", 1)]
    assert rows(engine, "SELECT channel, sum(size)::int FROM bulklane.owed GROUP BY channel") == [("mailing", 2)]


def test_addresses_are_tidied_skipped_or_fail(engine: Engine) -> None:
    ready(engine)
    job = accepted(engine, registry=REGISTRY, operation="tidy_addresses", parameters={})
    walk(engine, opened(engine, job), registry=REGISTRY)
    addresses = rows(engine, "SELECT email FROM account WHERE company = 'acme' ORDER BY account_id")
    assert addresses == [("ann@example.com",), ("bo@example.com",), ("cy.example.com",)]
    outcomes = rows(engine, "SELECT kind, reason FROM bulklane.outcome ORDER BY key")
    assert outcomes == [("skipped", "tidy already"), ("failed", "there is no @ in it")]
