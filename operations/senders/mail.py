"""Mail over SMTP: one message per call, under a Message-ID that is the same for every attempt.

A mail server keeps no keys and can't be asked, so a channel of it has `keeps_keys=False`: what may have been accepted
is not sent again without a decision.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

import aiosmtplib
from aiosmtplib import errors

from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import OperationError
from bulklane.operations.sender import Answer, Call, Done, Held, Later, NoLookUp, Refused, Unknown
from bulklane.operations.senders.mail_message import BadMail, Mail, read_mail

QUIT_SECONDS = 2.0
_AUTHENTICATION_REQUIRED = 530
_TOO_LARGE = 552


@dataclass(frozen=True)
class SmtpMail:
    """How mail is sent. `sender`: the address in From, whose domain the Message-IDs have.

    The body of a `CallEffect` has the columns `to`, `subject` and `text`, and `date` where the mail is to have another
    than that of its sending. The endpoint's URL is `smtps://user@host:465` (TLS from the start), `smtp://user@host:587`
    (STARTTLS, required) or `smtp://host:25?tls=none` (a relay on this machine); its token is the password.
    `call_seconds`: until the recipient is taken, and again for the answer to the message; the channel's own is more
    than twice as long. `certificates`: a file with those to trust instead of the system's.
    """

    sender: str
    call_seconds: float = 15.0
    certificates: str | None = None

    def connect(self, endpoint: Endpoint, concurrency: int) -> "SmtpMailSender":
        """A sender that keeps up to so many connections. Raises OperationError for a URL that it can't read."""
        url = urlsplit(endpoint.url)
        plain = parse_qs(url.query).get("tls") == ["none"]
        if url.scheme not in ("smtp", "smtps") or not url.hostname or (plain and url.scheme == "smtps"):
            raise OperationError("a mail channel's URL is smtps://user@host:465, smtp://user@host:587 or ...?tls=none")
        if bool(url.username) != bool(endpoint.token) or url.password:
            raise OperationError("a mail channel's URL has the user, and its token the password: both or none")

        def client() -> aiosmtplib.SMTP:
            return _Connection(
                hostname=url.hostname,
                port=url.port,
                username=unquote(url.username) if url.username else None,
                password=endpoint.token,
                use_tls=url.scheme == "smtps",
                start_tls=url.scheme == "smtp" and not plain,
                cert_bundle=self.certificates,
                timeout=self.call_seconds,
            )

        return SmtpMailSender(self, client, concurrency)


class _Connection(aiosmtplib.SMTP):
    """One whose socket is closed with it: over TLS, the library's own waits up to 30 s for the server's goodbye."""

    def close(self) -> None:
        """Nothing is left to say: QUIT was answered, or the connection is of no more use."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        super().close()


class SmtpMailSender:
    """Sends through one server; never re-sends by itself what it may have taken."""

    def __init__(self, mail: SmtpMail, client: Callable[[], aiosmtplib.SMTP], most_idle: int) -> None:
        self._sender = mail.sender
        self._seconds = mail.call_seconds
        self._client = client
        self._most_idle = most_idle
        self._idle: list[aiosmtplib.SMTP] = []

    async def send(self, call: Call) -> Answer:
        """One message; what the server's answer, or the lack of one, says of it."""
        try:
            mail = read_mail(call, self._sender)
        except BadMail as error:
            return Refused("bad_mail", str(error))
        try:
            async with asyncio.timeout(self._seconds):
                connection = await self._addressed(mail)
        except (aiosmtplib.SMTPException, OSError) as error:
            return _before_data(error)
        try:
            await connection.data(mail.message)
        except (aiosmtplib.SMTPException, OSError) as error:
            connection.close()
            return _after_data(error, mail)
        except BaseException:
            connection.close()
            raise
        await self._keep(connection)
        return Done("250", mail.message_id)

    async def look_up(self, call: Call) -> Answer | None:
        """Nobody can be asked. Raises NoLookUp."""
        del call
        raise NoLookUp("a mail server can't be asked")

    async def close(self) -> None:
        """Take leave of the server."""
        while self._idle:
            await _leave(self._idle.pop())

    async def _addressed(self, mail: Mail) -> aiosmtplib.SMTP:
        """A connection that has taken sender and recipient."""
        while self._idle:
            # it may have ended while it was idle; nothing of this message was said on it
            with suppress(errors.SMTPServerDisconnected, errors.SMTPTimeoutError, OSError):
                return await self._address(self._idle.pop(), mail)
        connection = self._client()
        await connection.connect()
        return await self._address(connection, mail)

    async def _address(self, connection: aiosmtplib.SMTP, mail: Mail) -> aiosmtplib.SMTP:
        try:
            await connection.mail(self._sender)
            await connection.rcpt(mail.to)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _keep(self, connection: aiosmtplib.SMTP) -> None:
        if connection.is_connected and len(self._idle) < self._most_idle:
            self._idle.append(connection)
        else:
            await _leave(connection)


async def _leave(connection: aiosmtplib.SMTP) -> None:
    with suppress(aiosmtplib.SMTPException, OSError):
        await connection.quit(timeout=QUIT_SECONDS)
    connection.close()


def _before_data(error: Exception) -> Answer:
    """Nothing of the message was sent: what a failure means then (RFC 5321 section 4.2.1: 4 passes, 5 stays)."""
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return Held("the mail server's certificate or TLS can't be trusted: check the channel's URL and certificates")
    # the library has no class of its own for a server without STARTTLS
    if isinstance(error, errors.SMTPNotSupported) or type(error) is aiosmtplib.SMTPException:
        return Held("the mail server offers no STARTTLS or no login as the channel wants it: check the channel's URL")
    if not isinstance(error, errors.SMTPResponseException):
        return Later(reason=f"no connection: {type(error).__name__}")
    if error.code < 500:
        return Later(reason=f"the mail server answered {error.code}")
    if isinstance(error, errors.SMTPRecipientRefused) and error.code != _AUTHENTICATION_REQUIRED:
        return Refused(str(error.code), "the mail server refused the recipient")
    if isinstance(error, errors.SMTPSenderRefused) and error.code == _TOO_LARGE:
        return Refused(str(error.code), "the mail server refused the size")
    # login, sender, greeting: the channel's, and no record is to blame
    return Held(f"the mail server answered {error.code}: check the channel's credentials and sender")


def _after_data(error: Exception, mail: Mail) -> Answer:
    if isinstance(error, errors.SMTPResponseException):
        # 250 is no error after the message: it came to DATA itself, of which nothing was sent then
        if 250 < error.code < 300:
            return Done(str(error.code), mail.message_id)
        if 400 <= error.code < 500:
            return Later(reason=f"the mail server answered {error.code}")
        if 500 <= error.code < 600:
            return Refused(str(error.code), "the mail server refused the message")
    # a person who decides looks for this in the server's log
    return Unknown(f"no answer to the message {mail.message_id}: {type(error).__name__}")
