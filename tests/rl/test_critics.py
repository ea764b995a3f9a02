"""Two critics as one against one after the other, values and every gradient."""

from __future__ import annotations

import pytest
import torch

from nnarena.rl.critics import ask_critics, ask_least, ask_plainly, make_critics


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sizes", [(11, 3, 2, 7), (1, 17, 6, 256), (256, 3, 1, 32)])
def test_values_and_all_gradients_agree_with_the_plain_way(sizes, dtype):
    count, features, actions, hidden = sizes
    torch.manual_seed(0)
    critics = [tensor.detach().to(dtype).requires_grad_() for tensor in make_critics(features + actions, hidden)]
    observation = torch.randn(count, features, dtype=dtype)
    action = torch.randn(count, actions, dtype=dtype, requires_grad=True)
    ours, plain = (ask(critics, observation, action) for ask in (ask_critics, ask_plainly))
    torch.testing.assert_close(ours, plain)
    weight = torch.randn_like(plain)
    pairs = zip(*(torch.autograd.grad(q, [action, *critics], weight) for q in (ours, plain)), strict=True)
    for ours, plain in pairs:
        torch.testing.assert_close(ours, plain)


def test_only_actions_get_a_gradient_from_frozen_critics():
    critics = [tensor.detach() for tensor in make_critics(5, 8)]
    observation, action = torch.randn(4, 3), torch.randn(4, 2, requires_grad=True)
    (ours,) = torch.autograd.grad(ask_critics(critics, observation, action).sum(), action)
    (plain,) = torch.autograd.grad(ask_plainly(critics, observation, action).sum(), action)
    torch.testing.assert_close(ours, plain)


def test_start_values_are_those_of_a_linear_layer():
    W1, b1, W2, _, W3, b3 = (tensor.detach() for tensor in make_critics(16, 100))
    assert W1.shape == (2, 100, 16) and b1.shape == (2, 100) and W3.shape == (2, 100) and b3.shape == (2,)
    assert 0.24 < float(W1.abs().max()) <= 0.25 and 0.099 < float(W2.abs().max()) <= 0.1
    assert not torch.equal(W2[0], W2[1])


@pytest.mark.parametrize("sizes", [(11, 3, 2, 7), (1, 17, 6, 32), (64, 3, 1, 32)])
def test_the_lower_of_both_and_its_gradient_agree_with_the_plain_way(sizes):
    count, features, actions, hidden = sizes
    torch.manual_seed(0)
    critics = [tensor.detach().double() for tensor in make_critics(features + actions, hidden)]
    observation = torch.randn(count, features, dtype=torch.float64)
    action = torch.randn(count, actions, dtype=torch.float64, requires_grad=True)
    ours = ask_least(critics, observation, action)
    plain = ask_plainly(critics, observation, action).min(0).values
    torch.testing.assert_close(ours, plain)
    weight = torch.randn_like(plain)
    gradients = [torch.autograd.grad(value, action, weight)[0] for value in (ours, plain)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(ask_least(critics, observation, action.detach()), plain)


def test_one_critic_may_be_lower_everywhere():
    critics = [tensor.detach() for tensor in make_critics(5, 8)]
    critics[-1][0] += 100
    observation, action = torch.randn(4, 3), torch.randn(4, 2, requires_grad=True)
    (ours,) = torch.autograd.grad(ask_least(critics, observation, action).sum(), action)
    (plain,) = torch.autograd.grad(ask_plainly(critics, observation, action)[1].sum(), action)
    torch.testing.assert_close(ours, plain)
