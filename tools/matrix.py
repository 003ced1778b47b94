"""Installs the wheel into clean environments and uses it there: each Python, oldest and newest torch and numpy.

    python -m tools.matrix                      # `make test-matrix`: all rows
    python -m tools.matrix --only 3.10-oldest   # one of them
    python -m tools.matrix --torch-index URL    # another index for torch, such as that of its builds without CUDA

A row is a new environment. First the wheel alone with torch and numpy, to run the example of README.md; then its extra
`workbench`, for a small `orderdp compare --data digits`; with --tests, the core tests at last. Every row is printed as
one JSON line; one that cannot be had here says why, and counts as a failure unless --allow-missing is given. Builds of
torch with CUDA take 5 GB, so environments are removed after use, and downloads are kept for the next row.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.release import project

__all__ = ["ROWS", "Row", "find_python", "main", "oldest", "readme_example"]

ROOT = Path(__file__).parent.parent

_LIMIT = 3600
"""Seconds that one command may take."""

_VERSIONS = "import platform, numpy, torch; print(platform.python_version(), torch.__version__, numpy.__version__)"

#: They need no other library, and say whether draws, states and loops are the same everywhere.
CORE_TESTS = (
    "tests/test_pinned_draws.py",
    "tests/test_old_states.py",
    "tests/test_samplers.py",
    "tests/policies",
)


@dataclass(frozen=True)
class Row:
    """A Python, and whether torch and numpy are the oldest that the project allows or the newest there are."""

    python: str
    libraries: str

    @property
    def name(self) -> str:
        """What ``--only`` calls it."""
        return f"{self.python}-{self.libraries}"

    def requirements(self) -> list[str]:
        """Return torch and numpy as pip takes them."""
        return oldest() if self.libraries == "oldest" else ["torch", "numpy"]


#: The oldest libraries have no builds for Python 3.13.
ROWS = [Row("3.10", "oldest"), Row("3.12", "oldest"), *(Row(f"3.{minor}", "newest") for minor in range(10, 14))]


def oldest() -> list[str]:
    """Return the oldest versions that the project allows, pinned: ``torch>=2.4`` is ``torch==2.4``."""
    return [needed.replace(">=", "==") for needed in project(ROOT)["dependencies"]]


def find_python(version: str) -> str | None:
    """Return the newest interpreter of a version on this machine: on the path, or of pyenv; None if there is none."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(of_pyenv.glob(f"{version}.*/bin/python"), key=lambda path: int(path.parts[-3].split(".")[-1]))
    candidates = [shutil.which(f"python{version}"), *(str(path) for path in reversed(found))]
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        if done.stdout.strip() == version:
            return candidate
    return None


def readme_example() -> str:
    """Return the program in the section "Use" of README.md."""
    found = re.search(r"^## Use\n.*?^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert found is not None, "README.md must have a section 'Use' with a python block."
    return found[1]


def promised() -> list[str]:
    """Return what the example prints, by the comments behind its calls of ``print``."""
    return re.findall(r"^print\(.*\)  # (\S+)$", readme_example(), re.M)


def build_wheel(folder: Path) -> Path:
    """Build the wheel from the tree as it is."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_row(row: Row, wheel: Path, work: Path, *, torch_index: str | None, tests: bool) -> dict[str, Any]:
    """Install and use the wheel; return what happened, with the step that failed and the end of what it said."""
    line: dict[str, Any] = {"row": row.name}
    python = find_python(row.python)
    if python is None:
        return {**line, "result": "missing", "why": f"there is no Python {row.python} on this machine"}
    environment, start = work / row.name, time.monotonic()
    inside = str(environment / ("Scripts" if os.name == "nt" else "bin") / "python")
    out, wheels = work / f"{row.name}-out", str(work / "wheels")
    install = [inside, *_PIP, "install", "--find-links", wheels]
    pinned = row.requirements() if row.libraries == "oldest" else []
    steps = [
        ("environment", [python, "-m", "venv", "--clear", str(environment)]),
        ("download", [inside, *_PIP, "download", "--dest", wheels, *_index(torch_index), *row.requirements()]),
        ("install", [*install, "--no-index", *row.requirements(), str(wheel)]),
        ("readme", [inside, "-c", readme_example()]),
        ("install workbench", [*install, f"{wheel}[workbench]", *pinned]),
        ("compare", [inside, "-m", "orderdp", "compare", *_COMPARE, "--out", str(out)]),
    ]
    if tests:
        steps.append(("install pytest", [*install, "pytest", "hypothesis", *pinned]))
        steps.append(("tests", [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE_TESTS]))
    shutil.rmtree(out, ignore_errors=True)
    try:
        for step, command in steps:
            done = _run(command, check=False, cwd=ROOT if step == "tests" else work)
            if done.returncode:
                missing = step == "download" and "No matching distribution" in done.stderr
                why = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
                return {**line, "result": "missing" if missing else "failed", "step": step, "why": why}
            if step == "readme" and done.stdout.split() != promised():
                why = f"it must print {promised()}, got {done.stdout.split()}"
                return {**line, "result": "failed", "step": step, "why": why}
            if step == "compare" and not (out / "report.html").is_file():
                return {**line, "result": "failed", "step": step, "why": "no page was written"}
        versions = _run([inside, "-c", _VERSIONS]).stdout.split()
        line |= dict(zip(("python", "torch", "numpy"), versions, strict=True))
        ran = [step for step, _ in steps if step in ("readme", "compare", "tests")]
        return {**line, "result": "passed", "ran": ran, "minutes": round((time.monotonic() - start) / 60, 1)}
    finally:
        shutil.rmtree(environment, ignore_errors=True)


_PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
_COMPARE = [
    *("--data", "digits", "--model", "mlp", "--width", "16", "--epochs", "2", "--device", "cpu"),
    *("--policies", "orderdp", "--prune-ratios", "0.4", "--seeds", "0,1"),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all rows, or those named; return 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS], help="a row; may be repeated")
    parser.add_argument("--torch-index", metavar="URL", help="an index where torch is, besides pip's own")
    parser.add_argument("--tests", action="store_true", help="run the core tests there too")
    parser.add_argument("--allow-missing", action="store_true", help="succeed where a row cannot be had")
    parser.add_argument("--work", type=Path, default=ROOT / "build/matrix", help="where environments are made")
    options = parser.parse_args(arguments)
    work = options.work.resolve()
    wheel = build_wheel(work / "dist")
    lines = []
    for row in ROWS:
        if options.only and row.name not in options.only:
            continue
        lines.append(try_row(row, wheel, work, torch_index=options.torch_index, tests=options.tests))
        print(json.dumps(lines[-1]), flush=True)
    return exit_code(lines, allow_missing=options.allow_missing)


def exit_code(lines: Iterable[dict[str, Any]], *, allow_missing: bool) -> int:
    """Return 1 where a row failed, or is missing and must not be."""
    good = {"passed", "missing"} if allow_missing else {"passed"}
    return int(any(line["result"] not in good for line in lines))


def _index(url: str | None) -> list[str]:
    return [] if url is None else ["--extra-index-url", url]


def _run(command: Sequence[str], *, check: bool = True, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # Nothing of this checkout may be imported in place of the wheel.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, capture_output=True, text=True, check=check, cwd=cwd, timeout=_LIMIT, env=environment
    )


if __name__ == "__main__":
    sys.exit(main())
