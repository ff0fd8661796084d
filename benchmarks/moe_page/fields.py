"""Reading plain data whose makers are not trusted: each value knows where it stands, and says so if it is not fit."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from annopipe.errors import AnnopipeError

__all__ = ["Field"]

_LONGEST = 60  # letters of a value in a message
_LARGEST = 1e300  # a number that is larger, in seconds or bytes, is damage


class Field:
    """A value, and where it stands: `rows[3].measured.seconds`.

    >>> Field({"rows": [{"pp": 4}]}, "")["rows"].items()[0]["pp"].count()
    4
    >>> Field({"rows": [{"pp": "4"}]}, "")["rows"].items()[0]["pp"].count()
    Traceback (most recent call last):
    annopipe.errors.AnnopipeError: damaged results: rows[0].pp is '4' and not a whole number of at least 1; ...
    """

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def __getitem__(self, name: str) -> "Field":
        found = self.mapping()
        if name not in found:
            place = f"{self.where} has" if self.where else "they have"
            raise AnnopipeError(f"damaged results: {place} no {name!r}; run `annopipe bench moe` again")
        return Field(found[name], f"{self.where}.{name}" if self.where else name)

    def mapping(self) -> Mapping[str, Any]:
        """What has names."""
        return self.value if isinstance(self.value, Mapping) else self._refuse("a table of names and values")

    def table(self) -> dict[str, Any]:
        """What has names, with the texts in it checked."""
        return {
            name: each.text() if isinstance(each.value, str) else each.value for name, each in self.fields().items()
        }

    def fields(self) -> "dict[str, Field]":
        """The values of what has names, which are texts."""
        names = [Field(name, f"a name in {self.where}").text() for name in self.mapping()]
        return {name: self[name] for name in names}

    def items(self, count: int | None = None) -> "list[Field]":
        """The values of a list, of `count` if given."""
        value = self.value
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or count not in (None, len(value)):
            self._refuse("a list" if count is None else f"a list of {count}")
        return [Field(each, f"{self.where}[{number}]") for number, each in enumerate(value)]

    def text(self) -> str:
        """A text that a file can hold; JSON can name halves of letters, which none can."""
        fits = isinstance(self.value, str) and not re.search("[\ud800-\udfff]", self.value)
        return self.value if fits else self._refuse("a text")

    def one_of(self, choices: Sequence[str]) -> str:
        """One of some texts."""
        return self.value if self.value in choices else self._refuse(f"one of {', '.join(choices)}")

    def flag(self) -> bool:
        """True or false."""
        return self.value if isinstance(self.value, bool) else self._refuse("true or false")

    def count(self, least: int = 1) -> int:
        """A whole number."""
        fits = isinstance(self.value, int) and not isinstance(self.value, bool) and self.value >= least
        return self.value if fits else self._refuse(f"a whole number of at least {least}")

    def number(self, *, above_zero: bool = False) -> float:
        """A finite number that is not negative."""
        value = self.value
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LARGEST
        if not fits or (above_zero and not value):
            self._refuse("a number above 0" if above_zero else "a number of at least 0")
        return float(value)

    def optional(self) -> "Field | None":
        """The field itself, or None if it holds nothing."""
        return None if self.value is None else self

    def _refuse(self, expected: str) -> Any:
        shown = repr(self.value)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}.."
        place = self.where or "the whole"
        raise AnnopipeError(f"damaged results: {place} is {shown} and not {expected}; run `annopipe bench moe` again")
