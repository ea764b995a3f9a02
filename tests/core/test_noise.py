"""Random numbers without a state: uniform, unrelated, and a function of key, index and place alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnarena.core.noise import normal, uniform
from nnarena.core.seeds import derive


def numbers(key: int, index: torch.Tensor, count: int) -> torch.Tensor:
    return uniform(torch.tensor([key]), index, count)


def test_they_depend_on_nothing_else():
    key, index = derive("noise", 3), torch.arange(100)
    whole = numbers(key, index, 7)
    shuffled = torch.randperm(100)
    assert torch.equal(numbers(key, shuffled, 7), whole[shuffled])
    assert torch.equal(numbers(key, index, 9)[:, :7], whole)
    two = uniform(torch.tensor([[key], [key + 1]]), index.expand(2, -1), 7)
    assert torch.equal(two[0], whole) and torch.equal(two[1], numbers(key + 1, index, 7))


def test_the_bits_are_fixed():
    """Another hash would give another result to everybody's trials."""
    found = (numbers(2**62 + 12345, torch.tensor([0, 1, 49_999]), 2) * 2**23 - 0.5).long()
    assert found.tolist() == [[5349567, 7443673], [5385040, 5366893], [5974114, 3072354]]


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1, derive("a"), derive("b")])
def test_uniform_and_unrelated(key):
    u = numbers(key, torch.arange(20_000), 6)
    assert u.dtype == torch.float32 and u.min() > 0 and u.max() < 1
    assert u.mean(0).sub(0.5).abs().max() < 0.012 and u.var(0).sub(1 / 12).abs().max() < 0.003
    counts = torch.histc(u, 64, 0, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 130  # χ² with 63 degrees of freedom
    other = numbers(key ^ 1, torch.arange(20_000), 6)
    next_ = numbers(key, torch.arange(1, 20_001), 6)
    table = np.corrcoef(torch.cat([u, other, next_], 1).double().numpy(), rowvar=False)
    np.fill_diagonal(table, 0)
    assert np.abs(table).max() < 0.03


def test_few_numbers_twice():
    u = numbers(derive("c"), torch.arange(50_000), 1)
    expected = 50_000**2 / 2 / 2**23
    assert abs(50_000 - len(u.unique()) - expected) < 80


def test_normal_numbers_are_standard_normal_and_the_uniform_ones_in_order():
    key, index = torch.tensor(77), torch.arange(2000)
    numbers = normal(key, index, 50)
    places = torch.special.ndtr(numbers.double()).flatten().sort().values
    assert (places - torch.linspace(0, 1, 100_000)).abs().max() < 1.63 / 100_000**0.5
    assert torch.allclose(torch.special.ndtr(numbers), uniform(key, index, 50), atol=1e-6)
    assert numbers.isfinite().all() and numbers.abs().max() < 5.4
