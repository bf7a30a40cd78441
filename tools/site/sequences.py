"""Hook of MkDocs: sequences in Mermaid become drawings in the page.

The repository renders them itself; a site would fetch a script of three megabytes from elsewhere, and show the source
where it cannot. A drawing has the colors of the page, in its light and its dark form. Of Mermaid it knows what the
pages use: participants, messages, notes, and alt with else.
"""

import logging
import re
import textwrap
from html import escape

log = logging.getLogger("mkdocs.hooks.sequences")
fence = re.compile(r"(?ms)^```mermaid\n(.*?)^```$")
participant = re.compile(r"participant (\w+) as (.+)")
message = re.compile(r"(\w+)(--?)(>>|x)(\w+): (.+)")
note = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")
clear = ' style="paint-order:stroke;stroke:var(--md-default-bg-color);stroke-width:5px"'  # of the lines behind a text
letter, line = 6.4, 16  # of the text, in units of the drawing: 12 px at full size


def lines(text, width):
    return textwrap.wrap(text, max(int(width / letter), 12)) or [""]


def sequence(source, warn):
    names, steps = {}, []
    for text in map(str.strip, source.splitlines()):
        if m := participant.fullmatch(text):
            names[m[1]] = m[2]
        elif m := message.fullmatch(text):
            steps.append(("message", m[1], m[4], m[2] == "--", m[3] == "x", m[5]))
        elif m := note.fullmatch(text):
            steps.append(("note", m[1], m[2] or m[1], m[3]))
        elif m := re.fullmatch(r"(alt|else) (.+)", text):
            steps.append((m[1], m[2]))
        elif text == "end":
            steps.append(("end",))
        elif text not in ("", "sequenceDiagram"):
            warn(text)
    order = list(names)
    step = 190 if len(order) < 4 else 168
    at = {name: step / 2 + step * i for i, name in enumerate(order)}
    width, y, body, begun, divided = step * len(order), 44, [], 0, []
    draw = body.append

    def write(x, top, rows, anchor="middle", more=""):
        for i, row in enumerate(rows):
            draw('<text x="%g" y="%g" text-anchor="%s"%s>%s</text>' % (x, top + line * i, anchor, more, escape(row)))

    for s in steps:
        if s[0] == "message":
            _, a, b, dashed, lost, text = s
            x1, x2 = at[a], at[b]
            rows = lines(text, abs(x2 - x1) - 14)
            write((x1 + x2) / 2, y + 12, rows, more=clear)
            y += line * len(rows) + 6
            end = x1 + (x2 - x1) * 0.55 if lost else x2
            head = -8 if x2 > x1 else 8
            draw('<path d="M%g %gH%g" fill="none" stroke="currentColor" stroke-width="1.5"%s/>' % (x1, y, end, ' stroke-dasharray="5 4"' if dashed else ""))
            if lost:
                draw('<path d="M%g %gl10 10m0 -10l-10 10" stroke="#d32f2f" stroke-width="2"/>' % (end - 5, y - 5))
            else:
                draw('<path d="M%g %gl%g -4v8z" fill="currentColor"/>' % (end, y, head))
            y += 12
        elif s[0] == "note":
            _, a, b, text = s
            rows = lines(text, step - 34 if a == b else at[b] - at[a] + step / 2)
            wide = min(max(map(len, rows)) * letter + 24, step - 6) if a == b else at[b] - at[a] + step / 2
            x = (at[a] + at[b]) / 2
            box = 'x="%g" y="%g" width="%g" height="%g" rx="3"' % (x - wide / 2, y, wide, line * len(rows) + 8)
            draw('<rect %s fill="var(--md-default-bg-color)"/><rect %s fill="#f9a825" fill-opacity=".18" stroke="#f9a825"/>' % (box, box))
            write(x, y + line, rows)
            y += line * len(rows) + 20
        else:
            if s[0] == "alt":
                begun = y
            elif s[0] == "else":
                divided.append(y)
            else:
                draw('<rect x="4" y="%g" width="%g" height="%g" fill="none" stroke="currentColor" stroke-opacity=".5"/>' % (begun, width - 8, y - begun))
                for at_y in divided:
                    draw('<path d="M4 %gH%g" stroke="currentColor" stroke-opacity=".5" stroke-dasharray="4 4"/>' % (at_y, width - 4))
                y += 10
                continue
            write(12, y + line, [s[1] if s[0] == "alt" else "or " + s[1]], "start", ' font-style="italic"')
            y += line + 14
    said = "; ".join("%s to %s: %s" % (names[s[1]], names[s[2]], s[5]) if s[0] == "message" else s[-1] for s in steps if len(s) > 1)
    heads = []
    for name, x in at.items():
        heads.append('<path d="M%g 34V%g" stroke="currentColor" stroke-opacity=".35"/>' % (x, y))
        heads.append('<rect x="%g" y="6" width="%g" height="28" rx="4" fill="none" stroke="currentColor"/>' % (x - step / 2 + 14, step - 28))
        heads.append('<text x="%g" y="25" text-anchor="middle" font-weight="bold">%s</text>' % (x, escape(names[name])))
    # A text is readable on a phone too: the drawing then scrolls in its frame.
    return (
        '<div style="overflow-x:auto;margin:1em 0"><svg viewBox="0 0 %g %g" width="%g" role="img" aria-label="%s" '
        'style="min-width:%grem;max-width:100%%;height:auto;color:var(--md-default-fg-color)" font-size="12" fill="currentColor" '
        'font-family="inherit">%s</svg></div>'
        % (width, y + 8, width, escape(said, quote=True), width / 24, "".join(heads + body))
    )


def on_page_markdown(markdown, page, config, files):
    def warn(text):
        log.warning("%s: this is not drawn: %s", page.file.src_uri, text)

    def replace(match):
        if not match[1].startswith("sequenceDiagram\n"):
            warn(match[1].partition("\n")[0])
        return sequence(match[1], warn)

    return fence.sub(replace, markdown)
