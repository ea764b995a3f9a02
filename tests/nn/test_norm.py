"""A layer norm of many short rows is torch's, with its GELU and every gradient, for one seed and for many."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from nnarena.kernels.layers import norm
from nnarena.nn.norm import LayerNorm, layer_norm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EPSILON = 1e-5


def plain(x, weight, bias, gelu):
    normed = F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)
    return F.gelu(normed) if gelu else normed


def ours(x, weight, bias, gelu):
    return norm.row_norm(x, weight, bias, EPSILON, gelu)


def make(seeds, rows, width, device):
    """x (S, 2, R, W), weights, biases and a pull on the result."""
    numbers = torch.Generator().manual_seed(width)
    shapes = (seeds, 2, rows, width), (seeds, width), (seeds, width), (seeds, 2, rows, width)
    return [(torch.randn(shape, generator=numbers) + 0.5).to(device) for shape in shapes]


def pulled(call, gelu, x, weight, bias, pull):
    tensors = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    output = vmap(lambda *each: call(*each, gelu))(*tensors)
    return output.detach(), *torch.autograd.grad((output * pull).sum(), tensors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gelu", [True, False], ids=["with gelu", "alone"])
@pytest.mark.parametrize(("seeds", "rows", "width"), [(1, 3, 8), (3, 300, 3), (2, 70, 12), (2, 9, 65)])
def test_it_equals_torch_in_float64_with_every_gradient(seeds, rows, width, gelu, device, monkeypatch):
    monkeypatch.setattr(norm, "PROGRAMS", 2)  # so that one has several blocks, and the last is not whole
    given = make(seeds, rows, width, device)
    exact = pulled(plain, gelu, *(tensor.double() for tensor in given))
    for mine, wanted in zip(pulled(ours, gelu, *given), exact, strict=True):
        assert (mine.double() - wanted).norm() < 2e-6 * wanted.norm()


def test_seeds_that_read_the_same():
    x, weight, bias, _ = make(3, 5, 6, "cpu")
    mine, theirs = (vmap(lambda *e, c=c: c(*e, True), in_dims=(None, 0, 0))(x[0], weight, bias) for c in (ours, plain))
    torch.testing.assert_close(mine, theirs)


def test_the_same_call_gives_the_same_bits():
    given = make(2, 300, 5, "cpu")
    once, again = (pulled(ours, True, *given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gelu", [True, False], ids=["with gelu", "alone"])
def test_its_second_derivative_is_torchs(gelu, device):
    def curvature(call, x, weight, bias, pull):
        tensors = [tensor.clone().requires_grad_() for tensor in (x, weight, bias, pull)]
        output = vmap(lambda *each: call(*each, gelu))(*tensors[:3])
        slopes = torch.autograd.grad((output * tensors[3]).sum(), tensors[:3], create_graph=True)
        return torch.autograd.grad(sum(slope.sin().sum() for slope in slopes), tensors, materialize_grads=True)

    given = make(2, 5, 7, device)
    exact = curvature(plain, *(tensor.double() for tensor in given))
    for mine, wanted in zip(curvature(ours, *given), exact, strict=True):
        assert (mine.double() - wanted).norm() <= 1e-5 * wanted.norm()


def test_on_a_cpu_it_is_torch_bit_for_bit():
    x, weight, bias, _ = make(1, 2000, 4, "cpu")
    for gelu in (True, False):
        assert torch.equal(layer_norm(x, weight[0], bias[0], gelu=gelu), plain(x, weight[0], bias[0], gelu))


@pytest.mark.gpu
def test_short_rows_on_a_gpu_take_the_kernel(monkeypatch):
    called = []
    monkeypatch.setattr(norm, "row_norm", lambda x, *_: called.append(x.shape[-1]) or x)
    for width, rows in ((8, 2000), (8, 5), (300, 2000)):
        layer_norm(torch.randn(rows, width, device="cuda"), *torch.randn(2, width, device="cuda"))
    LayerNorm(8).cuda()(torch.randn(2000, 8, device="cuda"))
    assert called == [8, 8]
