"""The README's operation is the file it names, and its commands are the Makefile's and the command line's."""

import re
from pathlib import Path

from typer.testing import CliRunner

from bulklane.operations.registry import load_registry
from bulklane.starter.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_operation_is_the_example() -> None:
    block = README.split("```python\n")[1].split("```")[0]
    assert block == (ROOT / "examples/accounts/operation.py").read_text()
    assert list(load_registry(["examples.accounts.operation"]).operations) == ["close_accounts"]


def test_every_make_target_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE)) <= targets
    assert {"demo", "up", "test", "check", "cases", "bench", "clean"} <= targets


def test_every_command_is_there() -> None:
    help_text = CliRunner().invoke(app, ["--help"]).output
    named = set(re.findall(r"(?:`|bin/|^)bulklane ([a-z]+)", README, re.MULTILINE)) | set(
        re.findall(r"also: ([a-z, ]+)", README)[0].split(", ")
    )
    assert {name for name in named if name not in help_text} == set()


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
