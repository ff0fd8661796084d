"""The laws hold whatever a file looks like: formats, comments, imports, and files put together at random."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewriters import Settings, rewrite
from rewriters.safety import comments, without_tags

STRIP = Settings(select=("AP301",))


def tag(text: str, **options: object) -> str:
    result = rewrite(text.encode(), Settings(**options))
    assert result.error == ""
    return result.after.decode()


def strip(text: str) -> str:
    return rewrite(text.encode(), STRIP).after.decode()


BLOCK = "class B:\n    def f(self, x):\n        y = self.experts(x)\n        return y\n"

FORMATS = {
    "two spaces": BLOCK.replace("    ", "  "),
    "tabs": BLOCK.replace("    ", "\t"),
    "carriage returns": BLOCK.replace("\n", "\r\n"),
    "mixed newlines": BLOCK.replace("x)\n", "x)\r\n", 1),
    "no final newline": BLOCK.rstrip("\n"),
    "docstring": f'"""Doc."""\n\n\n{BLOCK}',
    "future and docstring": f'"""Doc."""\nfrom __future__ import annotations\n\n{BLOCK}',
    "encoding": f"# -*- coding: utf-8 -*-\n# caf\u00e9\n{BLOCK}",
    "relative imports": f"import os\n\n# ours\nfrom . import x  # why\nfrom .y import z\n\n{BLOCK}",
    "sorted imports": f"import os\n\nimport aaa\n# torch\nimport torch\n\n{BLOCK}",
    "only the standard library": f"import os\nimport re\n\n\n{BLOCK}",
    "header only": f"# licence\n\n{BLOCK}",
    "parentheses": BLOCK.replace(
        "(x)\n        return", "(\n            x,  # all\n\n            # more\n        )\n        return"
    ),
    "hanging at the margin": BLOCK.replace("(x)\n        return", "(\nx,\n  y)\n        return"),
    "backslash": BLOCK.replace("y = self", "y = \\\n   self"),
    "triple quotes": BLOCK.replace("(x)\n        return", '("""\na\n        b\n""")\n        return'),
    "comments": BLOCK.replace("        y", "        # above\n\n        # again\n        y").replace(
        "(x)\n", "(x)  # at\n", 1
    ),
    "comment at the end": BLOCK.replace("        return y\n", "        # last of f\n    # last of B\n# last\n"),
    "the last statement": BLOCK.replace("        return y\n", "\n\n\ndef g():\n    pass\n"),
    "blank lines at the end": BLOCK.replace("        return y\n", "\n\n"),
    "in a try": BLOCK.replace(
        "        y = self.experts(x)\n",
        "        try:\n            y = self.experts(x)\n        finally:\n            pass\n",
    ),
    "else": BLOCK.replace(
        "        y = self.experts(x)\n",
        "        if x:\n            pass\n        else:\n            # so\n            y = self.experts(x)\n",
    ),
    "match": BLOCK.replace(
        "        y = self.experts(x)\n", "        match x:\n            case 1:\n                y = self.experts(x)\n"
    ),
    "annotated": BLOCK.replace("y = self", "y: int = self"),
    "added to": BLOCK.replace("y = self", "y += self"),
    "walrus": BLOCK.replace("y = self.experts(x)", "z = (y := self.experts(x))"),
    "list": BLOCK.replace("y = self.experts(x)", "y = [self.experts(z) for z in x]"),
}


@pytest.mark.parametrize("text", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("extent", ["statement", "block"])
def test_tags_come_and_go_to_the_byte(text: str, extent: str) -> None:
    tagged = tag(text, extent=extent)
    assert "region(" in tagged
    assert tag(tagged, extent=extent) == tagged
    assert strip(tagged) == text
    assert comments(text.encode()) == comments(tagged.encode())
    assert without_tags(ast.parse(tagged)) == without_tags(ast.parse(text))


IMPORTS = {
    "import annopipe as ap\n": "ap.region",
    "import annopipe\n": "annopipe.region",
    "from annopipe import region as r\n": "r(",
    "from annopipe import comm\n": "annopipe.region",
    "annopipe = 3\n": "annopipe_.region",
    "def f(ap):\n    import annopipe as ap\n": "annopipe.region",
    "import annopipe as ap\nap = None\n": "annopipe.region",
    "def g():\n    import annopipe\n    annopipe.x()\n": "annopipe.region",
}


@pytest.mark.parametrize(("head", "expected"), IMPORTS.items())
def test_the_import_that_is_there_is_used(head: str, expected: str) -> None:
    tagged = tag(head + BLOCK)
    assert f"with {expected}" in tagged
    assert tagged.count("import annopipe") <= 1 + head.count("import annopipe")
    compile(tagged, "tagged", "exec")


def test_neighbours_of_one_role_share_a_tag_if_asked() -> None:
    text = BLOCK.replace("        return", "        # twice\n        x = self.experts(y)\n        return")
    tagged = tag(text, extent="block")
    assert tagged.count("with") == 1
    assert strip(tagged) == text


def test_a_tag_around_the_call_alone_takes_it_out() -> None:
    text = (
        "class B:\n    def f(self, x, out):\n        # sum\n        out = out + self.experts(x) * self.shared_mlp(x)\n"
    )
    expected = """\
import annopipe
class B:
    def f(self, x, out):
        # sum
        with annopipe.region("experts"):
            experts_output = self.experts(x)
        with annopipe.region("shared"):
            shared_output = self.shared_mlp(x)
        out = out + experts_output * shared_output
"""
    assert tag(text, extent="call", unsafe=True) == expected
    assert tag(expected, extent="call", unsafe=True) == expected


@pytest.mark.parametrize(
    "value", ["x and self.experts(x)", "self.experts(x) if x else x", "self.experts(self.combine(x))"]
)
def test_a_call_that_may_not_run_stays_in_its_statement(value: str) -> None:
    result = rewrite(
        f"class B:\n    def f(self, x):\n        y = 1 + ({value})\n".encode(), Settings(extent="call", unsafe=True)
    )
    assert {site.action for site in result.sites} == {"refused"}


def test_comments_say_what_to_skip() -> None:
    assert tag(f"# annopipe: skip-file\n{BLOCK}") == f"# annopipe: skip-file\n{BLOCK}"
    for skipped in (
        BLOCK.replace("(x)\n        return", "(x)  # annopipe: skip\n        return"),
        BLOCK.replace("        y", "        # annopipe: skip\n        y"),
    ):
        assert tag(skipped) == skipped


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"class B:\n  def f(self):\n    return self.experts(\n", "cannot be parsed"),
        (f"\f{BLOCK}".encode(), "does not write this file back"),
        (b"# coding: nonsense\nself.experts(x)\n", "cannot be read as Python"),
        (b"# coding: utf-8\n# \xff\nself.experts(x)\n", "cannot be read as Python"),
    ],
)
def test_what_cannot_be_read_is_told(data: bytes, message: str) -> None:
    result = rewrite(data)
    assert message in result.error
    assert result.after == data


def test_a_file_in_another_encoding_keeps_it() -> None:
    data = f"# -*- coding: latin-1 -*-\n# caf\u00e9\n{BLOCK}".encode("latin-1")
    tagged = rewrite(data)
    assert b"caf\xe9" in tagged.after
    assert rewrite(tagged.after, STRIP).after == data


LINES = st.sampled_from(
    [
        "x = self.experts(x)",
        "x = self.experts(x)  # behind",
        "# a comment",
        "",
        "x = self.combine(\n    x,  # inside\n)",
        "for expert in self.experts:\n    x = expert(x)\n    # in the loop",
        "if x:\n    return self.experts(x)\n# after",
        "with lock:\n    x = self.dispatch(x)",
        "try:\n    x = self.shared_experts(x)\nexcept E:\n    # nothing\n    pass",
        "def inner(y):\n    return self.gate(y)",
        "x = all_to_all(x, group)",
        "pass",
        "x = yield self.experts(x)",
        "g = lambda y: self.experts(y)",
        "h = x; x = self.experts(h)",
        "if x: x = self.experts(x)",
        "s = '''\ntext\n  self.experts(x)\n'''",
    ]
)


@given(
    st.lists(LINES, max_size=8), st.sampled_from(["    ", "\t", "  "]), st.sampled_from(["\n", "\r\n"]), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_files_put_together_at_random(lines: list[str], indent: str, newline: str, final: bool) -> None:
    body = "\n".join([*lines, "return x"])
    inside = "\n".join(indent * 2 + line if line else line for line in body.split("\n"))
    text = f"import torch\n\nclass B(torch.nn.Module):\n{indent}def f(self, x):\n{inside}" + ("\n" if final else "")
    text = text.replace("\n", newline)
    tagged = tag(text)
    assert tag(tagged) == tagged
    assert strip(tagged) == text
    assert comments(text.encode()) == comments(tagged.encode())


ANNOTATED = """\
import torch.fx.traceback as tb

@tb.annotate_fn({{{key}: {value}}})
def f(x):
    with tb.annotate({{{key}: {value}}}):  # why
        return x
"""


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize(
    ("vocabulary", "key", "value"),
    [
        ("torchtitan", "EP", "dispatch"),
        ("torchtitan", "EP", "compute"),
        ("torchtitan", "EP_token_exchange", "combine"),
        ("torchtitan", "EP_token_count_sync", "dispatch"),
        ("autoparallel", "comm_region", "token_combine"),
        ("comm_region", "comm_region", "dispatch"),
    ],
)
def test_conversion_and_back_is_identity(vocabulary: str, key: str, value: str, quote: str) -> None:
    text = ANNOTATED.format(key=f"{quote}{key}{quote}", value=f"{quote}{value}{quote}")
    ours = rewrite(text.encode(), Settings(select=("AP201",)))
    assert b"annotate(" not in ours.after
    back = rewrite(ours.after, Settings(select=("AP202",), vocabulary=vocabulary))
    assert back.after.decode() == text


def test_every_region_converts_to_the_keys_that_annopipe_writes_and_back() -> None:
    text = 'import annopipe\nimport torch\nwith annopipe.comm("a/b"), annopipe.nano_batch(1):\n    pass\n'
    theirs = rewrite(text.encode(), Settings(select=("AP202",), vocabulary="annopipe"))
    assert b'annotate({"annopipe": "a/b", "annopipe_kind": "comm"})' in theirs.after
    assert rewrite(theirs.after, Settings(select=("AP201",))).after.decode() == text


def test_a_generated_file_is_left_alone_and_its_source_is_named() -> None:
    banner = "#  This file was automatically generated from src/modular_mine.py.\n#  Do NOT edit\n"
    result = rewrite(f"{banner}{BLOCK}".encode())
    assert not result.changed
    (site,) = result.sites
    assert site.reason == "edit src/modular_mine.py, from which this file is generated, or give --include-generated"
    assert rewrite(f"{banner}{BLOCK}".encode(), Settings(include_generated=True)).changed
    unnamed = rewrite(f"# @{'generated'}\n{BLOCK}".encode())
    assert unnamed.sites[0].reason.startswith("the file is generated: edit its source")


def test_a_role_is_taken_for_an_exchange_that_nothing_tells_about() -> None:
    text = "def exchange(x, group):\n    return all_to_all(x, group)\n"
    assert 'comm("combine")' in tag(text, role="combine")
