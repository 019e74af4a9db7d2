"""Hooks of mkdocs: add generated pages and documents outside docs/, and check that pages work offline."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from exitbench import __version__
from exitbench.reports.documentation import drawn_pictures, gallery
from exitbench.results.database.schema_doc import schema_markdown
from exitbench.results.queries.cookbook import cookbook_markdown

ROOT = Path(__file__).parents[2]
OUTSIDE_DOCS = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PAGES = {**OUTSIDE_DOCS, "README.md": "index.md"}
"""Documents outside docs/, and the names of their pages on the site."""
REFERENCE = {"schema.md": schema_markdown, "sql.md": cookbook_markdown}
"""Pages that are generated from the code."""
_LOADED = re.compile(r'<(?:script|img|iframe|link(?! rel="canonical"))\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


@event_priority(100)  # before mkdocstrings looks for it
def on_config(config: MkDocsConfig) -> None:
    """Put the version into every page's footer, and lay out the package as links for mkdocstrings.

    The links give every source folder its place within `exitbench`, so that mkdocstrings reads docstrings without
    importing.
    """
    config.copyright = f"ExitBench {__version__}"
    package = ROOT / "runs" / "docs" / "package" / "exitbench"
    package.mkdir(parents=True, exist_ok=True)
    rooms = [ROOT / name for name in ("harness", "methods", "tasks", "results", "reports")]
    for target in (*rooms, *(ROOT / "harness" / "_root").glob("*.py")):
        link = package / target.name
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=target.is_dir())


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add documents outside docs/, generated references of the database and its queries, and a gallery of figures."""
    for name in OUTSIDE_DOCS:
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, OUTSIDE_DOCS[name], content=text))
    for page, content in REFERENCE.items():
        files.append(File.generated(config, page, content=content()))
    pictures = ROOT / "runs" / "docs" / "report" / "figures"
    files.append(File.generated(config, "gallery.md", content=gallery(pictures)))
    for name, picture in drawn_pictures(pictures).items():
        files.append(File.generated(config, f"figures/{name}.svg", abs_src_path=str(picture)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to documents outside docs/ as links to their pages, and turn links to source files into text."""
    folder = "" if page.file.src_uri in OUTSIDE_DOCS.values() else f"docs/{posixpath.dirname(page.file.src_uri)}"
    up = "../" * page.file.src_uri.count("/")

    def kept(found: re.Match[str]) -> str:
        text, path, anchor = found.groups()
        name = posixpath.normpath(posixpath.join(folder, path))
        if name in PAGES:
            return f"[{text}]({up}{PAGES[name]}{anchor or ''})"
        is_source = not name.startswith(("docs/", "..")) and (ROOT / name).exists()
        return text if is_source and not files.get_file_from_path(name) else found[0]

    return _LINK.sub(kept, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:
    """Reject a page that would load a file from the network, since the site must work offline."""
    if fetched := _LOADED.findall(output):
        raise PluginError(f"{page.file.src_uri}: loads {', '.join(fetched)}")
