"""Bulklane: bulk operations over database records, on Temporal.

The names are loaded when they are first used: workflow code is loaded through this package too, and again for each
workflow, and must not load a database driver with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bulklane.contracts.limit import Limits
    from bulklane.database.accept import Conflict, JobIdReused
    from bulklane.database.job import JobUnknown
    from bulklane.operations.channel import Channel, Endpoint
    from bulklane.operations.failure_threshold import FailureThreshold
    from bulklane.operations.operation import CallEffect, IndexEffect, Operation, OperationError, Records
    from bulklane.operations.per_record import Fail, PerRecord, Skip
    from bulklane.contracts.message import Decision, Verdict
    from bulklane.operations.conformance.check import check_channel
    from bulklane.operations.conformance.finding import Finding
    from bulklane.operations.conformance.sample import HttpSample, MailSample
    from bulklane.operations.conformance.scripted_http import Reply
    from bulklane.operations.request import InvalidRequest
    from bulklane.operations.sender import Done, Held, Later, Refused, Unknown
    from bulklane.operations.senders.http_provider import HttpProvider
    from bulklane.operations.senders.mail import SmtpMail
    from bulklane.operations.senders.search_index import SearchIndex
    from bulklane.starter.channels import ChannelStatus, ChannelUnknown
    from bulklane.starter.client import Client, Submission
    from bulklane.starter.preview import Preview, PreviewUnable
    from bulklane.starter.status import JobStatus

_HOMES = {
    "contracts.limit": ("Limits",),
    "database.accept": ("Conflict", "JobIdReused"),
    "database.job": ("JobUnknown",),
    "operations.channel": ("Channel", "Endpoint"),
    "operations.failure_threshold": ("FailureThreshold",),
    "operations.operation": ("CallEffect", "IndexEffect", "Operation", "OperationError", "Records"),
    "operations.per_record": ("Fail", "PerRecord", "Skip"),
    "contracts.message": ("Decision", "Verdict"),
    "operations.conformance.check": ("check_channel",),
    "operations.conformance.finding": ("Finding",),
    "operations.conformance.sample": ("HttpSample", "MailSample"),
    "operations.conformance.scripted_http": ("Reply",),
    "operations.request": ("InvalidRequest",),
    "operations.sender": ("Done", "Held", "Later", "Refused", "Unknown"),
    "operations.senders.http_provider": ("HttpProvider",),
    "operations.senders.mail": ("SmtpMail",),
    "operations.senders.search_index": ("SearchIndex",),
    "starter.channels": ("ChannelStatus", "ChannelUnknown"),
    "starter.client": ("Client", "Submission"),
    "starter.preview": ("Preview", "PreviewUnable"),
    "starter.status": ("JobStatus",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CallEffect",
    "Channel",
    "ChannelStatus",
    "ChannelUnknown",
    "Client",
    "Conflict",
    "Decision",
    "Done",
    "Endpoint",
    "Fail",
    "FailureThreshold",
    "Finding",
    "Held",
    "HttpProvider",
    "HttpSample",
    "IndexEffect",
    "InvalidRequest",
    "JobIdReused",
    "JobStatus",
    "JobUnknown",
    "Later",
    "Limits",
    "MailSample",
    "Operation",
    "OperationError",
    "PerRecord",
    "Preview",
    "PreviewUnable",
    "Records",
    "Refused",
    "Reply",
    "SearchIndex",
    "Skip",
    "SmtpMail",
    "Submission",
    "Unknown",
    "Verdict",
    "check_channel",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"bulklane has no {name!r}")
    return getattr(import_module(f"bulklane.{home}"), name)
