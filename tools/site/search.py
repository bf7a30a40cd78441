"""Fails if the search of the site does not know the words inside of names. Usage: search.py SITE"""

import json
import re
import sys

index = json.load(open(sys.argv[1] + "/search/search_index.json", encoding="utf-8"))
separator = re.compile(index["config"]["separator"])
for word, least in {"timeout": 8, "extend": 4, "quarantine": 4}.items():
    pages = {
        doc["location"].partition("#")[0]
        for doc in index["docs"]
        if word in (part.lower() for part in separator.split(re.sub("<[^>]*>", " ", doc["title"] + " " + doc["text"])))
    }
    if len(pages) < least:
        sys.exit("search finds %r on %d pages only: %s" % (word, len(pages), sorted(pages)))
    print("search finds %r on %d pages" % (word, len(pages)))
