"""The real servers and the worker processes on one machine, for development, demo and tests."""

from bulklane.stack.opensearch import OpenSearchNode
from bulklane.stack.postgres import Postgres
from bulklane.stack.processes import ChildProcess, StackError, free_port
from bulklane.stack.record import Addresses, StackRecord
from bulklane.stack.stack import Stack
from bulklane.stack.temporal import TemporalServer, time_skipping_server_path

__all__ = [
    "Addresses",
    "ChildProcess",
    "OpenSearchNode",
    "Postgres",
    "Stack",
    "StackError",
    "StackRecord",
    "TemporalServer",
    "free_port",
    "time_skipping_server_path",
]
