"""What a run says of itself: the headline with where it comes from, and published numbers beside those found."""

from dataclasses import dataclass

from benchmarks.moe_page.fields import Field

__all__ = ["Headline", "TalkLine", "headlines_of", "talk_line_of"]

_ABOUT = {"by": "", "of": "over ", "config": "in "}  # keys of a headline, and what stands before them


@dataclass(frozen=True, slots=True)
class Headline:
    """How many times as fast, asked and found, and the steps whose ratios lead there.

    Attributes:
        about: what was compared with what, and in which configuration; "" where the run does not say.
        least: the ratio of the rounds that are worst for it.
    """

    asked: float
    found: float
    chain: tuple[tuple[str, float], ...]
    about: str
    least: float | None


@dataclass(frozen=True, slots=True)
class TalkLine:
    """A published number beside what is found here; how says how."""

    name: str
    published: str
    found: str
    how: str


def headlines_of(whole: Field) -> tuple[Headline, ...]:
    """All of a run that has several, or the one."""
    if "headlines" in whole.mapping():
        return tuple(_headline(each) for each in whole["headlines"].items())
    one = whole["headline"].optional()
    return () if one is None else (_headline(one),)


def _headline(field: Field) -> Headline:
    given = field.mapping()
    words = (f"{before}{field[name].text()}" for name, before in _ABOUT.items() if given.get(name))
    chain = [each.items(2) for each in field["chain"].items()]
    return Headline(
        field["asked"].number(above_zero=True),
        field["found"].number(above_zero=True),
        tuple((name.text(), ratio.number(above_zero=True)) for name, ratio in chain),
        " ".join(words),
        None if given.get("least") is None else field["least"].number(above_zero=True),
    )


def talk_line_of(field: Field) -> TalkLine:
    """A published number beside the one found."""
    name, published, found, how = field.items(4)
    return TalkLine(name.text(), _said(published), _said(found), how.text())


def _said(field: Field) -> str:
    """A ratio as a gain; a text as it is; nothing for nothing.

    >>> _said(Field(1.7, "")), _said(Field("+70%", "")), _said(Field(None, ""))
    ('+70%', '+70%', '')
    """
    if field.value is None or isinstance(field.value, str):
        return field.text() if field.value else ""
    return f"{field.number(above_zero=True) - 1:+.0%}"
