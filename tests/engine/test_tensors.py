"""Tensor files: read by others, read from others, and never silently wrong."""

from __future__ import annotations

import os

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnarena.core.errors import StoreError
from nnarena.engine.tensors import NAMES, load, save

DTYPES = list(NAMES)


def some(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return (numbers % 2 == 1) if dtype == torch.bool else (numbers - 3).to(dtype)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and tensor.shape == other[name].shape
        assert torch.equal(tensor, other[name])


EVERYTHING = {
    f"{dtype}/{shape}": some(dtype, shape) for dtype in DTYPES for shape in [(), (0,), (3,), (2, 0, 3), (2, 5)]
}


def test_all_types_and_shapes_come_back(tmp_path):
    save(tmp_path / "x", EVERYTHING, {"note": 'é "quoted"'})
    tensors, metadata = load(tmp_path / "x")
    assert_same(tensors, EVERYTHING)
    assert metadata == {"note": 'é "quoted"'}
    for tensor in tensors.values():
        tensor.zero_()  # they are writable and share no memory
    assert_same(load(tmp_path / "x")[0], EVERYTHING)


def test_the_safetensors_package_reads_what_we_write(tmp_path):
    save(tmp_path / "x.safetensors", EVERYTHING, {"note": "hello"})
    assert_same(safetensors.torch.load_file(tmp_path / "x.safetensors"), EVERYTHING)
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata()["note"] == "hello"


def test_we_read_what_the_safetensors_package_writes(tmp_path):
    safetensors.torch.save_file(EVERYTHING, tmp_path / "x.safetensors", {"note": "hello"})
    tensors, metadata = load(tmp_path / "x.safetensors")
    assert_same(tensors, EVERYTHING)
    assert metadata == {"note": "hello"}
    safetensors.torch.save_file(EVERYTHING, tmp_path / "y.safetensors")
    assert_same(load(tmp_path / "y.safetensors")[0], EVERYTHING)


def test_special_numbers_and_odd_layouts_keep_their_bits(tmp_path):
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    whole = torch.arange(12.0).reshape(3, 4)
    save(tmp_path / "x", {"odd": odd, "turned": whole.t(), "part": whole[:, 1], "leaf": whole.clone().requires_grad_()})
    tensors, _ = load(tmp_path / "x")
    assert torch.equal(tensors["odd"].view(torch.int32), odd.view(torch.int32))
    assert torch.equal(tensors["turned"], whole.t()) and torch.equal(tensors["part"], whole[:, 1])
    assert torch.equal(tensors["leaf"], whole)


def test_no_tensors_are_a_file_too(tmp_path):
    save(tmp_path / "x", {})
    assert load(tmp_path / "x") == ({}, {})


CONTENT = {"now/a": torch.arange(6.0).reshape(2, 3), "now/none": torch.zeros(0), "now/n": torch.tensor(3)}
META = {"optimizer": '{"state": {}, "groups": [{"lr": 0.001}]}'}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensors") / "x"
    save(path, CONTENT, META)
    return path.read_bytes()


def test_a_cut_anywhere_is_noticed(tmp_path, whole):
    for length in range(len(whole)):
        (tmp_path / "x").write_bytes(whole[:length])
        with pytest.raises(StoreError, match="x is damaged"):
            load(tmp_path / "x")


@pytest.mark.parametrize("more", [b"\0", b"garbage"])
def test_bytes_behind_the_end_are_noticed(tmp_path, whole, more):
    (tmp_path / "x").write_bytes(whole + more)
    with pytest.raises(StoreError, match="x is damaged"):
        load(tmp_path / "x")


def test_a_flipped_bit_is_noticed_or_does_no_harm(tmp_path, whole):
    missed = []
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            (tmp_path / "x").write_bytes(damaged)
            try:
                tensors, metadata = load(tmp_path / "x")
            except StoreError:
                continue
            try:
                assert_same(tensors, CONTENT)
                assert metadata["optimizer"] == META["optimizer"]
            except (AssertionError, KeyError):
                missed.append(bytes(damaged[max(0, place - 12) : place + 8]))
    assert not missed, f"{len(missed)} flips went unnoticed, for instance in {missed[:3]}"


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_is_a_sentence(tmp_path, garbage):
    (tmp_path / "x").write_bytes(garbage)
    with pytest.raises(StoreError, match="x is damaged"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    "header",
    [b"[]", b"3", b'{"a": 3}', b'{"a": {"dtype": "F32", "shape": [1]}}', b'{"__metadata__": 3}', b'"x"']
    + [b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,%d]}}' % end for end in (-4, 4, 400)]
    + [
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"X","shape":[],"data_offsets":[0,4]}}',
    ],
)
def test_a_header_that_lies_is_a_sentence(tmp_path, header):
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(StoreError, match="x is damaged"):
        load(tmp_path / "x")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    save(tmp_path / "x", CONTENT)
    with pytest.raises(Exception, match="quint"):
        save(tmp_path / "x", CONTENT | {"q": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)})
    assert_same(load(tmp_path / "x")[0], CONTENT)
    assert os.listdir(tmp_path) == ["x"]
