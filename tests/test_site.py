"""The site: every page is in its navigation, every public name on an API page, with a docstring. Needs no mkdocs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from tools import docs_site

from orderdp import OrderDP, Pruner

ROOT = docs_site.ROOT
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
NAV = docs_site.pages_of(docs_site.expanded(CONFIG["nav"]))
API = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md")))


def test_the_navigation_names_every_page_once_and_no_other() -> None:
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(NAV) == sorted([*pages, *docs_site.ROOT_PAGES.values()])


def test_a_folder_in_the_navigation_stands_for_its_pages_that_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "a" / f"{name}.md").touch()
    nav = [{"Home": "index.md"}, {"A": ["a/two.md", "a/*"]}]
    expected = [{"Home": "index.md"}, {"A": ["a/two.md", "a/one.md", "a/three.md"]}]
    assert docs_site.expanded(nav, tmp_path) == expected


def imported(text: str) -> Iterator[str]:
    """The names of the library that a program imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "orderdp":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def programs() -> Iterator[str]:
    yield from (file.read_text() for file in sorted((ROOT / "examples").glob("*.py")))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


def test_every_public_name_and_every_name_that_pages_and_examples_import_is_on_an_api_page() -> None:
    shown = {docs_site.resolve(name)[:2] for name in docs_site.shown_names(API)}
    wanted = [*docs_site.public_names(), *(name for program in programs() for name in imported(program))]
    private = [name for name in wanted if any(part.startswith("_") for part in name.split("."))]
    assert [name for name in wanted if docs_site.resolve(name)[:2] not in shown and name not in private] == []


def test_every_public_name_has_a_docstring_that_describes_its_parameters() -> None:
    assert docs_site.lacking() == []


def test_a_name_without_docstring_or_description_is_found(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text(
        '"""Toys."""\n__all__ = ["Ball", "CONSTANT", "kick", "roll", "throw"]\n'
        "CONSTANT = 3\n'A number.'\nfrom toy.game import Ball, kick, roll, throw\n"
    )
    (tmp_path / "toy" / "game.py").write_text(
        "class Thing:\n"
        '    """A thing."""\n'
        "    def move(self, x):\n"
        '        """Move.\n\n        Args:\n            x: How far.\n        """\n'
        "class Ball(Thing):\n"
        '    """A ball."""\n'
        "    def __init__(self, size): ...\n"
        "    def move(self, x):\n"
        '        """Roll."""\n'
        "    def drop(self, y):\n"
        '        """Fall."""\n'
        "    def hidden(self): ...\n"
        "    def _private(self, z): ...\n"
        "def kick(ball): ...\n"
        "def roll(ball, speed):\n"
        '    """Roll `ball`."""\n'
        "def throw(ball, *, speed=1):\n"
        '    """Throw.\n\n    Args:\n        ball: The ball.\n        speed: How fast.\n    """\n'
    )
    names = docs_site.public_names(tmp_path, "toy")
    assert names == ["toy.Ball", "toy.CONSTANT", "toy.kick", "toy.roll", "toy.throw"]
    assert [lack for name in names for lack in docs_site.missing(name, tmp_path)] == [
        "toy.Ball does not describe size",
        "toy.Ball.drop does not describe y",
        "toy.Ball.hidden has no docstring",
        "toy.kick has no docstring",
        "toy.roll does not describe speed",
    ]


def test_a_function_with_the_name_of_its_module_is_meant_and_is_shown_only_where_a_page_asks_for_it() -> None:
    assert docs_site.resolve("orderdp.theory.plan")[:2] == ("orderdp.theory.plan", "plan")
    assert docs_site.resolve("orderdp.policies")[1] == ""
    shown = docs_site.shown_names("::: orderdp.theory\n::: orderdp.theory.weights.weights\n")
    assert "orderdp.theory.coverage" in shown
    assert "orderdp.theory.plan" not in shown
    assert "orderdp.theory.weights.weights" in shown


def test_a_constant_has_its_docstring_below_it(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text('"""Toys."""\nNAMES = ("ball",)\n"""All toys."""\nSIZES: tuple = (3,)\n')
    assert docs_site.missing("toy.NAMES", tmp_path) == []
    assert docs_site.missing("toy.SIZES", tmp_path) == ["toy.SIZES has no docstring"]


def test_a_name_that_no_module_defines_is_an_error() -> None:
    with pytest.raises(LookupError, match=re.escape("orderdp.Prunner")):
        docs_site.resolve("orderdp.Prunner")


def test_the_index_of_the_api_writes_names_as_programs_do() -> None:
    index = docs_site.api_index([ROOT / "docs" / "api" / "policies.md"])
    assert "| [`orderdp.OrderDP`][orderdp.policies.OrderDP] | Draws a uniform pool" in index
    assert "| [`Scheduled`][orderdp.policies.Scheduled] |" in index


@pytest.mark.parametrize("table", ["replicated", "sharded"])
def test_the_documented_keys_of_a_report_are_the_real_ones(table: str) -> None:
    pruner = Pruner(OrderDP(0.4), 20, table=table)
    for batch in pruner.batch_sampler(4):
        pruner.update(batch, torch.rand(len(batch)))
    documented = docs_site.report_keys(Pruner.report.__doc__ or "")
    sharded = {"selection_bytes", "moved_picks", "moved_bytes", "returned_bytes"}
    expected = set(documented) - ({"staleness"} if table == "sharded" else sharded)
    assert set(pruner.report()) == expected
    assert all(documented.values())


def test_links_lead_to_pages_of_the_site_or_to_the_repository() -> None:
    text = "[a](../guides/data.md#modifiers) [b](../../examples/ddp.py) [c](../../README.md) [d](https://x.org) [e](#f)"
    assert docs_site.rewritten(text, "docs/results/README.md", "https://host/repo") == (
        "[a](../guides/data.md#modifiers) [b](https://host/repo/blob/main/examples/ddp.py) [c](../index.md) "
        "[d](https://x.org) [e](#f)"
    )
    text = (
        "[a](docs/guides/data.md) [b](CONTRIBUTING.md) [c](examples) [d](docs/results/records)\n```\n[e](examples)\n```"
    )
    assert docs_site.rewritten(text, "README.md", "https://host/repo") == (
        "[a](guides/data.md) [b](contributing.md) [c](https://host/repo/tree/main/examples) "
        "[d](https://host/repo/tree/main/docs/results/records)\n```\n[e](examples)\n```"
    )


def test_images_in_html_are_found_from_where_the_browser_sees_the_page() -> None:
    image = "figures/fig-usage.svg"
    text = f'<p><img width="9" src="{image}"></p>'
    assert f'src="{image}"' in docs_site.rewritten(text, "docs/results/README.md", "https://host/repo")
    assert f'src="../{image}"' in docs_site.rewritten(text, "docs/results/static.md", "https://host/repo")
    text = f'<img src="docs/results/{image}"> <a href="docs/performance.md#scale">x</a> <a href="LICENSE">y</a>'
    assert docs_site.rewritten(text, "README.md", "https://host/repo") == (
        f'<img src="results/{image}"> <a href="performance#scale">x</a> '
        '<a href="https://host/repo/blob/main/LICENSE">y</a>'
    )


def test_a_picture_with_a_dark_version_becomes_two_images_that_follow_the_switch() -> None:
    light, dark = "docs/results/figures/fig-usage.svg", "docs/results/figures/table-cosine.svg"
    text = (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'<img alt="A forest." src="{light}">\n</picture>'
    )
    assert docs_site.rewritten(text, "README.md", "https://host/repo") == (
        '<img alt="A forest." src="results/figures/fig-usage.svg#only-light">\n'
        '<img alt="A forest." src="results/figures/table-cosine.svg#only-dark">'
    )


def test_an_image_in_html_that_is_not_there_fails_the_build(caplog: pytest.LogCaptureFixture) -> None:
    docs_site.rewritten('<img src="nothing.svg">', "README.md", "https://host/repo")
    assert "README.md: there is no nothing.svg" in caplog.text
    assert caplog.records[0].name.startswith("mkdocs.")


def test_a_link_to_nothing_is_left_for_mkdocs_to_refuse() -> None:
    assert docs_site.rewritten("[a](nothing.md)", "docs/performance.md", "https://host/repo") == "[a](nothing.md)"


def test_a_list_right_below_a_line_of_text_is_a_list_as_on_github() -> None:
    text = "Training:\n- one\n  and more\n- two\n\n### Fixed\n- three\n```\na\n- b\n```\n| a |\n|---|\n\n- four\n"
    expected = text.replace("Training:\n", "Training:\n\n")
    assert docs_site.rewritten(text, "README.md", "https://host/repo") == expected


def test_no_line_ends_between_a_number_and_its_unit_or_inside_an_interval() -> None:
    html = '<td title="40 %">40 % (3 seeds)</td><p>(-0.5, 0.1), 3 of 5</p><code>4 %</code><pre>(1, 2)</pre>'
    assert docs_site.unbroken(html) == html.replace(">40 % (3 s", ">40\u00a0% (3\u00a0s").replace("5, 0", "5,\u00a00")


def test_the_index_of_decisions_names_every_page() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    titles = [page.read_text().partition("\n")[0].partition(": ")[2] for page in pages]
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == [(title, page.name) for title, page in zip(titles, pages, strict=True)]


def test_every_program_among_the_examples_is_in_the_recipes() -> None:
    recipes = (ROOT / "docs" / "guides" / "recipes.md").read_text()
    programs = [file.name for file in (ROOT / "examples").glob("*.py") if "__main__" in file.read_text()]
    assert len(programs) > 15
    assert sorted(name for name in programs if f"(../../examples/{name})" not in recipes) == []


def test_every_image_of_a_page_says_what_it_shows() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    images = [(page.name, image) for page in pages for image in re.findall(r"!\[[^\]]*\]|<img[^>]*>", page.read_text())]
    assert len(images) > 10
    assert [image for image in images if not re.search(r'!\[.+\]|alt=".+"', image[1])] == []


def test_doctests_and_literal_blocks_become_code() -> None:
    text = "Add.\n\n>>> add(1,\n...     2)\n3\n\nUse it::\n\n    add(1, 2)\n\n::\n\n    tree\n"
    expected = "Add.\n\n```pycon\n>>> add(1,\n...     2)\n3\n```\n\nUse it:\n\n    add(1, 2)\n\n\n\n    tree\n"
    assert docs_site.as_markdown(text) == expected


def test_a_broken_link_anchor_or_page_fails_the_build() -> None:
    assert CONFIG["strict"] is True
    assert CONFIG["validation"]["nav"] == {"omitted_files": "warn", "not_found": "warn", "absolute_links": "warn"}
    assert set(CONFIG["validation"]["links"].values()) == {"warn"}
    assert set(CONFIG["validation"]["links"]) == {"not_found", "absolute_links", "unrecognized_links", "anchors"}


def test_the_site_loads_nothing_from_the_network() -> None:
    assert CONFIG["theme"]["font"] is False
    assets = (ROOT / "docs" / "assets" / "site.css").read_text()
    assert "http" not in assets
    assert "@import" not in assets
    assert not any("http" in str(entry) for key in ("extra_css", "extra_javascript") for entry in CONFIG.get(key, []))
