"""The readme of the package: README.md with absolute links, since those of the repository lead nowhere on an index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# What stands before a target, in links, pictures and definitions of Markdown and in HTML, and the target.
_TARGET = re.compile(r"""(\]\(|^\[[^\]]+\]:[ ]*|\b(?:href|src|srcset)=["'])([^\s"')]+)""", re.M)
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.M | re.S)
_IMAGE = (".gif", ".jpg", ".png", ".svg", ".webp")


def absolute_links(text: str, repository: str, ref: str) -> str:
    """Return the text with targets in the repository made absolute, as of the given tag; code stays as it is."""

    def absolute(match: re.Match[str]) -> str:
        before, target = match.groups()
        if re.match(r"[a-z]+:", target):
            return before + target
        path = "README.md" + target if target.startswith("#") else target.removeprefix("./")
        kind = "raw" if path.endswith(_IMAGE) else "blob"
        return f"{before}{repository}/{kind}/{ref}/{path}"

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _TARGET.sub(absolute, part) for number, part in enumerate(parts))


class ReadmeHook(MetadataHookInterface):
    """Gives the package its readme; the addresses are those of ``[project.urls]``."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of the package."""
        root = Path(self.root)
        source = (root / "src/orderdp/__init__.py").read_text()
        version = re.search(r'^__version__ = "(.+)"$', source, re.M)[1]
        text = absolute_links((root / "README.md").read_text(), metadata["urls"]["Repository"], f"v{version}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
