"""A dense layer in parts is a dense layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nnarena.nn.linear import linear, linear_in_parts


def gradients(call, *tensors):
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    output = call(*tensors)
    numbers = torch.arange(output.numel(), dtype=output.dtype).sin().view_as(output)
    return output, *torch.autograd.grad((output * numbers).sum(), tensors)


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_it_equals_torch_with_every_gradient(parts):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 3, 5).double(), torch.randn(7, 5).double(), torch.randn(7).double()
    ours = gradients(lambda x, weight, bias: linear_in_parts(x, weight, bias, parts), x, weight, bias)
    for mine, theirs in zip(ours, gradients(F.linear, x, weight, bias), strict=True):
        torch.testing.assert_close(mine, theirs)
    plain = linear_in_parts(x, weight, None, parts)
    torch.testing.assert_close(plain, F.linear(x, weight))


def test_on_a_cpu_it_is_torch_bit_for_bit():
    x, weight = torch.randn(4096, 3), torch.randn(2, 3)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert linear(torch.zeros(2, 0), torch.zeros(3, 0)).shape == (2, 3)
