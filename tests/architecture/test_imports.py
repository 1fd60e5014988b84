"""The arrows between the rooms hold, and workflow code loads neither database drivers nor clients."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("sqlalchemy", "psycopg", "httpx", "pydantic", "opensearchpy", "aiohttp", "fastapi", "typer", "structlog")


def test_the_arrows_between_the_rooms_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize("module", ["bulklane.workflows.bulk_job", "bulklane.workflows.deliver_owed"])
def test_workflow_code_loads_no_driver_and_no_client(module: str) -> None:
    program = (
        f"import sys, temporalio.workflow; before = set(sys.modules); import {module};"
        " print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "bulklane" in loaded, done.stderr
    assert not loaded & set(HEAVY)


def test_workflow_code_loads_no_other_room_than_contracts() -> None:
    program = "import sys, bulklane.workflows.bulk_job, bulklane.workflows.deliver_owed; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    rooms = {name.split(".")[1] for name in done.stdout.split() if name.startswith("bulklane.")}
    assert rooms == {"contracts", "workflows"}, done.stderr
