"""The catalogue, getting and loading, and the command."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from data_files import write_idx

from nnarena import data
from nnarena.cli.data import data as command
from nnarena.core.errors import DataError, UnknownName
from nnarena.data import sets
from nnarena.data.dataset import digest
from nnarena.data.folder import data_folder, store


@pytest.fixture
def served(site, tmp_path, mnist_arrays, monkeypatch):
    """`mnist` comes from our own server, and is complete with six images."""
    np.savez(tmp_path / "served.npz", **mnist_arrays)
    body = (tmp_path / "served.npz").read_bytes()
    site.files["/mnist.npz"] = body
    one = dataclasses.replace(
        sets.find("mnist"),
        mirrors=(site.url("/mnist.npz"),),
        sha256=hashlib.sha256(body).hexdigest(),
        rows={"x_train": 6, "x_test": 2},
        content=digest(mnist_arrays),
    )
    _swap(monkeypatch, one)
    return one


def _swap(monkeypatch, one):
    known = sets.all_sets() | {one.name: one}
    monkeypatch.setattr(sets, "all_sets", lambda: known)


def test_the_catalogue_says_what_is_here(mnist_arrays):
    entries = {entry.name: entry for entry in data.catalogue()}
    assert list(entries) == sorted(entries) == data.names()
    assert {"activity", "cifar10", "digits", "mnist", "svhn", "walker", "watch"} <= entries.keys()
    assert [name for name, entry in entries.items() if entry.present] == ["digits"]
    assert all(entry.summary and entry.size and entry.licence and entry.source for entry in entries.values())
    store("mnist", mnist_arrays, {})
    assert {entry.name for entry in data.catalogue() if entry.present} == {"digits", "mnist"}


def test_the_catalogue_needs_no_torch():
    code = "import sys, nnarena.data; nnarena.data.catalogue(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_folder(monkeypatch, tmp_path):
    assert data_folder() == Path(os.environ["NNARENA_DATA"])
    monkeypatch.delenv("NNARENA_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder().parts[-2:] == ("nnarena", "data")


def test_a_set_that_is_not_here():
    wanted = "The data set 'mnist' is not here: run `nnarena data get mnist`, or `nnarena data import mnist FILE`."
    with pytest.raises(DataError) as caught:
        data.load("mnist")
    assert str(caught.value) == wanted


def test_an_unknown_set():
    for call in (data.load, data.get, lambda name: data.import_files(name, ["x"])):
        with pytest.raises(UnknownName, match="did you mean 'mnist'"):
            call("minst")


def test_a_stored_file_that_is_damaged(folder, mnist_arrays):
    path = store("mnist", mnist_arrays, {})
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    for damaged in (raw, raw[:100], b"", b"hello"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="nnarena data get mnist --force"):
            data.load("mnist")


def test_get(served, folder, mnist_arrays, site):
    seen = []
    path = data.get("mnist", progress=lambda here, total: seen.append(here))
    assert path == folder / "mnist.npz" and seen[-1] == len(site.files["/mnist.npz"])
    np.testing.assert_array_equal(data.load("mnist")["x_train"], mnist_arrays["x_train"])
    record = json.loads((folder / "mnist.json").read_text())
    assert record["sha256"] == served.sha256 and record["published"] is True
    assert record["origin"] == site.url("/mnist.npz")
    assert sorted(path.name for path in folder.iterdir()) == ["mnist.json", "mnist.npz"]


def test_get_asks_only_once(served, site):
    data.get("mnist")
    data.get("mnist")
    assert len(site.requests) == 1
    data.get("mnist", force=True)
    assert len(site.requests) == 2


def test_get_replaces_a_damaged_file(served, folder):
    data.get("mnist")
    (folder / "mnist.npz").write_bytes(b"damaged")
    data.get("mnist")
    assert len(data.load("mnist")["x_train"]) == 6


def test_get_with_a_wrong_checksum_leaves_what_was_there(served, site, folder):
    data.get("mnist")
    before = (folder / "mnist.npz").read_bytes()
    site.files["/mnist.npz"] = b"another file"
    with pytest.raises(DataError, match=r"wrong checksum.*`nnarena data import mnist FILE`"):
        data.get("mnist", force=True)
    assert (folder / "mnist.npz").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["mnist.json", "mnist.npz"]


def test_get_that_is_cut_short_says_so_and_goes_on_the_next_time(served, site, folder):
    site.cut_after = [100] * 10
    with pytest.raises(DataError, match="broke off after 300 of"):
        data.get("mnist")
    assert not (folder / "mnist.npz").exists()
    site.cut_after = []
    data.get("mnist")
    assert site.requests[-1] == ("/mnist.npz", "bytes=300-")


def test_get_of_what_is_not_there(served, site):
    site.files.clear()
    with pytest.raises(DataError, match=r"answered 404.*`nnarena data import mnist FILE`"):
        data.get("mnist")


def test_get_without_a_checksum_verifies_by_structure(served, site, folder, monkeypatch):
    _swap(monkeypatch, dataclasses.replace(served, sha256=""))
    site.files["/mnist.npz"] = b"<html>moved</html>"
    with pytest.raises(DataError, match="What was downloaded for 'mnist' is not the data set"):
        data.get("mnist")
    assert list(folder.iterdir()) == []


def test_get_of_too_little(served, folder, monkeypatch):
    _swap(monkeypatch, dataclasses.replace(served, rows={"x_train": 60_000}))
    with pytest.raises(DataError, match="x_train has 6 rows instead of 60000"):
        data.get("mnist")
    assert list(folder.iterdir()) == []


def test_offline(served, site, monkeypatch):
    monkeypatch.setenv("NNARENA_OFFLINE", "1")
    with pytest.raises(DataError, match="NNARENA_OFFLINE is set, so 'mnist' was not downloaded"):
        data.get("mnist")
    assert site.requests == []


def test_loading_never_downloads(served, site):
    with pytest.raises(DataError):
        data.load("mnist")
    assert site.requests == []


def test_a_folder_that_cannot_be_written(served, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Could not write"):
        data.get("mnist")
    with pytest.raises(DataError, match="Could not write"):
        data.import_files("mnist", [tmp_path / "served.npz"])


def test_an_import_says_whether_it_is_the_published_set(served, tmp_path, mnist_arrays):
    assert data.import_files("mnist", [tmp_path / "served.npz"])[1] == ""
    other = mnist_arrays | {"x_test": 255 - mnist_arrays["x_test"]}
    write_idx(tmp_path / "idx", other, compressed=True)
    assert "not those of the published" in data.import_files("mnist", [tmp_path / "idx"])[1]


def test_digits_equal_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), data.load("digits")
    np.testing.assert_array_equal(ours["x"], theirs.images)
    np.testing.assert_array_equal(ours["y"], theirs.target)
    assert sets.find("digits").shipped.stat().st_size < 60_000


def test_digits_need_no_getting(tmp_path):
    assert data.get("digits") == sets.find("digits").shipped
    with pytest.raises(DataError, match="ships with NNArena"):
        data.import_files("digits", [tmp_path])


def test_command_list():
    result = CliRunner().invoke(command, ["list"])
    assert result.exit_code == 0 and "not here: `nnarena data get mnist`" in result.output
    entries = json.loads(CliRunner().invoke(command, ["list", "--json"]).output)
    assert {entry["name"]: entry["present"] for entry in entries}["digits"] is True


def test_command_get_and_import(served, site, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("nnarena.cli.data.PLAIN_EVERY", 0.0)
    result = CliRunner().invoke(command, ["get", "mnist", "digits"])
    assert result.exit_code == 0, result.output
    assert f"mnist: {folder / 'mnist.npz'}" in result.output and "digits: " in result.output
    assert "mnist: 0.0 of 0.0 MB" in result.output
    result = CliRunner().invoke(command, ["import", "mnist", str(tmp_path / "served.npz")])
    assert result.exit_code == 0 and "Note" not in result.output


def test_command_checks_all_names_first(served, site):
    result = CliRunner().invoke(command, ["get", "mnist", "nothing"])
    assert isinstance(result.exception, UnknownName) and site.requests == []


def test_command_import_of_a_wrong_file(tmp_path):
    result = CliRunner().invoke(command, ["import", "mnist", str(tmp_path / "absent")])
    assert isinstance(result.exception, DataError)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "walker", "watch"])
def test_the_real_files_are_the_published_ones(name):
    one = sets.find(name)
    assert one.difference(data.load(name)) == ""
