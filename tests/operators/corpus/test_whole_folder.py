from __future__ import annotations

import pytest

from engine.errors import InvalidInput, StorageError
from operators.corpus.whole_folder import whole_folder


def test_a_folder_gets_its_name_when_it_is_whole(tmp_path):
    with whole_folder(tmp_path / "made") as unfinished:
        (unfinished / "one").write_text("1")
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "one").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "made") as unfinished:
        (unfinished / "one").write_text("1")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    left = tmp_path / ".made.unfinished" / "made"
    left.mkdir(parents=True)
    (left / "half").write_text("1")
    with whole_folder(tmp_path / "made") as unfinished:
        assert not list(unfinished.iterdir())
    assert not left.parent.exists()


def test_two_processes_do_not_fill_one_folder(tmp_path):
    with whole_folder(tmp_path / "made") as unfinished:
        (unfinished / "one").write_text("1")
        with pytest.raises(InvalidInput, match="another process is making"), whole_folder(tmp_path / "made"):
            pass
    assert (tmp_path / "made" / "one").exists()


def test_an_empty_folder_may_be_filled_and_a_full_one_not(tmp_path):
    (tmp_path / "made").mkdir()
    with whole_folder(tmp_path / "made") as unfinished:
        (unfinished / "one").write_text("1")
    with pytest.raises(InvalidInput, match="is there already"), whole_folder(tmp_path / "made"):
        pass
    with pytest.raises(InvalidInput, match="is there already"), whole_folder(tmp_path / "made" / "one"):
        pass


def test_parents_are_made(tmp_path):
    with whole_folder(tmp_path / "a" / "b"):
        pass
    assert (tmp_path / "a" / "b").is_dir()


def test_a_disk_that_refuses_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is not made"), whole_folder(tmp_path / "file" / "made"):
        pass
