"""Prepares a release: checks, builds, writes what a tag and its page say, and stops before anything leaves the machine.

    python -m tools.release             # `make release`; everything goes to build/release

It refuses what a release could not take back: a tree with changes, a version that the changelog, the citation or a tag
contradict, entries that no version has, archives with records or figures, a readme that the index cannot show.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Built", "faults_of_archives", "faults_of_tree", "faults_of_versions", "main", "project", "relative_links"]

ROOT = Path(__file__).parent.parent

#: A source distribution is smaller than this, in bytes.
LIMIT = 1_000_000

_HEADING = re.compile(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?\n", re.M)
_NEEDED = ("orderdp/py.typed", "orderdp/policies/cards/orderdp.md", "orderdp/coresets/cards/geometry.md")
_UNWANTED = re.compile(r"docs/results/records/|docs/(.+/)?figures/")


@dataclass(frozen=True)
class Built:
    """The two archives of a release."""

    source: Path
    wheel: Path

    @classmethod
    def find(cls, folder: Path) -> Built:
        """Find them in a folder that has nothing else."""
        (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
        return cls(source, wheel)

    @property
    def readme(self) -> str:
        """What the index shows about the package."""
        with zipfile.ZipFile(self.wheel) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), None)
            return "" if name is None else str(message_from_bytes(archive.read(name)).get_payload())


def project(root: Path) -> dict[str, Any]:
    """Return the table ``[project]`` of a repository."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def version_of(root: Path) -> str:
    """Return the version that the source has."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "src/orderdp/__init__.py").read_text(), re.M)
    assert found is not None
    return found[1]


def sections(changelog: str) -> dict[str, tuple[str | None, str]]:
    """Return date and text of every version of a changelog, newest first."""
    parts = _HEADING.split(changelog)[1:]
    return {name: (date, text.strip()) for name, date, text in zip(*(parts[i::3] for i in range(3)), strict=True)}


def faults_of_versions(root: Path) -> list[str]:
    """Return what contradicts the version of the source: in the changelog and in the citation."""
    version, found = version_of(root), sections((root / "CHANGELOG.md").read_text())
    date, text = found.get(version, (None, ""))
    citation = (root / "CITATION.cff").read_text()
    faults = []
    if found.get("Unreleased", (None, ""))[1]:
        faults.append(
            f"CHANGELOG.md must have nothing under [Unreleased]: move it to [{version}] or raise the version."
        )
    if date is None or not text:
        faults.append(f"CHANGELOG.md must have a section '## [{version}] - YYYY-MM-DD' with entries.")
    for line in (f"version: {version}", f"date-released: {date}"):
        if not re.search(rf"^{re.escape(line)}$", citation, re.M):
            faults.append(f"CITATION.cff must have the line {line!r}.")
    return faults


def faults_of_tree(root: Path) -> list[str]:
    """Return what the repository has that would not be in the release, and a tag that is somewhere else."""
    tag = f"v{version_of(root)}"
    changed = _git(root, "status", "--porcelain").splitlines()
    faults = [f"the tree must be clean, {len(changed)} files are changed or new: {changed[0]}"] if changed else []
    if _git(root, "tag", "--list", tag) and _git(root, "rev-parse", f"{tag}^{{commit}}") != _git(
        root, "rev-parse", "HEAD"
    ):
        faults.append(f"the tag {tag} is at another commit: raise the version, or check that commit out.")
    return faults


def faults_of_archives(built: Built, limit: int = LIMIT) -> list[str]:
    """Return what the archives lack or have too much, and links of the readme that lead nowhere."""
    with tarfile.open(built.source) as source, zipfile.ZipFile(built.wheel) as wheel:
        there = [name.partition("/")[2] for name in source.getnames()]
        inside = set(wheel.namelist())
    size = built.source.stat().st_size
    faults = [f"{built.source.name} must be smaller than {limit:,} bytes, it has {size:,}."] if size >= limit else []
    faults += [f"{built.source.name} must not contain {name}." for name in there if _UNWANTED.search(name)]
    faults += [f"{built.wheel.name} must contain {name}." for name in _NEEDED if name not in inside]
    faults += [f"the readme must have absolute links, it has {target!r}." for target in relative_links(built.readme)]
    return faults


def relative_links(text: str) -> list[str]:
    """Return the targets of a page, outside of code, that are no addresses."""
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.M | re.S)
    targets = re.findall(r"""\]\(\s*([^\s)]+)|^\[[^\]]+\]:\s*(\S+)|\b(?:href|src|srcset)=["']([^"']+)""", text, re.M)
    return [target for found in targets for target in found if target and not re.match(r"[a-z]+:", target)]


def notes_of(root: Path) -> tuple[str, str]:
    """Return the page of the release, with absolute links, and the message of its tag."""
    from hatch_build import absolute_links  # needs hatchling, which the rest does not

    version = version_of(root)
    _, text = sections((root / "CHANGELOG.md").read_text())[version]
    page = absolute_links(text, project(root)["urls"]["Repository"], f"v{version}")
    # Git takes lines that begin with # for comments.
    plain = re.sub(r"^#+ (.+)$", r"\1:", text, flags=re.M)
    return page + "\n", f"orderdp {version}\n\n{plain}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, build, write; return 1 where something is in the way."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build/release", help="where the archives go")
    parser.add_argument("--version", action="version", version=version_of(ROOT), help="print the version and stop")
    out: Path = parser.parse_args(arguments).out
    if _tell([*faults_of_tree(ROOT), *faults_of_versions(ROOT)]):
        return 1
    dist = out / "dist"
    dist.mkdir(parents=True, exist_ok=True)
    for old in dist.iterdir():
        old.unlink()
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)], check=True)
    built = Built.find(dist)
    archives = [str(built.source), str(built.wheel)]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *archives], check=True)
    if _tell(faults_of_archives(built)):
        return 1
    page, message = notes_of(ROOT)
    (out / "notes.md").write_text(page)
    (out / "tag.txt").write_text(message)
    version = version_of(ROOT)
    print(f"orderdp {version} is ready in {out}; nothing was uploaded. To release it:")
    print(f"  git tag --annotate --file {out / 'tag.txt'} v{version}")
    print(f"  git push origin v{version}      # the workflow release.yml builds again, and publishes")
    return 0


def _tell(faults: Sequence[str]) -> bool:
    for fault in faults:
        print(f"not released: {fault}", file=sys.stderr)
    return bool(faults)


def _git(root: Path, *words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, timeout=60).stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main())
