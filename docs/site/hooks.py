"""Hooks of mkdocs for the site of the manual (mkdocs.yml): the workshop's pages, and links that leave docs/.

The tasks of a unit must be the items of one list, in order: Python-Markdown needs four spaces for what is inside an
item, and GitHub shows less of them, too.

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
_TASK: Final = re.compile(r"^[0-9]+\. \*\*([a-z0-9-]+)\.\*\*", re.MULTILINE)
_ITEM: Final = re.compile(r"<li>\s*(?:<p>)?<strong>([a-z0-9-]+)\.</strong>")


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


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """PluginError for a unit whose tasks are not the items of one list, in order."""
    from mkdocs.exceptions import PluginError

    if page.file.src_uri.startswith("labs/") and (tasks := _TASK.findall(page.markdown or "")):
        part = html.partition('id="tasks"')[2].partition("<h2")[0]
        items = re.sub(r"<ul>.*?</ul>", "", part, flags=re.DOTALL).count("<li>")
        if _ITEM.findall(part) != tasks or items != len(tasks) or part.count("<ol") != 1 or "```" in part:
            raise PluginError(f"{page.file.src_uri}: tasks are not the items of one list: indent by four spaces")
    return html


def _root(config: MkDocsConfig) -> Path:
    return Path(str(config.config_file_path)).parent
