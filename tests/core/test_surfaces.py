"""Formulas of the surfaces: their gradients, and what is said of their minima."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnarena.core.errors import UnknownName
from nnarena.core.surfaces import SURFACES, find_surface


def beale_slope(x, y):
    terms = [(c - x + x * y**n, y**n - 1, n * x * y ** (n - 1)) for n, c in enumerate((1.5, 2.25, 2.625), 1)]
    return sum(2 * t * dx for t, dx, _ in terms), sum(2 * t * dy for t, _, dy in terms)


# Written down by hand.
SLOPES = {
    "quartic": lambda x, y: (4 * x**2 * (x + 3), 2 * y),
    "rosenbrock": lambda x, y: (-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)),
    "beale": beale_slope,
    "saddle": lambda x, y: (2 * x, -2 * y + 2 * y**3),
    "ravine": lambda x, y: (10.1 * x - 9.9 * y, 10.1 * y - 9.9 * x),
}


def places(name: str, count: int = 400) -> torch.Tensor:
    surface = SURFACES[name]
    low, high = torch.tensor(surface.low).double(), torch.tensor(surface.high).double()
    return low + (high - low) * torch.rand(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", SURFACES)
def test_the_gradient_is_the_one_of_the_formula_by_hand(name):
    where = places(name).requires_grad_()
    SURFACES[name].formula(*where.T).sum().backward()
    assert where.grad is not None
    torch.testing.assert_close(where.grad, torch.stack(SLOPES[name](*where.detach().T), 1), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("name", SURFACES)
def test_numbers_arrays_and_tensors_go_in_alike(name):
    where, formula = places(name, 20), SURFACES[name].formula
    arrays = formula(*where.numpy().T)
    np.testing.assert_allclose(arrays, formula(*where.T).numpy(), rtol=1e-14)
    assert [formula(x, y) for x, y in where.tolist()] == pytest.approx(arrays.tolist(), rel=1e-14)


@pytest.mark.parametrize("name", SURFACES)
def test_minima_are_minima_and_nothing_lies_below(name):
    surface = SURFACES[name]
    for minimum in surface.minima:
        at = torch.tensor(minimum, dtype=torch.float64)
        assert surface.has(minimum) and float(surface.formula(*at)) == pytest.approx(surface.least, abs=1e-14)
        assert SLOPES[name](*minimum) == pytest.approx((0, 0), abs=1e-14)
        curvature = torch.autograd.functional.hessian(lambda p: surface.formula(p[0], p[1]), at)
        assert torch.linalg.eigvalsh(curvature).min() > 0  # type: ignore[arg-type]
    assert float(surface.formula(*(3 * places(name, 20_000)).T).min()) >= surface.least
    assert surface.has(surface.start) and not surface.has((99.0, 0.0))


def test_the_flat_place_of_the_quartic_and_the_saddle_are_no_minima():
    quartic, saddle = SURFACES["quartic"], SURFACES["saddle"]
    assert SLOPES["quartic"](0.0, 0.0) == (0, 0) and quartic.formula(-0.1, 0.0) < quartic.formula(0.0, 0.0)
    assert SLOPES["saddle"](0.0, 0.0) == (0, 0)
    assert saddle.formula(0.0, 0.1) < saddle.formula(0.0, 0.0) < saddle.formula(0.1, 0.0)


def test_the_ravine_is_a_hundred_times_as_steep_across_as_along():
    curvature = torch.autograd.functional.hessian(lambda p: SURFACES["ravine"].formula(p[0], p[1]), torch.zeros(2))
    low, high = torch.linalg.eigvalsh(curvature)  # type: ignore[arg-type]
    assert float(high / low) == pytest.approx(100, rel=1e-4)


def test_an_unknown_surface_gets_a_suggestion():
    with pytest.raises(UnknownName, match="There is no surface 'rosenbrok'; did you mean 'rosenbrock'"):
        find_surface("rosenbrok")
