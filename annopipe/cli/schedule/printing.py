"""A schedule's actions, and a specification, as text that fits a width."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annopipe.scheduling.programs import Programs
    from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["grid_of_actions", "specification"]


def specification(spec: "ScheduleSpec", width: int) -> str:
    """Its repr; where that is too long, one field a line, and one entry of a long field a line.

    >>> import annopipe as ap
    >>> print(specification(ap.schedule_spec("gpipe", 2, 4), 60))
    ScheduleSpec(
        Placement(linear: rank 0: 0, rank 1: 1),
        4,
        phases=('m : F', 'm : B'),
        name='gpipe',
    )
    """
    text = repr(spec)
    if len(text) <= width:
        return text
    default = type(spec)(spec.placement, spec.microbatches)
    lines = [f"    {spec.placement!r},", f"    {spec.microbatches!r},"]
    for name in type(spec).__dataclass_fields__:
        value = getattr(spec, name)
        if name not in ("placement", "microbatches") and value != getattr(default, name):
            lines += _field(name, value, width)
    return "\n".join(["ScheduleSpec(", *lines, ")"])


def _field(name: str, value: Any, width: int) -> list[str]:
    line = f"    {name}={value!r},"
    if len(line) <= width or not isinstance(value, tuple):
        return [line]
    return [f"    {name}=(", *(f"        {entry!r}," for entry in value), "    ),"]


def grid_of_actions(programs: "Programs", width: int) -> str:
    """All actions, a row per rank, in as many bands of steps as the width asks for.

    >>> import annopipe as ap
    >>> print(grid_of_actions(ap.schedule("1f1b", 2, 2).programs, 26))
    step   0    1    2    3
    rank 0 0F0  0F1  0B0  0B1
    rank 1 1F0  1B0  1F1  1B1
    """
    texts = programs.texts()
    columns = [
        [str(step), *(row[step] if step < len(row) else "" for row in texts)] for step in range(max(map(len, texts)))
    ]
    heads = ["step", *(f"rank {rank}" for rank in range(len(texts)))]
    margin = max(map(len, heads)) + 1
    bands: list[list[str]] = []
    for column in columns:
        cell = max(map(len, column))
        if not bands or max(map(len, bands[-1])) + cell > width:
            bands.append([head.ljust(margin) for head in heads])
        bands[-1] = [line + text.ljust(cell + 2) for line, text in zip(bands[-1], column, strict=True)]
    return "\n\n".join("\n".join(line.rstrip() for line in band) for band in bands)
