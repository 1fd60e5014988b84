"""All worker processes of a stack from one that has imported everything: killed and replaced in a moment.

`python -m tests.support.nursery`, with a JSON object on standard input: by name, role and environment. Each further
line kills them all with SIGKILL, and starts them again; the end of the input kills them and ends.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bulklane.starter.local import LocalStack


class Nursery:
    """The processes of a stack's workers."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def again(self) -> None:
        """kill -9 all of them, and start them anew."""
        assert self._process.stdin is not None
        self._process.stdin.write("again\n")
        self._process.stdin.flush()


@contextmanager
def nursery(local: LocalStack) -> Iterator[Nursery]:
    """Run the workers of a stack that runs none of its own."""
    wanted = {name: [role, local._environment_of(name, role)] for name, role in local.workers().items()}
    with (local.stack.folder / "nursery.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(wanted) + "\n")
            process.stdin.flush()
            yield Nursery(process)
        finally:
            process.stdin.close()
            process.wait(20)


def _fork(role: str, environment: Mapping[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    # the child: never comes back
    os.close(0)
    os.environ.clear()
    os.environ.update(environment)
    from bulklane.workers.__main__ import main

    try:
        main(role)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _serve() -> None:
    wanted = json.loads(sys.stdin.readline())
    os.environ.update(next(iter(wanted.values()))[1])
    sys.path.insert(0, str(Path.cwd()))
    # what takes the time of a start
    __import__("bulklane.workers.__main__")
    for module in os.environ["BULKLANE_OPERATIONS"].split(","):
        __import__(module)
    while True:
        children = [_fork(role, environment) for role, environment in wanted.values()]
        line = sys.stdin.readline()
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not line:
            return


if __name__ == "__main__":
    _serve()
