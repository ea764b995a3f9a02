"""Every data set from small files in the true formats, and from broken ones."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import ragged, write_idx

from nnarena import data
from nnarena.core.errors import DataError

ROWS = [
    "A01,010-000-024-033,633790226051280329,27.05.2009 14:03:25:127,4.0629,1.8924,0.5074,walking",
    "A01,020-000-033-111,633790226051820913,27.05.2009 14:03:25:183,4.2919,1.7811,1.3444,falling",
    "B02,020-000-032-221,633790226052091205,27.05.2009 14:03:25:210,4.3591,1.8264,0.9688,lying down",
    "A01,010-000-030-096,633790226052361498,27.05.2009 14:03:25:237,4.0878,1.8799,0.4669,on all fours",
]


def equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)


# mnist


def test_mnist_from_npz(tmp_path, mnist_arrays):
    np.savez(tmp_path / "mnist.npz", **mnist_arrays)
    path, difference = data.import_files("mnist", [tmp_path / "mnist.npz"])
    assert path.name == "mnist.npz" and "x_train has 6 rows instead of 60000" in difference
    equal(data.load("mnist"), mnist_arrays)


def test_mnist_from_npz_with_wide_labels(tmp_path, mnist_arrays):
    np.savez_compressed(tmp_path / "m.npz", **mnist_arrays | {"y_train": mnist_arrays["y_train"].astype(np.int64)})
    data.import_files("mnist", [tmp_path / "m.npz"])
    equal(data.load("mnist"), mnist_arrays)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("as_folder", [False, True])
def test_mnist_from_idx(tmp_path, mnist_arrays, compressed, as_folder):
    paths = write_idx(tmp_path / "idx", mnist_arrays, compressed)
    data.import_files("mnist", [tmp_path / "idx"] if as_folder else reversed(paths))
    equal(data.load("mnist"), mnist_arrays)


def test_mnist_from_a_folder_with_both(tmp_path, mnist_arrays):
    for compressed in (False, True):
        write_idx(tmp_path / "idx", mnist_arrays, compressed)
    data.import_files("mnist", [tmp_path / "idx"])
    equal(data.load("mnist"), mnist_arrays)


def test_mnist_with_a_file_missing(tmp_path, mnist_arrays):
    paths = write_idx(tmp_path / "idx", mnist_arrays, True)
    with pytest.raises(DataError, match="y_test did not turn up"):
        data.import_files("mnist", paths[:3])


@pytest.mark.parametrize(
    "change",
    [
        {"x_train": np.zeros((6, 28, 27), np.uint8)},
        {"x_train": np.zeros((6, 28, 28), np.float32)},
        {"x_train": np.zeros((5, 28, 28), np.uint8)},
        {"y_test": np.array([1, 10], np.uint8)},
        {"y_test": np.array([1, -1], np.int64)},
        {"y_test": np.array([], np.uint8), "x_test": np.zeros((0, 28, 28), np.uint8)},
    ],
)
def test_mnist_of_the_wrong_shape(tmp_path, mnist_arrays, change):
    np.savez(tmp_path / "m.npz", **mnist_arrays | change)
    with pytest.raises(DataError, match=r"I can read Keras' mnist\.npz"):
        data.import_files("mnist", [tmp_path / "m.npz"])


def test_mnist_without_a_key(tmp_path, mnist_arrays):
    del mnist_arrays["y_test"]
    np.savez(tmp_path / "m.npz", **mnist_arrays)
    with pytest.raises(DataError, match="'y_test' is missing"):
        data.import_files("mnist", [tmp_path / "m.npz"])


# walker


def traces(count: int = 12) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(3 + place, 17)).astype(np.float32) for place in range(count)]


def check_walker() -> None:
    found = data.load("walker")
    equal(found, {"states": np.concatenate(traces()), "length": np.array([len(trace) for trace in traces()])})
    assert found["states"].flags.c_contiguous


def test_walker_from_flat_npz(tmp_path):
    np.savez(tmp_path / "w.npz", states=np.concatenate(traces()), length=np.array([len(t) for t in traces()], np.int32))
    data.import_files("walker", [tmp_path / "w.npz"])
    check_walker()


def test_walker_from_object_array(tmp_path):
    np.savez(tmp_path / "w.npz", x=ragged([trace.astype(np.float64, order="F") for trace in traces()]))
    data.import_files("walker", [tmp_path / "w.npz"])
    check_walker()


@pytest.mark.parametrize("as_folder", [False, True])
def test_walker_from_npy_files_in_numeric_order(tmp_path, as_folder):
    folder = tmp_path / "walker"
    folder.mkdir()
    for place, trace in enumerate(traces()):
        np.save(folder / f"rollout_{place}.npy", trace)  # rollout_10 comes after rollout_9, not after rollout_1
    (folder / "._rollout_1.npy").write_bytes(b"not an array")
    path = folder
    if not as_folder:
        path = tmp_path / "walker.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir(), reverse=True):
                archive.write(file, f"walker/{file.name}")
            archive.writestr("__MACOSX/walker/rollout_0.npy", b"not an array")
    data.import_files("walker", [path])
    check_walker()


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": ragged([np.zeros((4, 16), np.float32)])},
        {"x": ragged([np.zeros((4, 17), np.float32), "text"])},
        {"x": ragged([np.full((4, 17), np.nan)])},
        {"x": np.empty(0, object)},
        {"x": np.array(3)},
        {"states": np.zeros((5, 17), np.float32)},
        {"states": np.zeros((5, 17), np.float32), "length": np.array([2, 2])},
        {"states": np.zeros((5, 17), np.float32), "length": np.array([6, -1])},
        {"states": np.zeros((5, 17), np.float32), "length": np.array([2.5, 2.5])},
        {"states": np.array([["a"] * 17]), "length": np.array([1])},
        {"frames": np.zeros((5, 17), np.float32)},
        {},
    ],
)
def test_walker_of_the_wrong_kind(tmp_path, arrays):
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(DataError, match=r"I can read walker\.zip"):
        data.import_files("walker", [tmp_path / "w.npz"])


# watch


def recordings() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "frames": rng.normal(size=(12, 6)).astype(np.float32),
        "length": np.array([5, 4, 3]),
        "y": np.array([0, 6, 3]),
        "subject": np.array([7, 7, 10]),
        "label": np.array(["PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW"]),
    }


def watch_series() -> np.ndarray:
    return ragged(np.split(recordings()["frames"], [5, 9]))


def test_watch_from_object_array(tmp_path):
    named = {key: value for key, value in recordings().items() if key not in ("frames", "length")}
    np.savez(tmp_path / "w.npz", x=watch_series(), **named)
    data.import_files("watch", [tmp_path / "w.npz"])
    equal(data.load("watch"), recordings())


def test_watch_from_flat_npz(tmp_path):
    np.savez(tmp_path / "w.npz", **recordings())
    data.import_files("watch", [tmp_path / "w.npz"])
    equal(data.load("watch"), recordings())


def seglearn_dictionary() -> dict[str, object]:
    given = recordings()
    return {
        "X": [series.astype(np.float64, order="F") for series in watch_series()],
        "y": given["y"],
        "y_labels": given["label"].tolist(),
        "subject": given["subject"],
        "side": np.array([1.0, 0.0, 1.0]),
        "X_labels": ["ax", "ay", "az", "wx", "wy", "wz"],
    }


def test_watch_from_seglearn(tmp_path):
    np.save(tmp_path / "watch_dataset.npy", np.array(seglearn_dictionary(), dtype=object))
    data.import_files("watch", [tmp_path / "watch_dataset.npy"])
    found = data.load("watch")
    equal(found, recordings())
    assert found["frames"].flags.c_contiguous


@pytest.mark.parametrize(
    "change",
    [
        {"X": [np.zeros((3, 5))] * 3},
        {"X": "text"},
        {"y": np.array([0, 7, 1])},
        {"y": np.array([0, 1])},
        {"y": ["a", "b", "c"]},
        {"y_labels": ["one"]},
    ],
)
def test_watch_of_the_wrong_kind(tmp_path, change):
    np.save(tmp_path / "w.npy", np.array(seglearn_dictionary() | change, dtype=object))
    with pytest.raises(DataError, match="I can read seglearn's"):
        data.import_files("watch", [tmp_path / "w.npy"])


def test_watch_from_another_npy(tmp_path):
    np.save(tmp_path / "w.npy", np.zeros(3))
    with pytest.raises(DataError, match="does not hold a dictionary"):
        data.import_files("watch", [tmp_path / "w.npy"])


# activity


def test_activity_from_text(tmp_path):
    (tmp_path / "uci.txt").write_text("\n".join(ROWS) + "\n")
    data.import_files("activity", [tmp_path / "uci.txt"])
    found = data.load("activity")
    assert found["series"].tolist() == ["A01", "B02"] and found["length"].tolist() == [3, 1]
    assert found["tag"].tolist() == [0, 2, 1, 3]
    assert found["time"].tolist() == [int(ROWS[place].split(",")[2]) for place in (0, 1, 3, 2)]
    np.testing.assert_array_equal(found["position"][2], np.array([4.0878, 1.8799, 0.4669], np.float32))
    assert found["activity"].tolist() == [7, 8, 9, 1]


def test_activity_keeps_the_order_of_first_appearance(tmp_path):
    lines = [ROWS[0].replace("A01", name) for name in ("C03", "A01", "C03", "B01")]
    (tmp_path / "uci.txt").write_text("\r\n".join(lines))
    data.import_files("activity", [tmp_path / "uci.txt"])
    assert data.load("activity")["series"].tolist() == ["C03", "A01", "B01"]
    assert data.load("activity")["length"].tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("walking", "flying", "no activity 'flying'"),
        ("010-000-024-033", "010", "no tag '010'"),
        (",4.0629", "", "7 columns"),
        ("4.0629", "four", "four"),
        ("4.0629", "nan", "not finite"),
        ("633790226051280329", "yesterday", "yesterday"),
        (ROWS[0], "<html>", "1 columns"),
        ("A01", "Ä01", "ascii"),
    ],
)
def test_activity_of_the_wrong_kind(tmp_path, old, new, says):
    (tmp_path / "uci.txt").write_text("\n".join(ROWS).replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=says):
        data.import_files("activity", [tmp_path / "uci.txt"])


def test_activity_cut_short(tmp_path):
    (tmp_path / "uci.txt").write_text("\n".join(ROWS)[:-60])
    with pytest.raises(DataError, match="reading 4"):
        data.import_files("activity", [tmp_path / "uci.txt"])


# all of them


def good_file(name: str, folder: Path, mnist_arrays: dict[str, np.ndarray]) -> Path:
    path = folder / f"good_{name}"
    if name == "activity":
        path.write_text("\n".join(ROWS))
        return path
    arrays = {
        "mnist": mnist_arrays,
        "walker": {"x": ragged(traces())},
        "watch": {"x": watch_series(), **{key: recordings()[key] for key in ("y", "subject", "label")}},
    }[name]
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    return path


def foreign_files(folder: Path) -> list[Path]:
    """Files that are no data set of ours."""
    contents = {
        "empty": b"",
        "text": b"hello\n",
        "html": b"<!DOCTYPE html><html><body>404</body></html>",
        "binary": bytes(range(256)) * 10,
        "zip": b"PK\x03\x04 and then nothing",
        "gzip": b"\x1f\x8b\x08 and then nothing",
        "npy": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False",
        "pickle": pickle.dumps({"x": 1}),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "hello")
    (folder / "archive").write_bytes(buffer.getvalue())
    (folder / "folder").mkdir()
    return [*(folder / name for name in contents), folder / "archive", folder / "folder", folder / "absent"]


@pytest.mark.parametrize("name", ["mnist", "walker", "watch", "activity"])
def test_a_bad_file_gives_a_sentence_and_leaves_what_was_there(tmp_path, folder, mnist_arrays, name):
    good = good_file(name, tmp_path, mnist_arrays)
    data.import_files(name, [good])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == [f"{name}.json", f"{name}.npz"]
    raw = good.read_bytes()
    cut = tmp_path / "cut"
    bad = foreign_files(tmp_path)
    for share in (0.1, 0.5, 0.9, 0.99):
        cut.write_bytes(raw[: int(len(raw) * share)])
        with pytest.raises(DataError) as caught:
            data.import_files(name, [cut])
        assert str(caught.value).endswith(".")
    for path in bad:
        with pytest.raises(DataError) as caught:
            data.import_files(name, [path])
        assert str(path) in str(caught.value) or "come as one file" in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["mnist", "walker", "watch", "activity"])
def test_our_own_file_can_be_imported_again(tmp_path, folder, mnist_arrays, name):
    data.import_files(name, [good_file(name, tmp_path, mnist_arrays)])
    first = data.load(name)
    (tmp_path / "copy.npz").write_bytes((folder / f"{name}.npz").read_bytes())
    data.import_files(name, [tmp_path / "copy.npz"])
    equal(data.load(name), first)
