"""Hooks of mkdocs for the site of the manual (mkdocs.yml): the workshop's pages, and links that leave docs/.

In:  the pages of docs/ and labs/, with links relative to their places in a checkout.
Out: a site in which labs/ is a folder of docs/. A link to a file that is not in the site becomes its path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LINK: Final = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)#\s]*)(#[^)\s]*)?\)")
_README: Final = "README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the workshop."""
    from mkdocs.structure.files import File, InclusionLevel

    root = _root(config)
    for path in sorted((root / "labs").rglob("*.md")):
        name = path.relative_to(root).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between docs/ and labs/ into links of the site."""
    root = _root(config)
    here = Path(str(page.file.abs_src_path)).parent

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = Path(posixpath.normpath(here / target))
        if (path / _README).is_file():
            path /= _README
        name = path.relative_to(root).as_posix()
        inside = name.removeprefix("docs/")
        if files.get_file_from_path(inside) is None:
            return f"`{name}`" if path.exists() else found[0]
        return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return _LINK.sub(link, markdown)


def _root(config: MkDocsConfig) -> Path:
    return Path(str(config.config_file_path)).parent
