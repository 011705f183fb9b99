"""One HTML page of a picture, which needs nothing but itself.

Texts come from models and are hostile until shown otherwise. They stand in a block of JSON in which no
"<" is left, and the script puts them into text nodes alone. The page's policy lets one script run, by its
hash, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template

from forkdecode.calls.picture.records import Picture


def page(picture: Picture) -> str:
    """The page, in ASCII."""
    folder = files("forkdecode.calls.picture")
    script, style, body = (
        folder.joinpath(name).read_text("utf-8") for name in ("page.js", "page.css", "page.html")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    filled = Template(body).substitute(
        title=html.escape(picture.title),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=style,
        script=script,
        data=_embedded(picture),
    )
    return filled.encode("ascii", "xmlcharrefreplace").decode()


def _embedded(picture: Picture) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(picture.to_json(), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
