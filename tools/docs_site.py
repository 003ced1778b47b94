"""The site: what mkdocs does not do by itself, and what `make docs` checks besides links.

    make docs                      # builds build/site, and fails on any warning
    python -m tools.docs_site      # only checks the docstrings; needs no library

Pages are written for GitHub. Here README, CHANGELOG and CONTRIBUTING become pages of the site, links to files that are
not pages lead to the repository, and tables from docstrings take the place of `<!-- report keys -->` and
`<!-- api index -->`.
Sources are read and never imported.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = [
    "ROOT",
    "anchor",
    "api_index",
    "as_markdown",
    "described",
    "expanded",
    "lacking",
    "missing",
    "pages_of",
    "public_names",
    "report_keys",
    "resolve",
    "rewritten",
    "shown_names",
    "unbroken",
]

ROOT = Path(__file__).parent.parent

#: Files of the repository's root that are pages of the site.
ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
_HTML = re.compile(r"""(<(?:img|a|source)\s[^>]*?(?:src|href|srcset)=")(?!https?:|mailto:|#)([^"#\s]+)((?:#[^"]*)?")""")
_PICTURE = re.compile(
    r"""<picture>\s*<source\s[^>]*dark[^>]*srcset="(?P<dark>[^"]+)"[^>]*>\s*"""
    r"""(?:<source\s[^>]*>\s*)?(?P<image><img\s[^>]*src="(?P<light>[^"]+)"[^>]*>)\s*</picture>"""
)
#: A list that begins right below a line of text: a list on GitHub, part of the paragraph for mkdocs.
_LIST_AFTER_TEXT = re.compile(r"^(?![-*#|>\s])(.*\S.*)\n(?=[-*] )", re.MULTILINE)
#: What a line must not end inside of: 40 %, 3 seeds, (-0.5, 0.1).
_KEPT_TOGETHER = re.compile(r"\d (?:%|seeds?\b)|\([-+]?[\d.]+, [-+]?[\d.]+\)")
_SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)

#: Bases that bring no methods with parameters.
_PLAIN_BASES = {"Protocol", "Generic", "NamedTuple", "Enum", "Exception", "UserWarning", "ValueError"}

_log = logging.getLogger("mkdocs.hooks.docs_site")


# -- names and docstrings, from the text of the source ---------------------------------------------------------------


class Definition(NamedTuple):
    """Where a name is defined, and by what."""

    module: str
    name: str
    node: ast.AST


@functools.cache
def _parsed(module: str, source: Path) -> ast.Module | None:
    path = source.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.exists() else None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements(statement.body)


def _listed(module: str, source: Path) -> list[str]:
    """The names in a module's `__all__`."""
    tree = _parsed(module, source)
    for statement in tree.body if tree else ():
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return list(ast.literal_eval(statement.value))  # type: ignore[attr-defined]
    return []


def resolve(path: str, source: Path = ROOT / "src") -> Definition:
    """Return the definition that a dotted path leads to.

    Args:
        path: As a user writes it, such as ``orderdp.OrderDP``.
        source: The folder of the packages.
    """
    module, _, name = path.rpartition(".")
    tree = _parsed(path, source)
    if tree is not None:
        # A package that imports a function from the module of the same name means the function.
        above = _parsed(module, source) if module else None
        imports = [statement for statement in above.body if isinstance(statement, ast.ImportFrom)] if above else []
        if any(each.module == path and name in {alias.name for alias in each.names} for each in imports):
            return resolve(f"{path}.{name}", source)
        return Definition(path, "", tree)
    tree = _parsed(module, source) if module else None
    for statement in _statements(tree.body) if tree else ():
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
            return Definition(module, name, statement)
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return Definition(module, name, statement)
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return resolve(f"{statement.module}.{alias.name}", source)
    raise LookupError(f"there is no {path} in {source}")


def public_names(source: Path = ROOT / "src", package: str = "orderdp") -> list[str]:
    """Return the package's public names, and those of its public subpackages.

    Args:
        source: The folder of the packages.
        package: The package.
    """
    names = [f"{package}.{name}" for name in _listed(package, source) if not name.startswith("_")]
    inside = [f"{name}.{inner}" for name in names if _parsed(name, source) for inner in _listed(name, source)]
    return names + inside


def shown_names(page: str, source: Path = ROOT / "src") -> list[str]:
    """Return the names that an API page shows: those it asks for, and the contents of modules.

    Args:
        page: The page's text.
        source: The folder of the packages.
    """
    names = _SHOWN.findall(page)
    inside = [f"{name}.{inner}" for name in names for inner in _listed(name, source)]
    # Of a function and a module of one name, the page of their package would show the module.
    return names + [name for name in inside if _parsed(name, source) is None]


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def described(docstring: str) -> set[str]:
    """Return the parameters that a docstring describes under Args or Attributes.

    Args:
        docstring: The docstring.
    """
    found: set[str] = set()
    for section in re.findall(r"^ *(?:Args|Attributes):\n((?:(?: +.*)?\n?)*)", docstring, re.MULTILINE):
        for names in re.findall(r"^ +((?:\*{0,2}\w+(?:, | and |; or )?)+)(?: \([^)]*\))?:", section, re.MULTILINE):
            found.update(re.findall(r"\w+", names))
    return found


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (item for item in node.body if isinstance(item, ast.FunctionDef))


def _bases(definition: Definition, source: Path) -> Iterator[ast.ClassDef | None]:
    """The classes that a class extends, near and far; None for one of a framework."""
    for base in getattr(definition.node, "bases", ()):
        name = ast.unparse(base).partition("[")[0]
        try:
            found = resolve(f"{definition.module}.{name}", source)
        except LookupError:
            if name not in _PLAIN_BASES:
                yield None
            continue
        yield found.node if isinstance(found.node, ast.ClassDef) else None
        yield from _bases(found, source)


def _fields(node: ast.ClassDef) -> list[str]:
    """The parameters that a dataclass gets from its fields."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return []
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    given = [item for item in fields if not re.search(r"init=False|: ClassVar", ast.unparse(item))]
    return [name for item in given if not (name := ast.unparse(item.target)).startswith("_")]


def missing(path: str, source: Path = ROOT / "src") -> list[str]:
    """Return what a public name lacks: a docstring, and a description of each parameter.

    A method that overrides one of its bases takes the description of the parameters from there; so do all methods of a
    class that extends one of a framework. A parameter is also described where the docstring names it in backquotes.

    Args:
        path: The name, such as ``orderdp.OrderDP``.
        source: The folder of the packages.
    """
    definition = resolve(path, source)
    node = definition.node
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
        tree = _parsed(definition.module, source)
        assert tree is not None
        body = list(_statements(tree.body))
        below = body[body.index(node) + 1 : body.index(node) + 2]  # type: ignore[arg-type]
        documented = any(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in below)
        return [] if documented else [f"{path} has no docstring"]

    def lacks(where: str, owner: Any, parameters: list[str]) -> list[str]:
        text = ast.get_docstring(owner)
        if not text:
            return [f"{where} has no docstring"]
        absent = set(parameters) - described(text) - set(re.findall(r"`(\w+)`", text))
        return [f"{where} does not describe {', '.join(sorted(absent))}"] if absent else []

    if isinstance(node, ast.FunctionDef):
        return lacks(path, node, _parameters(node))
    if isinstance(node, ast.Module):
        return lacks(path, node, [])
    constructor = next((method for method in _methods(node) if method.name == "__init__"), None)
    found = lacks(path, node, _parameters(constructor) if constructor else _fields(node))
    bases = list(_bases(definition, source))
    above = {method.name for base in bases if base for method in _methods(base)}
    for method in _methods(node):
        if not method.name.startswith("_") or method.name == "__call__":
            parameters = [] if None in bases or method.name in above else _parameters(method)
            found += lacks(f"{path}.{method.name}", method, parameters)
    return found


def report_keys(docstring: str) -> dict[str, str]:
    """Return the keys of `Pruner.report` and what each means, from its docstring.

    Args:
        docstring: The docstring.
    """
    keys = {}
    for item in re.findall(r"^ *- (``\w+``.*?)(?=\n *-|\n\n|\Z)", docstring, re.MULTILINE | re.DOTALL):
        names, _, meaning = " ".join(item.split()).partition(": ")
        keys.update(dict.fromkeys(re.findall(r"``(\w+)``", names), meaning))
    return keys


def as_markdown(docstring: str) -> str:
    """Return a docstring with its doctests, and its literal blocks after ``::``, as blocks of code.

    Args:
        docstring: The docstring, without the indentation of its code.
    """
    text = re.sub(r"^( *)(>>> .*(?:\n\1[^\n]+)*)", r"\1```pycon\n\1\2\n\1```", docstring, flags=re.MULTILINE)
    return re.sub(
        r"(?:(\w)::$|^ *::$)(?=\n\n +\S)", lambda match: f"{match[1]}:" if match[1] else "", text, flags=re.MULTILINE
    )


def api_index(pages: list[Path], source: Path = ROOT / "src") -> str:
    """Return tables of the names on each API page, with the first sentences of their docstrings.

    Args:
        pages: The pages.
        source: The folder of the packages.
    """
    direct = {resolve(name, source)[:2]: name for name in public_names(source) if name.count(".") == 1}
    parts = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        rows = []
        for name in shown_names(text, source):
            definition = resolve(name, source)
            node, shown = definition.node, direct.get(definition[:2], name.rpartition(".")[2])
            documented = isinstance(node, ast.ClassDef | ast.FunctionDef)
            sentence = re.split(r"(?<=\.)\s", (ast.get_docstring(node) or "") if documented else "")[0]  # type: ignore[arg-type]
            if documented:
                rows.append(f"| [`{shown}`][{name}] | {' '.join(sentence.split()).replace('|', '&#124;')} |")
        if rows:
            title = text.partition("\n")[0].removeprefix("# ")
            parts.append(
                "\n".join([f"## [{title}]({page.name})", "", "| name | what it is or does |", "|---|---|", *rows])
            )
    return "\n\n".join(parts)


def _report_table(source: Path = ROOT / "src") -> str:
    pruner = resolve("orderdp.Pruner", source).node
    assert isinstance(pruner, ast.ClassDef)
    report = next(method for method in _methods(pruner) if method.name == "report")
    together: dict[str, list[str]] = {}  # "trained on and left out" says it of two keys
    for key, meaning in report_keys(ast.get_docstring(report) or "").items():
        together.setdefault(meaning, []).append(f"`{key}`")
    return "\n".join(
        ["| key | meaning |", "|---|---|", *(f"| {', '.join(keys)} | {text} |" for text, keys in together.items())]
    )


# -- pages -----------------------------------------------------------------------------------------------------------


def anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as GitHub makes it.

    Args:
        heading: The heading's text.
        separator: What stands for a space.
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def expanded(nav: list[Any], docs: Path = ROOT / "docs") -> list[Any]:
    """Return the navigation with ``folder/*`` replaced by the folder's pages that it does not name.

    Args:
        nav: The navigation as in mkdocs.yml.
        docs: The folder of the pages.
    """
    named = set(pages_of(nav))

    def items(entries: list[Any]) -> Iterator[Any]:
        for entry in entries:
            if isinstance(entry, str) and entry.endswith("/*"):
                found = (page.relative_to(docs).as_posix() for page in sorted((docs / entry[:-2]).glob("*.md")))
                yield from (page for page in found if page not in named)
            elif isinstance(entry, dict):
                yield {
                    title: list(items(value)) if isinstance(value, list) else value for title, value in entry.items()
                }
            else:
                yield entry

    return list(items(nav))


def pages_of(nav: list[Any]) -> list[str]:
    """Return the pages that a navigation names, in order.

    Args:
        nav: The navigation.
    """
    found: list[str] = []
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += pages_of(value) if isinstance(value, list) else [value]
    return found


def rewritten(text: str, page: str, repository: str, root: Path = ROOT) -> str:
    """Return a page's text with links that lead to pages of the site or to the repository, and lists as on GitHub.

    Args:
        text: The page's text, with links as on GitHub.
        page: The page's path in the repository.
        repository: Address of the repository.
        root: The repository.
    """
    here = posixpath.dirname(_in_site(page))

    def found(link: str) -> tuple[str, bool] | None:
        """Where a link leads, and whether that is in the site; None where there is nothing."""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
        if (root / target / "README.md").exists():
            target = posixpath.join(target, "README.md")
        if not (root / target).exists():
            return None
        if target in ROOT_PAGES or (target.startswith("docs/") and (root / target).is_file()):
            return _in_site(target), True
        return f"{repository}/{'tree' if (root / target).is_dir() else 'blob'}/main/{target}", False

    def markdown(match: re.Match[str]) -> str:
        target = found(match[2])
        if target is None:
            return match[0]  # mkdocs says that it is not there
        return f"{match[1]}{posixpath.relpath(target[0], here or '.') if target[1] else target[0]}{match[3]}"

    def html(match: re.Match[str]) -> str:
        """HTML is not resolved by mkdocs: it needs addresses as the browser sees them."""
        target = found(match[2])
        if target is None:
            _log.warning("%s: there is no %s", page, match[2])
            return match[0]
        address = posixpath.relpath(_address(target[0]), _address(_in_site(page))) if target[1] else target[0]
        return f"{match[1]}{address}{match[3]}"

    # Code stays as it is.
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    for number in range(0, len(parts), 2):
        text = _LIST_AFTER_TEXT.sub(r"\1\n\n", parts[number])
        parts[number] = _HTML.sub(html, _LINK.sub(markdown, _PICTURE.sub(_two_images, text)))
    return "".join(parts)


def unbroken(html: str) -> str:
    """Return a page's HTML in which no line ends between a number and its unit, or inside an interval.

    Args:
        html: The HTML; code in it stays as it is.
    """
    parts = re.split(r"(<pre.*?</pre>|<code.*?</code>|<[^>]*>)", html, flags=re.DOTALL)
    for number in range(0, len(parts), 2):
        parts[number] = _KEPT_TOGETHER.sub(lambda match: match[0].replace(" ", "\u00a0"), parts[number])
    return "".join(parts)


def _in_site(path: str) -> str:
    return ROOT_PAGES.get(path, path.removeprefix("docs/"))


def _address(page: str) -> str:
    """The folder in which the site has a page; of another file its own address."""
    path, name = posixpath.split(page)
    if not name.endswith(".md"):
        return page
    return path or "." if name in ("index.md", "README.md") else posixpath.join(path, name.removesuffix(".md"))


def _two_images(match: re.Match[str]) -> str:
    """A picture for GitHub follows the system's colors; here the switch of the page decides."""
    light = match["image"].replace(f'src="{match["light"]}"', f'src="{match["light"]}#only-light"')
    dark = match["image"].replace(f'src="{match["light"]}"', f'src="{match["dark"]}#only-dark"')
    return f"{light}\n{dark}"


# -- what mkdocs calls -----------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Check the docstrings; set what plain YAML cannot say."""
    from pymdownx.superfences import fence_code_format

    for lack in lacking():
        _log.warning(lack)
    config.nav = expanded(config.nav or [], Path(config.docs_dir))
    diagrams = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [diagrams]}
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make pages of README, CHANGELOG and CONTRIBUTING."""
    from mkdocs.structure.files import File

    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links, and fill in the tables that come from docstrings."""
    uri = page.file.src_uri
    name = next((name for name, generated in ROOT_PAGES.items() if generated == uri), f"docs/{uri}")
    text = rewritten(markdown, name, str(config.repo_url).rstrip("/"))
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]
    api = [ROOT / "docs" / page for page in pages_of(config.nav or []) if page.startswith("api/")]
    text = text.replace("<!-- api index -->", api_index(api))
    return text.replace("<!-- report keys -->", _report_table())


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load the library that draws diagrams on pages that have one; a copy of our own, not from the network."""
    html = unbroken(html)
    if '<pre class="mermaid">' not in html:
        return html
    import mermaidx

    copy = Path(config.site_dir, "assets", "mermaid.js")
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(mermaidx.__file__).parent / "assets" / "mermaid.js", copy)
    up = "../" * page.url.count("/")
    return f'<script src="{up}assets/mermaid.js"></script>\n{html}'


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Keep the theme from asking GitHub for stars."""
    return output.replace('data-md-component="source"', "")


def lacking() -> list[str]:
    """Return what public names and API pages lack."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    shown = shown_names(pages)
    defined = {resolve(name)[:2] for name in shown}
    absent = [f"{name} is on no page of docs/api" for name in public_names() if resolve(name)[:2] not in defined]
    return absent + [lack for name in dict.fromkeys(shown) for lack in missing(name)]


with contextlib.suppress(ImportError):  # only where the site is built
    from griffe import Docstring, Extension, Object

    class Docstrings(Extension):
        """Shows doctests as code."""

        def on_object(self, *, obj: Object, **_: Any) -> None:
            """Change the docstring of one object."""
            if isinstance(obj.docstring, Docstring):
                obj.docstring.value = as_markdown(obj.docstring.value)


if __name__ == "__main__":
    found = lacking()
    sys.stdout.writelines(f"{lack}\n" for lack in found)
    sys.exit(bool(found))
