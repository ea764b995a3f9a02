"""A dense layer of many seeds is a dense layer, with all of its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from nnarena.kernels.layers.dense import dense
from nnarena.nn.linear import linear

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(seeds, features, outputs, device="cpu"):
    """x (S, 5, 70, F), weights, biases and a pull on the result."""
    numbers = torch.Generator().manual_seed(features)
    shapes = (seeds, 5, 70, features), (seeds, outputs, features), (seeds, outputs), (seeds, 5, 70, outputs)
    return [torch.randn(shape, generator=numbers).to(device) for shape in shapes]


def pulled(call, x, weight, bias, pull):
    tensors = [tensor.clone().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    output = vmap(call)(*tensors)
    return output.detach(), *torch.autograd.grad((output * pull).sum(), tensors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("seeds", "features", "outputs"), [(1, 2, 7), (3, 2, 65), (3, 9, 4), (2, 5, 5), (2, 33, 80)])
def test_it_equals_torch_in_float64_with_every_gradient(seeds, features, outputs, biased, device):
    x, weight, bias, pull = make(seeds, features, outputs, device)
    bias = bias if biased else None
    ours = pulled(dense if biased else lambda x, weight: dense(x, weight, None), x, weight, bias, pull)
    exact = [tensor if tensor is None else tensor.double() for tensor in (x, weight, bias, pull)]
    for mine, wanted in zip(ours, pulled(F.linear, *exact), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=2e-6, atol=2e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_that_read_the_same(device):
    x, weight, bias, _ = make(3, 4, 20, device)
    ours, plain = (vmap(call, in_dims=(None, 0, 0))(x[0], weight, bias) for call in (dense, F.linear))
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("device", DEVICES)
def test_functional_gradients_and_second_ones(device):
    x, weight, bias, pull = make(2, 3, 8, device)

    def slope(call):
        def total(weight, x, bias, pull):
            return (call(x, weight, bias).tanh() * pull).sum()

        return vmap(grad(total))(weight, x, bias, pull)

    torch.testing.assert_close(slope(dense), slope(F.linear), rtol=1e-4, atol=1e-4)

    def curvature(call):
        w, b = weight[0].clone().requires_grad_(), bias[0].clone().requires_grad_()
        first = torch.autograd.grad(call(x[0], w, b).tanh().square().sum(), [w, b], create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), [w, b])

    torch.testing.assert_close(curvature(dense), curvature(F.linear), rtol=1e-4, atol=1e-2)


def test_on_a_cpu_it_is_torch_bit_for_bit():
    x, weight = torch.randn(4096, 3), torch.randn(2, 3)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert linear(torch.zeros(2, 0), torch.zeros(3, 0)).shape == (2, 3)
