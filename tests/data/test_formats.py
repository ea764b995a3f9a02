"""Files that strangers made: the right ones are read, the wrong ones give a sentence, and none runs code."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from data_files import idx_bytes, ragged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnarena.core.errors import DataError
from nnarena.data.formats import SafeUnpickler, in_numeric_order, read_idx, read_npy, read_npz, read_plain_npz

SERIES = [np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((1, 2), np.float32)]


class Bomb:
    """A pickle of this creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def npy_with_pickle(payload: bytes, shape: str = "()") -> bytes:
    header = f"{{'descr': '|O', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload


def test_object_arrays_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=ragged(SERIES), y=np.arange(2))
    arrays = read_npz(tmp_path / "a.npz")
    assert arrays["x"].dtype == object
    for ours, theirs in zip(arrays["x"], SERIES, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(arrays["y"], [0, 1])


@pytest.mark.parametrize("protocol", [2, 3, 4])  # what numpy.save has ever used
@pytest.mark.parametrize("home", ["numpy.core", "numpy._core"])
def test_the_modules_of_numpy_1_and_2(home, protocol):
    """NumPy 2 writes numpy._core where NumPy 1 wrote numpy.core; each must read the other's files."""
    value = {"x": [*SERIES], "names": ["a"], "one": np.float64(2.5), "bytes": b"\xff\x00"}
    here = SERIES[0].__reduce__()[0].__module__.removesuffix(".multiarray")
    raw = pickle.dumps(value, protocol=protocol)
    if here != home:
        if protocol >= 4:  # strings carry their length
            before, after = (name + ".multiarray" for name in (here, home))
            raw = raw.replace(bytes([len(before)]) + before.encode(), bytes([len(after)]) + after.encode())
            raw = _reframe(raw)
        else:
            raw = raw.replace(here.encode(), home.encode())
        assert f"{home}.multiarray".encode() in raw
    found = SafeUnpickler(io.BytesIO(raw)).load()
    np.testing.assert_array_equal(found["x"][0], SERIES[0])
    assert found["one"] == 2.5 and found["bytes"] == b"\xff\x00"


def _reframe(raw: bytes) -> bytes:
    """The length of the first frame of a protocol 4 pickle, set right; the pickle must have only one."""
    assert raw[2:3] == pickle.FRAME and len(raw) < 2**16
    return raw[:3] + struct.pack("<Q", len(raw) - 11) + raw[11:]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    target = tmp_path / "was_run"
    array = np.empty(1, object)
    array[0] = Bomb(target)
    payload = pickle.dumps(array, protocol=protocol)
    pickle.loads(payload)
    assert target.exists(), "the bomb must work, or the test proves nothing"
    target.unlink()

    (tmp_path / "a.npy").write_bytes(npy_with_pickle(payload, "(1,)"))
    with pytest.raises(DataError, match="nothing was run"):
        read_npy(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(DataError, match="nothing was run"):
        read_npz(tmp_path / "a.npz")
    assert not target.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy", "ndarray.tofile"),
        ("numpy.testing._private.utils", "runstring"),
    ],
)
def test_nothing_else_can_be_named(module, name):
    raw = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name)) + b"\x93."
    with pytest.raises(DataError, match="nothing was run"):
        SafeUnpickler(io.BytesIO(raw)).load()


def test_other_codecs_are_refused():
    with pytest.raises(DataError, match="spells bytes"):
        SafeUnpickler(io.BytesIO(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.")).load()


def test_our_own_files_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", x=ragged(SERIES))
    with pytest.raises(DataError, match="damaged"):
        read_plain_npz(tmp_path / "a.npz")


def test_a_pickle_that_is_not_the_announced_array(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy_with_pickle(pickle.dumps([1, 2]), "(2,)"))
    with pytest.raises(DataError, match="header announces"):
        read_npy(tmp_path / "a.npy")


def test_a_file_that_is_not_there(tmp_path):
    for read in (read_npz, read_plain_npz, read_npy, read_idx):
        with pytest.raises(DataError, match="There is no file"):
            read(tmp_path / "nothing")


@pytest.mark.parametrize("compressed", [False, True])
def test_idx(tmp_path, compressed):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    raw = idx_bytes(array)
    (tmp_path / "a").write_bytes(gzip.compress(raw) if compressed else raw)
    np.testing.assert_array_equal(read_idx(tmp_path / "a"), array)


def test_idx_of_wider_numbers(tmp_path):
    (tmp_path / "a").write_bytes(bytes([0, 0, 0x0B, 1]) + struct.pack(">I2h", 2, -2, 300))
    assert read_idx(tmp_path / "a").tolist() == [-2, 300]


@pytest.mark.parametrize("size", [0, 3, 4, 9, 15, 16, 20])
def test_idx_cut_short(tmp_path, size):
    (tmp_path / "a").write_bytes(idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))[:size])
    with pytest.raises(DataError):
        read_idx(tmp_path / "a")


def test_idx_that_announces_more_than_memory_holds(tmp_path):
    (tmp_path / "a").write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"few")
    with pytest.raises(DataError, match="announces"):
        read_idx(tmp_path / "a")


def test_gzip_cut_short(tmp_path):
    raw = gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 255, (5, 9, 9), dtype=np.uint8)))
    (tmp_path / "a").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match="damaged"):
        read_idx(tmp_path / "a")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_never_ends_in_a_traceback(tmp_path, data):
    """Any cut and any changed byte: the numbers, or one sentence."""
    buffer = io.BytesIO()
    np.savez(buffer, x=ragged(SERIES), y=np.arange(4))
    raw = bytearray(buffer.getvalue())
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "a.npz"
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        read_npz(path)
    except DataError as error:
        assert str(error).endswith(".")


def test_numeric_order():
    names = ["w/trace_10.npy", "w/trace_2.npy", "w/trace_1.npy"]
    assert in_numeric_order(names) == ["w/trace_1.npy", "w/trace_2.npy", "w/trace_10.npy"]
