"""Hook of MkDocs: the page on which readers break the library is built into the site, below the page about it.

So each way to make the site has it: tools/site/build, and mike. Without Go the build of the site fails.
"""

import logging
import re
import subprocess
from pathlib import Path

log = logging.getLogger("mkdocs.hooks.playground")
root = Path(__file__).resolve().parents[2]
address = re.compile(r"/playground/break/(?:#([a-z]+))?\)")


def on_page_markdown(markdown, page, config, files):
    """A link to a scenario that is not there would open free play."""
    names = set(re.findall(r'Name: "([a-z]+)", Title: ', (root / "playground/world/scenario.go").read_text()))
    linked = set(address.findall(markdown)) - {""}
    if linked - names:
        log.warning("%s links to scenarios that are not there: %s", page.file.src_uri, sorted(linked - names))
    if page.file.src_uri == "playground.md" and linked != names:
        log.warning("playground.md links to %s, and there are %s", sorted(linked), sorted(names))
    return markdown


def on_post_build(config):
    subprocess.run([root / "playground/build", Path(config.site_dir) / "playground/break"], check=True)
