"""Closes accounts, and tells the mailing provider of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, Table, Text, Update, Uuid, update

from bulklane import CallEffect, Channel, Done, HttpProvider, Operation, Records

accounts = Table(
    "account",
    MetaData(),
    Column("account_id", Uuid, primary_key=True),
    Column("company", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("email", Text, nullable=False),
    Column("row_version", BigInteger, nullable=False, server_default="1"),
)


@dataclass(frozen=True)
class CloseParameters:
    """Why the accounts are closed; one of the company's own words."""

    reason: str


class CloseAccounts(Operation):
    """Which rows, which change, which effects: the rest is Bulklane's."""

    name = "close_accounts"
    parameters = CloseParameters
    records = Records(
        table=accounts,
        key=[accounts.c.account_id],
        tenant=accounts.c.company,
        row_version=accounts.c.row_version,
    )
    fields = {"state": accounts.c.state}  # what a filter may name
    effects = [CallEffect("farewell", channel="mailing", body={"to": accounts.c.email})]

    def change(self, parameters: CloseParameters) -> Update:
        """One statement over all of `accounts`; Bulklane narrows it to a chunk and to the tenant."""
        return update(accounts).values(state="closed")


def accepted(status: int, body: Mapping[str, Any]) -> Done | None:
    """The provider says in its body that it took the message; a 200 alone is no success."""
    return Done() if status == 202 and body.get("accepted") is True else None


OPERATIONS = [CloseAccounts()]
CHANNELS = [Channel("mailing", HttpProvider(path="/messages", judge=accepted))]
