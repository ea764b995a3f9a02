"""Devices, threads and what made a result."""

from __future__ import annotations

import gc
import mmap
import os
import platform
import subprocess
import sys

import pytest
import torch

from nnarena.core.errors import ArenaError
from nnarena.engine import device
from nnarena.engine.device import (
    code_version,
    computing_with,
    is_lost,
    peak_memory,
    pick_device,
    reset_peak_memory,
    versions,
)


def test_a_device_by_name():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ArenaError, match="There is no device 'abacus'; --device takes auto, cpu or cuda"):
        pick_device("abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("name", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there_is_a_sentence(name):
    with pytest.raises(ArenaError, match="There is no CUDA device here: use --device cpu"):
        pick_device(name)


def test_a_device_is_lost_when_it_does_not_even_wait(monkeypatch):
    assert not is_lost(torch.device("cpu"))

    def broken(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device, "synchronise", broken)
    assert is_lost(torch.device("cuda"))


def test_a_trials_threads_are_its_own():
    before = torch.get_num_threads()
    with pytest.raises(ValueError), computing_with(before + 1, torch.device("cpu")):
        assert torch.get_num_threads() == before + 1
        raise ValueError
    assert torch.get_num_threads() == before


def test_a_trial_leaves_the_random_numbers_of_its_surroundings_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with computing_with(1, torch.device("cpu")):
        torch.manual_seed(99)
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here")
def test_memory_is_counted_from_the_reset():
    device = torch.device("cpu")
    gc.collect()  # nothing old shall be given back meanwhile
    reset_peak_memory(device)
    low = peak_memory(device)
    with mmap.mmap(-1, 200_000_000) as block:  # pages that no allocator had before
        block.write(b"1" * len(block))
    assert low > 10_000_000
    assert peak_memory(device) >= low + 40_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_process_that_keeps_memory_uses_it_again_until_it_frees_all():
    """In a process of its own, because there is no way back."""
    code = """
import resource
from pathlib import Path
import torch
from nnarena.engine.device import free_memory, keep_memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

torch.set_num_threads(1)
before = pages()
keep_memory()
pages()
after, full = pages(), held()
free_memory(torch.device("cpu"))
print(before, after, full - held())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after, freed = map(int, said.split())
    assert before > 10 * after and freed > 30_000_000


def test_a_result_says_what_made_it():
    made = versions()
    assert made["torch"] == torch.__version__
    assert made["code"] == code_version() and len(made["code"]) == 12
