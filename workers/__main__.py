"""`python -m bulklane.workers ROLE`: one worker process. Roles: small, bulk, control, effects:CHANNEL."""

import asyncio
import sys
from typing import Annotated

import typer
from pydantic import ValidationError

from bulklane.contracts.timing import TimingError
from bulklane.database.engine import DatabaseUnfit
from bulklane.operations.operation import OperationError
from bulklane.workers.roles import UnknownRole, role_of
from bulklane.workers.run import serve
from bulklane.workers.settings import WorkerSettings


def main(role: Annotated[str, typer.Argument(help="small, bulk, control or effects:CHANNEL")]) -> None:
    """Serve one role until SIGTERM; settings come from the environment."""
    try:
        asyncio.run(serve(role_of(role), WorkerSettings()))
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            name = "__".join(str(part).upper() for part in problem["loc"])
            typer.echo(f"BULKLANE_{name}: {problem['msg']}", err=True)
        sys.exit(2)
    except (DatabaseUnfit, OperationError, TimingError, UnknownRole) as error:
        typer.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    typer.run(main)
