"""The wheel in an empty environment: one name, one command, everything in it."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_it_holds_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"bulklane"}
    assert {"bulklane/py.typed", "bulklane/database/migrations/env.py", "bulklane/workflows/bulk_job.py"} <= set(names)


@pytest.mark.slow
def test_it_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    install = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements" / "run.txt")], check=True)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    shown = subprocess.run(
        [str(binaries / "bulklane"), "--help"], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert "submit" in shown.stdout
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    own = (next(site.glob("bulklane-*.dist-info")) / "RECORD").read_text()
    top = {line.split("/")[0] for line in own.splitlines() if not line.startswith(("..", "bulklane-"))}
    assert top == {"bulklane"}
