"""Files are whole or not there."""

from __future__ import annotations

import errno
import json
import math
import os

import pytest

from nnarena.core.errors import StoreError
from nnarena.core.files import disk_is_full, finite, read_json, replacing, write_json, write_text


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "down" / "file.txt"
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt, OSError])
def test_an_interruption_leaves_the_old_file_and_no_litter(tmp_path, interruption):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(interruption), replacing(path) as file:
        file.write(b"half of the n")
        raise interruption
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file.txt", "x")
        assert (tmp_path / "file.txt").stat().st_mode & 0o777 == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_json_is_strict_and_comes_back(tmp_path):
    value = {"a": [1, math.nan, (2.5, math.inf)], "b": {"c": -math.inf, "d": None, "e": True, "é": "ü"}}
    write_json(tmp_path / "x.json", value)

    def refuse(word):
        raise AssertionError(word)

    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=refuse) == read_json(tmp_path / "x.json")
    assert read_json(tmp_path / "x.json") == {
        "a": [1, None, [2.5, None]],
        "b": {"c": None, "d": None, "e": True, "é": "ü"},
    }


def test_finite_numbers_are_left_alone():
    assert finite({"a": 1e308, "b": -0.0, "c": 10**400}) == {"a": 1e308, "b": -0.0, "c": 10**400}


@pytest.mark.parametrize("damage", [b"", b'{"a": 1', b"\xff\xfe\x00"])
def test_damaged_json_is_a_sentence_with_the_file(tmp_path, damage):
    (tmp_path / "x.json").write_bytes(damage)
    with pytest.raises(StoreError, match=r"x\.json is damaged"):
        read_json(tmp_path / "x.json")


def test_which_errors_mean_a_full_disk():
    assert all(disk_is_full(OSError(code, "")) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    assert not disk_is_full(OSError(errno.EACCES, ""))
