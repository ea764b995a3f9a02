"""Sets of images from small files in the true formats, and from broken ones."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from data_files import write_idx

from nnarena import data
from nnarena.core.errors import DataError
from nnarena.data.dataset import Remote
from nnarena.data.sets import all_sets

CIFAR = {  # batches, what the pickles call the labels, bytes of label in a row, classes
    "cifar10": ({"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}, b"labels", 1, 10),
    "cifar100": ({"train": ["train"], "test": ["test"]}, b"fine_labels", 2, 100),
}


def some(classes: int, shape: tuple[int, ...] = (32, 32, 3), train: int = 10, test: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for part, count in (("train", train), ("test", test)):
        made[f"x_{part}"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        made[f"y_{part}"] = rng.integers(0, classes, count).astype(np.uint8)
    made["y_train"][0], made["y_train"][1] = 0, classes - 1
    return made


def equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)


# CIFAR


def text(value: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    return b"T" + struct.pack("<I", len(value)) + value


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def old_array(array: np.ndarray) -> bytes:
    """A uint8 matrix as NumPy in Python 2 pickles it."""
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = number(array.shape[0]) + number(array.shape[1]) + b"\x86"
    return start + b"(" + number(1) + shape + dtype + b"\x89" + text(array.tobytes()) + b"tb"


def old_pickle(planes: np.ndarray, labels: np.ndarray, key: bytes) -> bytes:
    """A batch as its authors wrote it."""
    items = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    named = text(b"batch_label") + text(b"batch 1 of 5") + text(key) + items + text(b"data") + old_array(planes)
    return b"\x80\x02}(" + named + b"u."


def batches(name: str, arrays: dict[str, np.ndarray], version: str) -> dict[str, bytes]:
    parts, key, label_bytes, _ = CIFAR[name]
    made = {}
    for part, names in parts.items():
        planes = arrays[f"x_{part}"].transpose(0, 3, 1, 2).reshape(-1, 3072)
        pieces = zip(
            names, np.array_split(planes, len(names)), np.array_split(arrays[f"y_{part}"], len(names)), strict=True
        )
        for batch, rows, labels in pieces:
            if version == "python":
                made[batch] = old_pickle(rows, labels, key)
            else:
                coarse = np.full((len(rows), label_bytes - 1), 7, np.uint8)
                made[batch + ".bin"] = np.concatenate([coarse, labels[:, None], rows], axis=1).tobytes()
    return made


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in {"readme.html": b"<html>", **files}.items():
            entry = tarfile.TarInfo(f"cifar/{name}")
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    return path


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("name", CIFAR)
def test_cifar_from_its_archive_and_from_its_folder(tmp_path, name, version):
    arrays = some(CIFAR[name][3])
    files = batches(name, arrays, version)
    data.import_files(name, [archive(tmp_path / "a.tar.gz", files)])
    equal(data.load(name), arrays)
    (tmp_path / "unpacked").mkdir()
    for file, raw in files.items():
        (tmp_path / "unpacked" / file).write_bytes(raw)
    _, difference = data.import_files(name, [tmp_path / "unpacked"])
    equal(data.load(name), arrays)
    assert "x_train has 10 rows instead of 50000" in difference


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "fashion_mnist"])
def test_npz(tmp_path, name):
    arrays = some(10, (28, 28) if name == "fashion_mnist" else (32, 32, 3))
    wide = {key: value[:, None].astype(np.int64) if key[0] == "y" else value for key, value in arrays.items()}
    np.savez(tmp_path / "images.npz", **wide)
    data.import_files(name, [tmp_path / "images.npz"])
    equal(data.load(name), arrays)


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_an_archive_that_is_cut_short(tmp_path, share):
    path = archive(tmp_path / "a.tar.gz", batches("cifar100", some(100), "python"))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(DataError, match=r"a\.tar\.gz.*For 'cifar100' I can read cifar-100-python"):
        data.import_files("cifar100", [path])


def test_an_archive_of_the_other_set(tmp_path):
    with pytest.raises(DataError, match=r"data_batch_1, .*test_batch did not turn up"):
        data.import_files("cifar10", [archive(tmp_path / "a.tar.gz", batches("cifar100", some(100), "python"))])
    with pytest.raises(DataError, match="the batches train, test did not turn up"):
        data.import_files("cifar100", [archive(tmp_path / "b.tar.gz", batches("cifar10", some(10), "binary"))])


@pytest.mark.parametrize("version", ["python", "binary"])
def test_cifar_with_a_label_out_of_range(tmp_path, version):
    arrays = some(10)
    arrays["y_train"][3] = 10
    with pytest.raises(DataError, match="a label in y_train is 10, and the classes go from 0 to 9"):
        data.import_files("cifar10", [archive(tmp_path / "a.tar.gz", batches("cifar10", arrays, version))])


def test_a_batch_that_is_no_batch(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("pwned",)

    good = batches("cifar100", some(100), "python")
    wrong = {
        "asks to run": pickle.dumps({b"data": Evil()}, 2),
        "does not hold a dictionary": pickle.dumps([1], 2),
        "'fine_labels' is missing": pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}, 2),
        "uint8 of shape": pickle.dumps({b"data": np.zeros((2, 3000), np.uint8), b"fine_labels": [0, 0]}, 2),
        "a class for each": pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0]}, 2),
        "goes from -1": pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, -1]}, 2),
        "damaged": good["train"][:500],
    }
    for sentence, raw in wrong.items():
        with pytest.raises(DataError, match=sentence):
            data.import_files("cifar100", [archive(tmp_path / "a.tar.gz", good | {"train": raw})])
    rows = batches("cifar100", some(100), "binary")
    with pytest.raises(DataError, match="an image takes 3074: it is cut short, or of another set"):
        data.import_files("cifar100", [archive(tmp_path / "a.tar.gz", rows | {"train.bin": rows["train.bin"][:-1]})])


# SVHN


def mat_element(kind: int, raw: bytes) -> bytes:
    return struct.pack("<II", kind, len(raw)) + raw + b"\0" * (-len(raw) % 8)


def mat_matrix(name: str, array: np.ndarray) -> bytes:
    """A variable of a MAT file of version 5: flags, dimensions, name, numbers by columns."""
    body = mat_element(6, struct.pack("<II", 9, 0)) + mat_element(5, struct.pack(f"<{array.ndim}i", *array.shape))
    return mat_element(14, body + mat_element(1, name.encode()) + mat_element(2, array.tobytes(order="F")))


def write_mat(path: Path, X: np.ndarray, y: np.ndarray, compressed: bool = True) -> Path:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    variables = [mat_matrix("X", X), mat_matrix("y", y)]
    if compressed:
        packed = [zlib.compress(one) for one in variables]
        variables = [struct.pack("<II", 15, len(one)) + one for one in packed]
    path.write_bytes(head + b"".join(variables))
    return path


def write_svhn(folder: Path, arrays: dict[str, np.ndarray], compressed: bool = True) -> list[Path]:
    """As published: the number of the image last, and 10 for the digit 0."""
    folder.mkdir(exist_ok=True)
    paths = []
    for part in ("train", "test"):
        y = arrays[f"y_{part}"]
        X, y = arrays[f"x_{part}"].transpose(1, 2, 3, 0), np.where(y == 0, 10, y).astype(np.uint8)[:, None]
        paths.append(write_mat(folder / f"{part}_32x32.mat", X, y, compressed))
    return paths


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_from_its_files_and_from_their_folder(tmp_path, compressed):
    arrays = some(10)
    paths = write_svhn(tmp_path / "svhn", arrays, compressed)
    data.import_files("svhn", reversed(paths))
    equal(data.load("svhn"), arrays)
    data.import_files("svhn", [tmp_path / "svhn"])
    equal(data.load("svhn"), arrays)


def test_svhn_that_is_broken(tmp_path):
    train, test = write_svhn(tmp_path / "svhn", some(10))
    with pytest.raises(DataError, match=r"test_32x32\.mat did not turn up"):
        data.import_files("svhn", [train])
    X, y = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)
    for wrong in ((X[:28], y), (X, y[:1]), (X, 0 * y), (X, 11 * y)):
        with pytest.raises(DataError, match=r"test_32x32\.mat is not a file of SVHN's cropped digits: '[Xy]' should"):
            data.import_files("svhn", [train, write_mat(test, *wrong)])
    raw = write_mat(test, X, y).read_bytes()
    for length in (0, 50, 130, 200, len(raw) - 40):
        test.write_bytes(raw[:length])
        with pytest.raises(DataError, match=r"test_32x32\.mat"):
            data.import_files("svhn", [train, test])
    test.write_bytes(b"<html>moved</html>" * 20)
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        data.import_files("svhn", [train, test])


# Fashion-MNIST, and sets of several files


def test_fashion_mnist_from_idx(tmp_path):
    arrays = some(10, (28, 28))
    data.import_files("fashion_mnist", write_idx(tmp_path, arrays, compressed=True))
    equal(data.load("fashion_mnist"), arrays)


def test_getting_a_set_of_several_files(tmp_path, folder, site, monkeypatch):
    arrays = some(10)
    remotes = []
    for path in write_svhn(tmp_path / "svhn", arrays):
        raw = path.read_bytes()
        site.files[f"/{path.name}"] = raw
        remotes.append(Remote(path.name, (site.url(f"/{path.name}"),), hashlib.md5(raw).hexdigest()))
    here = dataclasses.replace(all_sets()["svhn"], files=tuple(remotes), rows={})
    monkeypatch.setitem(all_sets(), "svhn", here)
    data.get("svhn")
    equal(data.load("svhn"), arrays)
    assert sorted(path.name for path in folder.iterdir()) == ["svhn.json", "svhn.npz"]
    site.files["/test_32x32.mat"] += b" "
    with pytest.raises(DataError, match="wrong checksum"):
        data.get("svhn", force=True)
    equal(data.load("svhn"), arrays)


@pytest.mark.data
@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_the_real_images(name):
    one, arrays = all_sets()[name], data.load(name)
    assert one.difference(arrays) == ""
    assert (np.bincount(arrays["y_test"]) == 1000).all()
