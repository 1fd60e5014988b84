"""The accounts example on one machine: its table with a few accounts, and a stand-in for the mailing provider."""

import sys
from pathlib import Path
from uuid import UUID

from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql import insert

from bulklane.operations.development import Development, DevelopmentService
from examples.accounts.operation import CHANNELS, accounts
from examples.accounts.operation import OPERATIONS as STATEMENTS
from examples.accounts.tidy import OPERATIONS as PER_RECORD

ACCOUNTS = [
    {"account_id": UUID(int=1), "company": "acme", "state": "dormant", "email": "ann@Example.COM"},
    {"account_id": UUID(int=2), "company": "acme", "state": "dormant", "email": "bo@example.com"},
    {"account_id": UUID(int=3), "company": "acme", "state": "open", "email": "cy.example.com"},
    {"account_id": UUID(int=4), "company": "other", "state": "dormant", "email": "di@example.com"},
]


def prepare(database_url: str, _search_url: str) -> None:
    """Make the table and its accounts; again it does nothing."""
    engine = create_engine(database_url)
    accounts.create(engine, checkfirst=True)
    with engine.begin() as connection:
        connection.execute(insert(accounts).on_conflict_do_nothing(), ACCOUNTS)
    engine.dispose()


def mailing_command(port: int, _folder: Path) -> list[str]:
    """The mailing provider."""
    return [sys.executable, "-m", "examples.accounts.mailing", "--port", str(port)]


DEVELOPMENT = Development(prepare=prepare, services=[DevelopmentService("mailing", "mailing", mailing_command)])
OPERATIONS = [*STATEMENTS, *PER_RECORD]
__all__ = ["CHANNELS", "DEVELOPMENT", "OPERATIONS"]
