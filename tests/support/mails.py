"""A real mail server (aiosmtpd) that takes, refuses, hangs or drops as it is told."""

import asyncio
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from bulklane.stack import free_port

HANG, DROP = "hang", "drop"


@dataclass
class Mailbox:
    """What the server has taken, and how it answers: by recipient at RCPT, and after the message.

    HANG and DROP take the message and don't answer. `sender`: the answer to MAIL.
    """

    at_recipient: dict[str, str] = field(default_factory=dict)
    after_message: dict[str, str] = field(default_factory=dict)
    sender: str = "250 OK"
    taken: list[EmailMessage] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)
    url: str = ""

    async def handle_MAIL(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """The sender."""
        envelope.mail_from = address
        if session.peer not in self.connections:
            self.connections.append(session.peer)
        return self.sender

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """A recipient."""
        envelope.rcpt_tos.append(address)
        return self.at_recipient.get(address, "250 OK")

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        """The message."""
        answer = self.after_message.get(envelope.rcpt_tos[0], "250 OK")
        assert isinstance(envelope.content, bytes)
        if answer in (HANG, DROP) or answer.startswith("250"):
            message = message_from_bytes(envelope.content, policy=policy.default)
            assert isinstance(message, EmailMessage)
            self.taken.append(message)
        if answer == HANG:
            await asyncio.sleep(30)
        if answer == DROP:
            assert isinstance(server.transport, asyncio.Transport)
            server.transport.abort()
        return answer

    @property
    def ids(self) -> Counter[str]:
        """How often each Message-ID was taken."""
        return Counter(str(message["Message-ID"]) for message in self.taken)

    @property
    def recipients(self) -> list[str]:
        """To whom, in the order of arrival."""
        return [str(message["To"]) for message in self.taken]


@contextmanager
def mail_server(**options: Any) -> Iterator[Mailbox]:
    """A running server. `options` are those of aiosmtpd."""
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        mailbox.url = f"smtp://127.0.0.1:{controller.port}?tls=none"
        yield mailbox
    finally:
        controller.stop()


@contextmanager
def impolite_mail_server(context: ssl.SSLContext) -> Iterator[tuple[str, threading.Event]]:
    """A server for one connection that answers QUIT and never ends its TLS; the event: the client closed its socket."""
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=_serve_one, args=(listening, context, left))
        serving.start()
        yield f"smtps://127.0.0.1:{listening.getsockname()[1]}", left
        serving.join(10)


def _serve_one(listening: socket.socket, context: ssl.SSLContext, left: threading.Event) -> None:
    with context.wrap_socket(listening.accept()[0], server_side=True, suppress_ragged_eofs=False) as connection:
        connection.sendall(b"220 ready\r\n")
        told = {b"DATA": b"354 go on\r\n", b"QUIT": b"221 bye\r\n"}
        said, lines = b"", iter(connection.makefile("rb"))
        while said != b"QUIT":
            said = next(lines)[:4].strip()
            connection.sendall(told.get(said, b"250 OK\r\n"))
            while said == b"DATA" and next(lines) != b".\r\n":
                pass
            if said == b"DATA":
                connection.sendall(b"250 OK\r\n")
        with suppress(ConnectionResetError), socket.socket(fileno=connection.detach()) as plain:
            plain.settimeout(10)
            while plain.recv(1000):
                pass
        left.set()


def only(user: str, password: str) -> Any:
    """An authenticator that takes one user."""

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        right = (data.login, data.password) == (user.encode(), password.encode())
        return AuthResult(success=right, handled=False)

    return check
