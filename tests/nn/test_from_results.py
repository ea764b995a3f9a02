"""A norm and a softmax that know their gradients from their results, against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from nnarena.nn.from_results import scaled, shares


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def test_scaled_is_the_layer_norm_of_what_has_no_mean():
    z = numbers(2, 3, 5)
    centred = z - z.mean(-1, keepdim=True)
    ours, theirs = scaled(centred, 1e-6), F.layer_norm(z, (5,), eps=1e-6)
    torch.testing.assert_close(ours, theirs)
    pull = numbers(2, 3, 5).detach()
    for mine, wanted in zip(torch.autograd.grad(ours, z, pull), torch.autograd.grad(theirs, z, pull), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("large", [0.0, 800.0])
def test_shares_are_a_softmax_in_two_parts_also_of_what_has_no_exponential(large):
    first, others = numbers(2, 3, 1), numbers(2, 3, 4)
    ours = torch.cat(shares(first + large, others + large), -1)
    theirs = torch.cat([first, others], -1).softmax(-1)
    torch.testing.assert_close(ours, theirs)
    pull = numbers(2, 3, 5).detach()
    wanted = torch.autograd.grad(theirs, (first, others), pull)
    for mine, exact in zip(torch.autograd.grad(ours, (first, others), pull), wanted, strict=True):
        torch.testing.assert_close(mine, exact)


def test_slopes_of_slopes():
    z, first, others = numbers(2, 5), numbers(2, 1), numbers(2, 4)
    assert torch.autograd.gradcheck(lambda z: scaled(z, 1e-6), (z,))
    assert torch.autograd.gradgradcheck(lambda z: scaled(z, 1e-6), (z,))
    assert torch.autograd.gradcheck(shares, (first, others))
    assert torch.autograd.gradgradcheck(shares, (first, others))


def test_mapped_over_a_population_they_are_what_each_is():
    z = numbers(3, 2, 5).detach()
    slope = torch.func.grad(lambda z: scaled(z, 1e-6).sin().sum())
    torch.testing.assert_close(torch.func.vmap(slope)(z), torch.stack([slope(each) for each in z]))


@pytest.mark.parametrize("function", [lambda z: scaled(z, 1e-6), lambda z: torch.cat(shares(z[:, :1], z[:, 1:]), -1)])
def test_the_way_back_reads_results_only(function):
    """Who keeps these for another reason need not keep what they were made of."""

    def both(z, pull):
        result, back = torch.func.vjp(function, z)
        return result, back(pull)[0]

    graph = make_fx(both)(torch.rand(2, 5), torch.rand(2, 5)).graph
    z, pull = (node for node in graph.nodes if node.op == "placeholder")
    back = {pull}
    for node in graph.nodes:
        if back & {*node.all_input_nodes}:
            back.add(node)
            assert z not in node.all_input_nodes
            assert all(
                str(other.target).split(".")[1] != "exp" for other in node.all_input_nodes if other.op != "placeholder"
            )
