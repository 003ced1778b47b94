"""What is released: the metadata, the two archives, the changelog, and the addresses in all files."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from hatch_build import absolute_links
from tools import matrix, release

import orderdp
from orderdp.errors import install_command

ROOT = Path(__file__).parent.parent


def tracked(*folders: str) -> list[Path]:
    """The text files of the repository, those that no commit has yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    names = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout.split("\n")
    endings = (".cff", ".ipynb", ".md", ".py", ".toml", ".yaml", ".yml")
    return [ROOT / name for name in names if name.endswith(endings) and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> release.Built:
    """Both archives, built without the network by the backend that is installed."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, capture_output=True, check=True, cwd=ROOT, timeout=300)
    return release.Built.find(folder)


def metadata(built: release.Built) -> Message:
    with zipfile.ZipFile(built.wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        return message_from_bytes(archive.read(name))


# -- addresses --------------------------------------------------------------------------------------------------------


def test_all_files_have_the_addresses_of_the_project_file() -> None:
    urls = release.project(ROOT)["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    repository, site = urls["Repository"], urls["Documentation"]
    assert urls["Homepage"] == repository
    assert all(urls[name].startswith(repository + "/") for name in ("Changelog", "Issues"))
    ours = re.compile(r"https?://[^\s\"'`)>\]]*\borderdp\b[^\s\"'`)>\]]*")
    found = {match for file in tracked() for match in ours.findall(file.read_text()) if file != Path(__file__)}
    assert found
    assert not [
        url for url in found if not re.match(rf"({re.escape(repository)}|{re.escape(site)})(\.git)?([/#@.,]|$)", url)
    ]


def test_relative_targets_become_absolute_and_nothing_else_changes() -> None:
    text = (
        "[a](docs/a.md#b) ![p](x/p.svg) [![c](c.png)](LICENSE) [`code`](./d.md) [e](#use) [w](https://x.org/a)\n"
        '<img src="p.png"> <source srcset="q.svg" media="(x)"> <a href="docs/f.md">f</a>\n[g]: docs/g.md\n'
        "`[x](y.md)` stays\n```text\n[x](y.md)\n```\n"
    )
    there, raw = "https://h/o/blob/v1", "https://h/o/raw/v1"
    assert absolute_links(text, "https://h/o", "v1") == (
        f"[a]({there}/docs/a.md#b) ![p]({raw}/x/p.svg) [![c]({raw}/c.png)]({there}/LICENSE) [`code`]({there}/d.md) "
        f"[e]({there}/README.md#use) [w](https://x.org/a)\n"
        f'<img src="{raw}/p.png"> <source srcset="{raw}/q.svg" media="(x)"> <a href="{there}/docs/f.md">f</a>\n'
        f"[g]: {there}/docs/g.md\n"
        "`[x](y.md)` stays\n```text\n[x](y.md)\n```\n"
    )


# -- archives ---------------------------------------------------------------------------------------------------------


def test_the_readme_of_the_package_has_no_relative_link(built: release.Built) -> None:
    readme = metadata(built).get_payload()
    assert isinstance(readme, str)
    assert "three lines" in readme
    assert release.relative_links(readme) == []
    assert release.relative_links((ROOT / "README.md").read_text()) != []  # so the check can fail


def test_the_metadata_have_the_addresses_and_the_version(built: release.Built) -> None:
    found = metadata(built)
    urls = dict(line.split(", ") for line in found.get_all("Project-URL", []))
    assert urls == release.project(ROOT)["urls"]
    assert found["Version"] == orderdp.__version__


def test_the_archives_hold_what_they_should_and_are_small(built: release.Built) -> None:
    assert release.faults_of_archives(built) == []


def test_records_figures_and_size_of_an_archive_are_found(built: release.Built, tmp_path: Path) -> None:
    names = ["docs/results/records/a.jsonl", "docs/theory/figures/b.png", "src/orderdp/c.py"]
    source = tmp_path / "orderdp-9.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name in names:
            (tmp_path / "file").write_text(name)
            archive.add(tmp_path / "file", f"orderdp-9/{name}")
    wheel = tmp_path / "orderdp-9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("orderdp/__init__.py", "")
    faults = "\n".join(release.faults_of_archives(release.Built.find(tmp_path), limit=100))
    for part in ("records/a.jsonl", "figures/b.png", "must be smaller than 100 bytes", "py.typed", "cards/orderdp.md"):
        assert part in faults
    assert "c.py" not in faults


# -- versions and tags ------------------------------------------------------------------------------------------------


def test_the_changelog_and_the_citation_have_the_version_of_the_source() -> None:
    date, text = release.sections((ROOT / "CHANGELOG.md").read_text())[orderdp.__version__]
    assert date is not None
    assert text
    assert f"version: {orderdp.__version__}\ndate-released: {date}\n" in (ROOT / "CITATION.cff").read_text()


CHANGELOG = "# All\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n\n### Added\n- [A](a.md)\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that could be released."""
    (tmp_path / "src/orderdp").mkdir(parents=True)
    (tmp_path / "src/orderdp/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# All\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n\n### Added\n- [A](a.md)\n"
    )
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\ndate-released: 2030-01-02\n")
    (tmp_path / "pyproject.toml").write_text('[project]\n[project.urls]\nRepository = "https://h/o"\n')
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, timeout=60)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a", "--no-verify")


def test_a_clean_repository_whose_versions_agree_can_be_released(repository: Path) -> None:
    assert release.faults_of_tree(repository) + release.faults_of_versions(repository) == []
    git(repository, "tag", "v1.2.3")  # here, as when a workflow runs for the tag
    assert release.faults_of_tree(repository) == []
    page, message = release.notes_of(repository)
    assert page == "### Added\n- [A](https://h/o/blob/v1.2.3/a.md)\n"
    assert message == "orderdp 1.2.3\n\nAdded:\n- [A](a.md)\n"


def test_what_contradicts_a_release_is_named(repository: Path) -> None:
    git(repository, "tag", "v1.2.3")
    (repository / "new.txt").write_text("")
    assert "new.txt" in "".join(release.faults_of_tree(repository))
    commit(repository)
    assert "v1.2.3 is at another commit" in "".join(release.faults_of_tree(repository))
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(
        changelog.read_text().replace("[Unreleased]\n", "[Unreleased]\n- B\n").replace("-02\n", "-03\n")
    )
    faults = release.faults_of_versions(repository)
    assert ["[Unreleased]" in faults[0], "date-released: 2030-01-03" in faults[1]] == [True, True]
    (repository / "src/orderdp/__init__.py").write_text('__version__ = "1.3.0"\n')
    assert "a section '## [1.3.0] - YYYY-MM-DD'" in "".join(release.faults_of_versions(repository))


# -- the matrix -------------------------------------------------------------------------------------------------------


def test_the_matrix_has_every_python_of_the_project_and_its_oldest_libraries() -> None:
    pythons = {line.split(" :: ")[-1] for line in release.project(ROOT)["classifiers"] if " :: 3." in line}
    assert {row.python for row in matrix.ROWS if row.libraries == "newest"} == pythons
    assert matrix.Row("3.10", "oldest") in matrix.ROWS
    assert matrix.oldest() == [needed.replace(">=", "==") for needed in release.project(ROOT)["dependencies"]]
    assert matrix.find_python("2.1") is None


def test_the_example_of_the_readme_says_what_it_prints() -> None:
    assert matrix.promised()
    assert matrix.readme_example().count("print(") == len(matrix.promised())


def test_a_python_that_is_not_here_is_said_and_fails_unless_that_is_allowed(tmp_path: Path) -> None:
    line = matrix.try_row(matrix.Row("2.1", "newest"), tmp_path / "w.whl", tmp_path, torch_index=None, tests=True)
    assert line == {"row": "2.1-newest", "result": "missing", "why": "there is no Python 2.1 on this machine"}
    assert matrix.exit_code([line], allow_missing=False) == 1
    assert matrix.exit_code([line], allow_missing=True) == 0
    assert matrix.exit_code([{"result": "failed"}], allow_missing=True) == 1


@pytest.mark.parametrize(
    ("step", "said", "result"),
    [
        ("download", "ERROR: No matching distribution found for torch==2.4", "missing"),
        ("download", "ERROR: the network is down", "failed"),
        ("install", "ERROR", "failed"),
        ("readme", "ImportError", "failed"),
        ("compare", "ValueError", "failed"),
        ("tests", "1 failed", "failed"),
    ],
)
def test_a_step_that_fails_in_an_environment_fails_its_row(
    step: str, said: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"download": "download", "install": "install", "readme": "-c", "compare": "compare", "tests": "pytest"}

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "compare" in command:
            Path(command[-1]).mkdir()
            (Path(command[-1]) / "report.html").touch()
        fails = words[step] in command and (step != "tests" or "install" not in command)
        return subprocess.CompletedProcess(command, int(fails), "\n".join(matrix.promised()), said if fails else "")

    monkeypatch.setattr(matrix, "_run", run)
    monkeypatch.setattr(matrix, "find_python", lambda version: "python")
    line = matrix.try_row(matrix.Row("3.10", "oldest"), tmp_path / "w.whl", tmp_path, torch_index=None, tests=True)
    assert (line["result"], line["step"]) == (result, step)
    assert said in line["why"]


def test_an_example_that_prints_something_else_fails_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_run", lambda command, **_: subprocess.CompletedProcess(command, 0, "0.3\n", ""))
    monkeypatch.setattr(matrix, "find_python", lambda version: "python")
    line = matrix.try_row(matrix.ROWS[0], tmp_path / "w.whl", tmp_path, torch_index=None, tests=False)
    assert (line["result"], line["step"]) == ("failed", "readme")


# -- what to install --------------------------------------------------------------------------------------------------

_INSTALL = re.compile(r"pip\s+install\s+(?:-\S+\s+)*['\"]?(orderdp\b|\.\[([\w,-]+)\])")


def test_no_page_or_message_installs_a_name_that_is_not_registered() -> None:
    extras = set(release.project(ROOT)["optional-dependencies"])
    told = 0
    for file in [*tracked("src", "docs", "examples", ".github"), *ROOT.glob("*.md")]:
        for what, names in _INSTALL.findall(file.read_text()):
            assert what != "orderdp", file
            assert set(names.split(",")) <= extras, file
            assert install_command(names).endswith(f"{what}'"), file
            told += 1
    assert told >= 10
    assert _INSTALL.findall("pip\ninstall 'orderdp[x]'")  # so it can fail


def test_messages_take_the_command_from_one_place() -> None:
    told = [file.name for file in tracked("src") if file.suffix == ".py" and "pip install" in file.read_text()]
    assert told == ["errors.py"]
