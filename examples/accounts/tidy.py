"""Tidies the accounts' addresses: written as a function of one record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bulklane import Fail, FailureThreshold, PerRecord, Skip
from examples.accounts.operation import CloseAccounts, accounts


@dataclass(frozen=True)
class TidyParameters:
    """None are needed."""


class TidyAddresses(PerRecord):
    """The domain of an address in small letters."""

    name = "tidy_addresses"
    parameters = TidyParameters
    records = CloseAccounts.records
    writes = [accounts.c.email]  # what `change_record` may set
    failure_threshold = FailureThreshold(most_share=0.05)  # of at least 1,000 records seen

    def change_record(self, record: Mapping[str, Any], parameters: TidyParameters) -> Mapping[str, Any] | Skip | Fail:
        """New values, or why there are none. No I/O and no clock: it may be asked again about the same record."""
        name, at, domain = record["email"].rpartition("@")
        if not at:
            return Fail("no_address", "there is no @ in it")
        if domain == domain.lower():
            return Skip("tidy already")
        return {"email": f"{name}@{domain.lower()}"}


OPERATIONS = [TidyAddresses()]
