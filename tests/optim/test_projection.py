"""Projections: orthogonal where they should be, nothing else touched, each member by itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnarena.optim import projection


def project(us, ws, kept, limit):
    """Updates without their part along the weights, and where that was."""
    us = [u.clone() for u in us]
    norms_w, products = projection.norms(ws, kept), projection.dots(us, ws, kept)
    masks = projection.masks_of_small_cosines(products, projection.norms(us, kept), norms_w, [limit] * len(ws))
    projection.subtract(us, ws, projection.shares(masks, products, norms_w, 1e-18))
    return us, masks


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=4),
    kept=st.integers(0, 2),
    seed=st.integers(0, 2**30),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_what_is_projected_is_orthogonal_and_what_is_not_stays(shape, kept, seed, scale):
    kept = min(kept, len(shape))
    generator = torch.Generator().manual_seed(seed)
    u, w = (torch.randn(shape, generator=generator) * scale for _ in range(2))
    (q,), (mask,) = project([u], [w], [kept], 0.3)
    rows = math.prod(shape[:kept])
    for u_, w_, q_, chosen in zip(*(t.reshape(rows, -1) for t in (u, w, q)), mask.flatten(), strict=True):
        cos = torch.nn.functional.cosine_similarity(u_.double(), w_.double(), dim=0).abs()
        assert bool(chosen) == bool(cos < 0.3) or abs(cos - 0.3) < 1e-5
        if chosen:
            assert abs(q_.double() @ w_.double()) <= 1e-6 * u_.double().norm() * w_.double().norm()
        else:
            assert torch.equal(u_, q_)


def test_each_vector_keeps_its_place_in_the_shape():
    x = torch.arange(24.0).view(2, 3, 4)
    assert [t.shape for t in projection.norms([x, x, x, x], [0, 1, 2, 3])] == [
        (1, 1, 1),
        (2, 1, 1),
        (2, 3, 1),
        (2, 3, 4),
    ]
    assert torch.allclose(projection.norms([x], [0])[0].squeeze(), x.norm())
    assert torch.allclose(projection.dots([x], [x], [2])[0], (x * x).sum(-1, keepdim=True))
    scalars = torch.tensor([3.0, -4.0])  # one number for each of two members
    assert projection.norms([scalars], [1])[0].tolist() == [3, 4]
    assert projection.dots([scalars], [scalars], [1])[0].tolist() == [9, 16]


def test_limits_fall_with_the_dimension():
    w = torch.zeros(4, 5, 5)
    assert projection.limits([w, w, w], [0, 1, 3], 0.1) == pytest.approx([0.01, 0.02, 0.1])


def test_zeros_and_nans_do_not_spread():
    zero, one = torch.zeros(2, 2), torch.ones(2, 2)
    (q, r), masks = project([one, zero], [zero, one], [0, 0], 0.1)
    assert torch.equal(q, one) and torch.equal(r, zero)
    assert all(mask.item() == 1 for mask in masks)
    rows = torch.tensor([[1.0, -0.99], [math.nan, 1.0]])
    (q,), (mask,) = project([rows], [one], [1], 0.1)
    assert mask.flatten().tolist() == [1, 0] and q[0].sum().abs() < 1e-6
