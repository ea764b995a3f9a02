"""Two critics as one against one after the other, values and every gradient."""

from __future__ import annotations

import pytest
import torch

from nnarena.rl.critics import Critics, _through_both, ask_least, ask_plainly, correct, make_critics


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sizes", [(11, 3, 2, 7), (1, 17, 6, 256), (256, 3, 1, 32)])
def test_errors_and_all_gradients_agree_with_the_plain_way(sizes, dtype):
    count, features, actions, hidden = sizes
    torch.manual_seed(0)
    critics = [tensor.detach().to(dtype).requires_grad_() for tensor in make_critics(features + actions, hidden)]
    observation, action = torch.randn(count, features, dtype=dtype), torch.randn(count, actions, dtype=dtype)
    target = torch.randn(count, dtype=dtype)
    error, ours = correct(Critics(critics), observation, action, target)
    plain = ask_plainly(critics, observation, action) - target
    torch.testing.assert_close(error, plain)
    loss = 0.5 * plain.square().mean(1).sum()
    for one, other in zip(ours, torch.autograd.grad(loss, critics), strict=True):
        torch.testing.assert_close(one, other)


def test_critics_see_what_is_written_to_their_tensors():
    tensors = [tensor.detach() for tensor in make_critics(5, 8)]
    critics, observation, action = Critics(tensors), torch.randn(4, 3), torch.randn(4, 2)
    before = ask_least(critics, observation, action)
    for tensor in tensors:
        tensor.add_(0.1)
    after = ask_least(critics, observation, action)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, ask_plainly(tensors, observation, action).min(0).values)


def test_start_values_are_those_of_a_linear_layer():
    W1, b1, W2, _, W3, b3 = (tensor.detach() for tensor in make_critics(16, 100))
    assert W1.shape == (2, 100, 16) and b1.shape == (2, 100) and W3.shape == (2, 100) and b3.shape == (2,)
    assert 0.24 < float(W1.abs().max()) <= 0.25 and 0.099 < float(W2.abs().max()) <= 0.1
    assert not torch.equal(W2[0], W2[1])


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("sizes", [(11, 3, 2, 7), (1, 17, 6, 32), (64, 3, 1, 32)])
def test_the_lower_of_both_and_its_gradient_agree_with_the_plain_way(sizes, device, monkeypatch):
    if device == "gpu":  # whose way runs anywhere
        monkeypatch.setattr("nnarena.rl.critics._through_one", _through_both)
    count, features, actions, hidden = sizes
    torch.manual_seed(0)
    critics = [tensor.detach().double() for tensor in make_critics(features + actions, hidden)]
    observation = torch.randn(count, features, dtype=torch.float64)
    action = torch.randn(count, actions, dtype=torch.float64, requires_grad=True)
    ours = ask_least(Critics(critics), observation, action)
    plain = ask_plainly(critics, observation, action).min(0).values
    torch.testing.assert_close(ours, plain)
    weight = torch.randn_like(plain)
    gradients = [torch.autograd.grad(value, action, weight)[0] for value in (ours, plain)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(ask_least(Critics(critics), observation, action.detach()), plain)


def test_one_critic_may_be_lower_everywhere():
    critics = [tensor.detach() for tensor in make_critics(5, 8)]
    critics[-1][0] += 100
    observation, action = torch.randn(4, 3), torch.randn(4, 2, requires_grad=True)
    (ours,) = torch.autograd.grad(ask_least(Critics(critics), observation, action).sum(), action)
    (plain,) = torch.autograd.grad(ask_plainly(critics, observation, action)[1].sum(), action)
    torch.testing.assert_close(ours, plain)
