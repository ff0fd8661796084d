"""What a run is asked for: rules, extents and anchors, from the command line and ``[tool.annopipe.rewrite]``."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from annopipe.errors import RewriteError
from annopipe.toml_files import parse_toml
from rewriters.anchors import EXCHANGE, ROLES
from rewriters.patches import Patch
from rewriters.vocabularies import checked

__all__ = ["EXTENTS", "IMPORT_STYLES", "Settings", "fits", "from_table", "load"]

EXTENTS = ("statement", "block", "call")
IMPORT_STYLES = ("module", "names")
_NOT_IN_FILES = ("unsafe", "patches", "role")  # a permission or an answer for one call; what a run finds out
_TABLE = "[tool.annopipe.rewrite]"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run.

    Args:
        select: codes of rules, or their beginnings: "AP1" is every rule that tags.
        ignore: the same, left out.
        unsafe: rules and extents that change what the code does may be applied.
        role: what an all-to-all is when nothing tells.
        extent: what a tag covers: the statement, neighbouring statements together, or the call alone (unsafe).
        vocabulary: of ``vocabularies``, for tags that are converted to PyTorch's.
        include_generated: rewrite files that are generated from others, too.
        anchors: further anchors, as (role, name, needs).
        regions: further names of regions that are not misspelt.
        nano_batches: into how many parts AP401 cuts.
        nano_split: arguments of layers that have a row per sample, and so are cut, too.
        nano_whole: arguments of layers that have not.
        split_at: layers at which AP403 puts a split mark.
        exclude: patterns of paths that are left out.
        per_file_ignores: codes to leave out, by pattern of paths.
        patches: what patch lists of all files say, for AP404.

    >>> Settings(ignore=("AP104",)).wants("AP104")
    False
    """

    select: tuple[str, ...] = ("AP1", "AP302")
    ignore: tuple[str, ...] = ()
    unsafe: bool = False
    role: str | None = None
    extent: str = "statement"
    import_style: str = "module"
    vocabulary: str = "torchtitan"
    include_generated: bool = False
    anchors: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    regions: tuple[str, ...] = ()
    nano_batches: int = 2
    nano_split: tuple[str, ...] = ()
    nano_whole: tuple[str, ...] = ()
    split_at: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    patches: tuple[Patch, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.extent not in EXTENTS:
            raise RewriteError(f"extent {self.extent!r}: one of {', '.join(EXTENTS)}")
        if self.extent == "call" and not self.unsafe:
            raise RewriteError("extent 'call' takes calls out of their statements: it needs --unsafe")
        if self.import_style not in IMPORT_STYLES:
            raise RewriteError(f"import-style {self.import_style!r}: one of {', '.join(IMPORT_STYLES)}")
        if self.role is not None and self.role not in ROLES:
            raise RewriteError(f"role {self.role!r}: one of {', '.join(ROLES)}")
        checked(self.vocabulary)
        if self.nano_batches < 2:
            raise RewriteError(f"nano-batches {self.nano_batches}: at least 2")

    def wants(self, code: str) -> bool:
        """Whether a rule is selected."""
        return code.startswith(self.select) and not (self.ignore and code.startswith(self.ignore))

    def for_file(self, path: str) -> "Settings":
        """The settings with what ``per_file_ignores`` says of a file."""
        codes = [c for pattern, codes in self.per_file_ignores if fits(path, pattern) for c in codes]
        return dataclasses.replace(self, ignore=(*self.ignore, *codes)) if codes else self


def fits(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern, from its beginning or from one of its folders on.

    >>> fits("/home/me/models/vision/vit.py", "models/vision/*")
    True
    """
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, f"*/{pattern}")


def load(start: Path, config: Path | None = None) -> dict[str, Any]:
    """The options in the nearest pyproject.toml at or above ``start``, or in ``config``, as fields of ``Settings``.

    Raises:
        RewriteError: it cannot be read, or has options that there are not.
    """
    if config is not None and not config.is_file():
        raise RewriteError(f"no such file: {config}")
    paths = [config] if config is not None else [folder / "pyproject.toml" for folder in (start, *start.parents)]
    for path in paths:
        if path.is_file():
            try:
                table = parse_toml(path.read_text(encoding="utf-8"))
            except (ValueError, OSError) as error:
                raise RewriteError(f"{path}: {error}") from error
            for name in ("tool", "annopipe", "rewrite"):
                table = table.get(name, {})
                if not isinstance(table, dict):
                    raise RewriteError(f"{path}: {name} of {_TABLE} must be a table")
            return from_table(table, str(path))
    return {}


def from_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of ``Settings`` that a table of TOML gives.

    >>> from_table({"select": ["AP1"], "anchors": {"dispatch": ["self.my_router.send"]}}, "pyproject.toml")
    {'select': ('AP1',), 'anchors': (('dispatch', 'self.my_router.send', ()),)}
    """
    kinds = {
        field.name.replace("_", "-"): field for field in dataclasses.fields(Settings) if field.name not in _NOT_IN_FILES
    }
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            raise RewriteError(f"{where}, {_TABLE}: no option {key!r}; there are {', '.join(sorted(kinds))}")
        field = kinds[key]
        if key == "anchors":
            found[field.name] = _anchors(value, where)
        elif key == "per-file-ignores":
            _check(isinstance(value, dict), where, key, "a table of lists of codes")
            found[field.name] = tuple((pattern, _strings(codes, where, key)) for pattern, codes in value.items())
        elif isinstance(field.default, tuple):
            found[field.name] = _strings(value, where, key)
        else:
            kind = str if field.default is None else type(field.default)
            _check(type(value) is kind, where, key, f"a {kind.__name__}")
            found[field.name] = value
    return found


def _anchors(table: Any, where: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Lists of names by role; an entry with a condition is ``{name = "self.route", needs = ["experts"]}``."""
    _check(isinstance(table, dict), where, "anchors", "a table of lists of names by role")
    found = []
    for role, entries in table.items():
        if role not in (*ROLES, EXCHANGE):
            raise RewriteError(
                f"{where}, {_TABLE} anchors: no role {role!r}; there are {', '.join((*ROLES, EXCHANGE))}"
            )
        _check(isinstance(entries, list), where, f"anchors.{role}", "a list")
        for entry in entries:
            if isinstance(entry, dict) and entry.keys() <= {"name", "needs"} and isinstance(entry.get("name"), str):
                needs = _strings(entry.get("needs", []), where, f"anchors.{role}")
                found.append((role, entry["name"], needs))
            else:
                _check(isinstance(entry, str), where, f"anchors.{role}", 'names, or {name = "...", needs = ["..."]}')
                found.append((role, entry, ()))
            name = found[-1][1]
            _check(
                all(part.isidentifier() for part in name.split(".")),
                where,
                f"anchors.{role}",
                f"dotted names, not {name!r}",
            )
    return tuple(found)


def _strings(value: Any, where: str, key: str) -> tuple[str, ...]:
    _check(isinstance(value, Sequence) and all(isinstance(v, str) for v in value), where, key, "a list of strings")
    return tuple(value) if not isinstance(value, str) else (value,)


def _check(holds: bool, where: str, key: str, what: str) -> None:
    if not holds:
        raise RewriteError(f"{where}, {_TABLE}: {key} must be {what}")
