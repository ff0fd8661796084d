"""Pictures of the documentation: PNG with few colours, a third of the size."""

from pathlib import Path

from PIL import Image

from annopipe.simulation import ScheduleTimeline

__all__ = ["save_picture", "shrink"]

_COLOURS = 64


def save_picture(timeline: ScheduleTimeline, path: Path, title: str) -> None:
    """Draw a timeline into a small file."""
    timeline.to_png(path, title)
    shrink(path, path)


def shrink(source: Path, target: Path) -> None:
    """Write a picture again with few colours."""
    with Image.open(source) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    target.parent.mkdir(parents=True, exist_ok=True)
    few.save(target, optimize=True)
