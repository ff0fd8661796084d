import pytest

from annopipe.errors import AnnopipeError
from annopipe.simulation.files import place_for, write_text


def test_missing_folders_are_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "page.html", "é")
    assert (tmp_path / "a" / "b" / "page.html").read_text(encoding="utf-8") == "é"


def test_a_folder_in_place_of_the_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(AnnopipeError, match=f"cannot write {tmp_path}: Is a directory; choose a file"):
        write_text(tmp_path, "")


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AnnopipeError, match="cannot write "):
        write_text(tmp_path / "file" / "page.html", "")


def test_other_errors_inside_the_block_are_not_touched(tmp_path):
    with pytest.raises(ZeroDivisionError), place_for(tmp_path / "x"):
        1 / 0  # noqa: B018
