"""Hook of MkDocs: links from a page to files outside of docs/ lead to the repository.

Pages are read in the repository too, where such a link is relative. One to a file that is not there
fails the strict build.
"""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.links")
root = Path(__file__).resolve().parents[2]
architecture = "maintaining/architecture.md"
outside = re.compile(r"\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown, page, config, files):
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def to_repository(match):
        path = posixpath.normpath(posixpath.join(here, match[1]))
        if path == "docs" or path.startswith("docs/"):
            return match[0]
        if path.startswith("..") or not (root / path).exists():
            log.warning("%s links to %s, which is not there", page.file.src_uri, match[1])
        return "](%s/blob/main/%s%s)" % (config.repo_url.rstrip("/"), path, match[2] or "")

    return outside.sub(to_repository, markdown)


def on_files(files, config):
    """ARCHITECTURE.md is next to the code, and a page too."""
    text = (root / "ARCHITECTURE.md").read_text()
    text = re.sub(r"\]\((?!https?:|#)(?:docs/)?", lambda m: "](../" if m[0].endswith("docs/") else "](../../", text)
    files.append(File.generated(config, architecture, content=text))
    return files
