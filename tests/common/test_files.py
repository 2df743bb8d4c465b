"""Files and folders that are written whole or not at all."""

import json
import math

import pytest

from linformer_hf.common.files import (
    check_new_folder,
    check_own_folder,
    read_json,
    whole_or_nothing,
    write_json,
    write_text,
    written_aside,
)


def test_a_file_that_is_not_finished_leaves_the_old_one(tmp_path):
    file = write_text(tmp_path / "new" / "a.txt", "old")
    with pytest.raises(KeyboardInterrupt), written_aside(file) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]


def test_a_json_that_cannot_be_written_leaves_the_old_one(tmp_path):
    file = write_json(tmp_path / "a.json", {"b": 1, "a": [math.nan]})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert file.read_text() == '{"a": ["NaN"], "b": 1}\n'


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[1]", "holds a JSON list"), (None, "there is no such file")]
)
def test_what_is_no_json_object_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.json:? {message}"):
        read_json(tmp_path / "a.json")


def test_a_new_folder_is_one_that_holds_nothing(tmp_path):
    assert check_new_folder(tmp_path) == check_new_folder(str(tmp_path)) == tmp_path
    assert check_new_folder(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        check_new_folder(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "a.txt", tmp_path / "a.txt" / "below", tmp_path / "dangling"):
        with pytest.raises(ValueError, match=r"(a\.txt|dangling) is no folder; name another one"):
            check_new_folder(path)


def test_an_own_folder_is_new_or_holds_what_the_task_left(tmp_path):
    def is_own(names):
        return "spectrum.json" in names

    assert check_own_folder(tmp_path / "new", is_own) == tmp_path / "new"
    (tmp_path / "state.part").write_text("half")
    assert check_own_folder(tmp_path, is_own) == tmp_path
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"holds something else \(thesis.tex\); name a new --output_dir"):
        check_own_folder(tmp_path, is_own)
    (tmp_path / "spectrum.json").write_text("{}")
    assert check_own_folder(tmp_path, is_own) == tmp_path
    with pytest.raises(ValueError, match="is no folder"):
        check_own_folder(tmp_path / "thesis.tex", is_own)


def test_an_error_leaves_no_half_made_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_or_nothing(tmp_path / "a"):
        (tmp_path / "a" / "config.json").write_text(json.dumps({}))
        raise ZeroDivisionError
    assert not (tmp_path / "a").exists()


def test_an_error_leaves_an_empty_folder_empty(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ZeroDivisionError), whole_or_nothing(tmp_path / "link"):
        (tmp_path / "link" / "below").mkdir()
        (tmp_path / "link" / "below" / "config.json").write_text("{}")
        (tmp_path / "link" / "a.txt").write_text("a")
        raise ZeroDivisionError
    assert list((tmp_path / "mine").iterdir()) == []
    assert (tmp_path / "link").is_symlink()


def test_a_list_is_read_where_one_is_asked_for(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    assert read_json(tmp_path / "a.json", list) == [1]
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a.json holds a JSON dict, not a list"):
        read_json(tmp_path / "a.json", list)
