"""Make what is made in docs/: the gallery of schedules with its pictures, and the pictures of the guides.

python -m tools.make_docs

Pictures of a guide are what its own code writes.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.gallery import gallery, save_pictures
from tools.pages import run_python
from tools.pictures import shrink

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
GUIDES = ("schedules.md", "concepts.md")  # whose code makes pictures


def main() -> None:
    """Write everything, and say what."""
    (DOCS / "schedule_gallery.md").write_text(gallery(), encoding="utf-8")
    save_pictures(IMAGES)
    for guide in GUIDES:
        save_guide_pictures(DOCS / guide, IMAGES)
    size = sum(path.stat().st_size for path in IMAGES.glob("*.png"))
    print(f"wrote {DOCS / 'schedule_gallery.md'} and {IMAGES}: {size / 1e6:.2f} MB of pictures")


def save_guide_pictures(guide: Path, images: Path) -> None:
    """Run the code of a guide in an empty folder and keep the pictures that the guide shows."""
    page = guide.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        for _ in run_python(page, guide.name):
            pass
        for picture in sorted(Path().glob("*.png")):
            if f"(images/{picture.name})" in page:
                shrink(picture, images / picture.name)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main()
