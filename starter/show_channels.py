"""What the command line shows of channels."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bulklane.contracts.limit import Limits
from bulklane.starter.channels import ChannelStatus
from bulklane.starter.shown import shown


def channels_json(channels: Sequence[ChannelStatus]) -> str:
    """One line of JSON; times in ISO 8601 with their offset."""
    return json.dumps([asdict(one) for one in channels], default=_plain, ensure_ascii=False)


def print_channels(console: Console, channels: Sequence[ChannelStatus]) -> None:
    """A table, a line for each channel."""
    table = Table()
    for heading in ("channel", "owed", "limits", "standing"):
        table.add_column(heading)
    for one in channels:
        standing = Text(shown(_standing(one)), "bold red" if one.held_since else "")
        table.add_row(Text(shown(one.name)), Text(f"{one.owed:,}"), Text(_limits(one.limits)), standing)
    console.print(table)


def _standing(channel: ChannelStatus) -> str:
    if channel.held_since is not None:
        tried = f"; one call is tried at {_at(channel.probe_at)}" if channel.probe_at else ""
        return f"held since {_at(channel.held_since)}: {channel.held_why}{tried}"
    return "; ".join(
        f"blocked until {_at(until)}{f' for {tenant}' if tenant else ''}" for tenant, until in channel.blocked.items()
    )


def _limits(limits: Limits | None) -> str:
    if limits is None:
        return "not known here"
    parts = {
        "{:g}/s": limits.rate,
        "{} at once": limits.concurrency,
        "{:g}/s a tenant": limits.tenant_rate,
        "{} at once a tenant": limits.tenant_concurrency,
    }
    return ", ".join(form.format(value) for form, value in parts.items() if value is not None) or "none"


def _at(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
