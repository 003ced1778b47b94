"""The files of GitHub: what they run is there, they may do no more than they need, and the checks of them can fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import matrix

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
LOADED = {file.stem: yaml.safe_load(file.read_text()) for file in WORKFLOWS}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_there_are_workflows_for_checks_tests_site_and_release() -> None:
    assert set(LOADED) == {"checks", "docs", "release", "tests"}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_action_is_pinned_by_its_commit(file: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", file.read_text())
    assert used
    for action, comment in used:
        pinned = re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) and re.fullmatch(r" # v\d+\.\d+\.\d+", comment)
        assert pinned or action.startswith("./.github/"), action


@pytest.mark.parametrize("name", LOADED)
def test_a_workflow_may_read_and_only_named_jobs_may_do_more(name: str) -> None:
    assert LOADED[name]["permissions"] == {"contents": "read"}
    more = {job: work["permissions"] for job, work in LOADED[name]["jobs"].items() if "permissions" in work}
    assert more == {
        "docs": {"publish": {"pages": "write", "id-token": "write"}},
        "release": {"publish": {"id-token": "write"}, "page": {"contents": "write"}},
    }.get(name, {})
    for job in more:
        assert not [step for step in LOADED[name]["jobs"][job]["steps"] if "checkout" in step.get("uses", "")]


@pytest.mark.parametrize("name", LOADED)
def test_every_job_ends_and_leaves_no_credentials_behind(name: str) -> None:
    for job in LOADED[name]["jobs"].values():
        assert "timeout-minutes" in job or job["uses"] == "./.github/workflows/tests.yml"
    for step in steps(LOADED[name]):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_the_targets_that_workflows_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    made = {word for name in LOADED for step in steps(LOADED[name]) for word in named(step.get("run", ""))}
    made |= set(LOADED["tests"]["jobs"]["suite"]["strategy"]["matrix"]["target"])
    assert {"check", "test", "test-matrix"} <= made <= targets


def named(command: str) -> list[str]:
    """The target of a call of make."""
    return re.findall(r"^make ([a-z-]+)", command, re.M)


def test_the_wheel_is_tried_in_all_rows_of_the_matrix() -> None:
    rows = LOADED["tests"]["jobs"]["wheel"]["strategy"]["matrix"]["row"]
    assert rows == [row.name for row in matrix.ROWS]


def test_publishing_waits_for_all_tests_and_needs_no_secret() -> None:
    jobs = LOADED["release"]["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tests", "build"}
    assert jobs["publish"]["environment"] == "pypi"
    assert "secrets." not in "".join(file.read_text() for file in WORKFLOWS)


def check(*words: str) -> subprocess.CompletedProcess[str]:
    """A tool of `make check`."""
    tool, *rest = words
    command = [str(Path(sys.executable).parent / tool), *rest]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)


def test_make_check_looks_at_all_files_of_github() -> None:
    recipe = re.search(r"^check:.*?\n\n", (ROOT / "Makefile").read_text(), re.M | re.S)
    assert recipe is not None
    lines = re.findall(r"^\t\$\(BIN\)/((?:check-jsonschema|zizmor) .*)$", recipe[0], re.M)
    files = {file for line in lines for word in line.split() if "/" in word for file in ROOT.glob(word)}
    assert set((ROOT / ".github").rglob("*.yml")) <= {inner for file in files for inner in (file, *file.rglob("*"))}
    schemas = [line for line in lines if "schema" in line]
    checked = {file for line in schemas for word in line.split() if "/" in word for file in ROOT.glob(word)}
    assert set((ROOT / ".github").rglob("*.yml")) <= checked


@pytest.mark.parametrize(
    ("old", "new", "tool"),
    [
        ("runs-on:", "run-on:", "schema"),
        ("    timeout-minutes: 30\n", "    timeout-minutes: soon\n", "schema"),
        ("- run: make check", "- run: echo ${{ github.event.pull_request.title }}", "zizmor"),
        ("  pull_request:\n", "  pull_request_target:\n", "zizmor"),
    ],
)
def test_a_workflow_with_a_fault_is_found(old: str, new: str, tool: str, tmp_path: Path) -> None:
    good = (ROOT / ".github/workflows/checks.yml").read_text()
    assert old in good
    (tmp_path / ".github/workflows").mkdir(parents=True)
    for name, text, is_good in (("good", good, True), ("bad", good.replace(old, new), False)):
        file = tmp_path / f".github/workflows/{name}.yml"
        file.write_text(text)
        if tool == "schema":
            done = check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(file))
        else:
            done = check("zizmor", "--offline", "--quiet", "--strict-collection", str(file))
        assert (done.returncode == 0) == is_good, done.stdout + done.stderr
