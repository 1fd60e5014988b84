"""Texts that must agree with the code, and what no file may contain."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bulklane.contracts.job import ALLOWED_TRANSITIONS, JobState
from bulklane.contracts.message import Verb

ROOT = Path(__file__).resolve().parents[2]
LIFECYCLE = (ROOT / "docs/job-lifecycle.md").read_text()
REQUIREMENTS = sorted((ROOT / "requirements").iterdir())
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))

# Where packages come from is the matter of the machine that installs them: a file that says so would pin a mirror, or
# give away an address inside somebody's network.
REGISTRY = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host"
    r"|\b(?:PIP|UV)_(?:EXTRA_|DEFAULT_)?INDEX(?:_URL)?\b"
    r"|https?://[^\s\"'`)]*(?:/simple\b|pypi\.org|pythonhosted|maven2|repo1?\.maven|registry|artifactory|nexus|devpi)",
    re.IGNORECASE,
)


def rows(title: str) -> Iterator[list[str]]:
    """The cells of the first table under a heading of the page, without its head."""
    section = LIFECYCLE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def files_in_git() -> list[Path]:
    """Those that are committed, and those that would be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split("\0")
    return [path for name in listed if name and (path := ROOT / name).is_file()]


def test_the_page_has_every_arrow_and_no_other() -> None:
    arrows = {
        JobState(names(start)[0]): frozenset(JobState(end) for end in names(ends))
        for start, ends, _ in rows("The arrows")
    }
    assert arrows == dict(ALLOWED_TRANSITIONS)


def test_the_page_explains_every_state_once() -> None:
    assert [names(state)[0] for state, *_ in rows("What the states mean")] == [str(state) for state in JobState]


def test_the_page_explains_every_verb_once() -> None:
    assert [names(verb)[0] for verb, *_ in rows("Verbs")] == [str(verb) for verb in Verb]


@pytest.mark.parametrize("path", [path for path in REQUIREMENTS if path.suffix == ".txt"], ids=lambda path: path.name)
def test_every_requirement_has_its_hashes(path: Path) -> None:
    requirements = re.split(r"\n(?=\S)", re.sub(r"(?m)^\s*#.*\n?", "", path.read_text()).strip())
    assert requirements
    for requirement in requirements:
        assert re.match(r"[A-Za-z0-9._-]+==\S+ ", requirement), requirement
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", requirement), requirement


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_hold_no_address(path: Path) -> None:
    assert not re.search(r"https?://|index-url|find-links|trusted-host", path.read_text())


def test_no_file_in_git_names_a_registry() -> None:
    found = []
    for path in files_in_git():
        content = b"" if path == Path(__file__).resolve() else path.read_bytes()
        if b"\0" not in content[:8000]:
            match = REGISTRY.search(content.decode(errors="replace"))
            found += [f"{path.relative_to(ROOT)}: {match[0]}"] if match else []
    assert not found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_a_section_find_it(path: Path) -> None:
    missing = []
    for page, section in re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", path.read_text()):
        titles = re.findall(r"^#+ (.+)$", (path.parent / page if page else path).read_text(), re.MULTILINE)
        # as GitHub makes them
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        missing += [] if section in anchors else [f"{page}#{section}"]
    assert missing == []


def test_every_decision_is_in_the_index_in_its_order() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    listed = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE)
    titles = [path.read_text().splitlines()[0] for path in DECISIONS]
    assert [(path, f"# {number} {title}") for number, path, title in listed] == [
        (path.name, title) for path, title in zip(DECISIONS, titles, strict=True)
    ]
    assert [number for number, *_ in listed] == [f"{number:04}" for number in range(1, len(listed) + 1)]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name)
def test_a_decision_is_short_and_says_why(path: Path) -> None:
    lines = path.read_text().splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert [headings[0], headings[-1]] == ["## Context", "## Consequences"]
    assert "## Decision" in headings
    assert len(lines) <= 40


def test_contributors_are_told_of_every_make_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    told = re.findall(r"^\| `make ([a-z-]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(targets)
