"""Reading the pages that the package writes."""

import json
import re
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "img", "link", "input", "hr"}
NASTY = """</script><script>alert("1")</script> & 'x' @@DATA@@"""


class Outline(HTMLParser):
    """Checks that elements nest, and keeps attributes, text and the content of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.elements: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)


def data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])
