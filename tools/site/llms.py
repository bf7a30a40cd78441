"""Hook of MkDocs: llms.txt and llms-full.txt, for coding agents, from the pages and the sources.

llms.txt (https://llmstxt.org) has what code that locks needs: the patterns, the choice of a type, the errors, the
signatures, and a map of the pages. llms-full.txt has all pages, in the order of the navigation.
"""

import logging
import posixpath
import re
from pathlib import Path

log = logging.getLogger("mkdocs.hooks.llms")
root = Path(__file__).resolve().parents[2]
longest = 36_000  # characters of llms.txt: some nine thousand tokens
pages = {}  # the text of each, by its path in docs/

link = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
declared = re.compile(r"(?m)^((?://[^\n]*\n)*)func (?:\(\w+ \*?(\w+)\) )?([A-Z]\w*)(.*?) \{")
# The methods that code which locks calls. The others are in the package documentation.
receivers = ("", "Client", "Lease", "CronJob", "Once", "Election", "PermitSemaphore", "locker")


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri.startswith("maintaining/"):
        return markdown  # for people who change the library
    base = config.site_url.rstrip("/") + "/latest/"

    def absolute(match):
        image, text, target = match.groups()
        if image:
            return "(drawing: %s)" % text
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path, anchor, name = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), path)) if path else page.file.src_uri
        linked = files.get_file_from_path(path)
        return "[%s](%s%s)" % (text, base + linked.url if linked else path, anchor + name)

    text = re.sub(r"(?m)^<!--.*?-->\n", "", markdown)
    pages[page.file.src_uri] = "".join(
        part if part.startswith("```") else link.sub(absolute, part)
        for part in re.split(r"(?ms)(^```.*?^```$)", text)
    )
    return markdown


def section(page, title):
    """The text of a section, without its heading."""
    found = re.search(r"(?ms)^## %s\n(.*?)(?=^## |\Z)" % re.escape(title), pages.get(page, ""))
    if not found:
        log.warning("llms.txt: %s has no section %r", page, title)
        return ""
    return found[1].strip() + "\n"


def first_sentence(comment):
    text = re.sub(r"\[(\*?[\w.]+)\]", r"\1", " ".join(re.sub(r"(?m)^// ?", "", comment).split()))
    return re.split(r"(?<=[.:;]) ", text, maxsplit=1)[0].rstrip(":;.")


def signatures():
    """The functions and methods of the root, options with what they do."""
    calls, options = [], []
    for file in sorted(root.glob("*.go")):
        if file.name.endswith("_test.go"):
            continue
        for comment, receiver, name, rest in declared.findall(file.read_text(encoding="utf-8")):
            if receiver not in receivers or "\n" in rest:
                continue
            if not receiver and name.startswith("With"):
                options.append("func %s%s // %s" % (name, rest, first_sentence(comment).removeprefix(name + " ")))
            elif receiver == "locker":
                calls.append("func (any lock) %s%s" % (name, rest))
            else:
                calls.append("func %s%s%s" % ("(*%s) " % receiver if receiver else "", name, rest))
    if len(calls) < 60 or len(options) < 25:
        log.warning("llms.txt: %d signatures and %d options were found", len(calls), len(options))
    return "```go\n%s\n\n%s\n```\n" % ("\n".join(calls), "\n".join(options))


def about(text):
    """The first sentence of a page."""
    for line in text.split("\n\n")[1:]:
        line = " ".join(line.split())
        if line and line[0] not in "#!|<`-(*":
            return re.split(r"(?<=[.]) ", link.sub(r"\2", line), maxsplit=1)[0]
    return ""


def on_post_build(config):
    # In the order of the navigation, which has each page.
    ordered = re.findall(r"(?m)^ +- [^\n]*: ([\w-]+\.md)$", Path(config.config_file_path).read_text(encoding="utf-8"))
    if set(ordered) != set(pages):
        log.warning("llms-full.txt: these pages are in one place only: %s", set(ordered) ^ set(pages))
    base = config.site_url.rstrip("/") + "/latest/"
    go = re.search(r"(?m)^go (\d+\.\d+)", (root / "go.mod").read_text(encoding="utf-8"))[1]
    url = lambda page: base + ("" if page == "index.md" else page.removesuffix(".md") + "/")
    title = lambda page: re.search(r"(?m)^# (.*)$", pages[page])[1]
    head = (
        "# rlock\n\n> %s. Module github.com/go-rlock/rlock, Go %s or later. A lock renews itself, ends a context when it is lost, "
        "and gives each exclusive hold a fencing token.\n\n" % (config.site_description, go)
    )
    patterns = pages["patterns.md"].partition("\n## What a test finds")[0].partition("\n## ")
    short = head + "".join(
        "## %s\n\n%s\n" % part
        for part in (
            ("Correct code in ten patterns", re.sub(r"(?m)^## ", "### ", patterns[1] + patterns[2]).strip() + "\n"),
            ("From the job to the type", section("choosing.md", "From the job to the type")),
            ("Errors", section("errors.md", "Each error")),
            ("Signatures", signatures()),
            ("Pages", "".join(("- [%s](%s): %s" % (title(p), url(p), about(pages[p]))).rstrip(": ") + "\n" for p in ordered)),
            ("Optional", "- [All pages as one text](%sllms-full.txt)\n" % base),
        )
    )
    if len(short) > longest:
        log.warning("llms.txt has %d characters; %d is the bound", len(short), longest)
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(short, encoding="utf-8")
    (site / "llms-full.txt").write_text(
        head + "".join("%s\n\nSource: %s\n\n" % (pages[p].strip(), url(p)) for p in ordered), encoding="utf-8"
    )
