"""ODELSTM is its equations, number for number."""

from __future__ import annotations

import pytest
import torch

from nnarena.nn.ct_rnn import CTRNN
from nnarena.nn.ode_lstm import ODELSTM

B, T, F, H = 3, 5, 2, 4


def make(**options):
    torch.manual_seed(0)
    layer = ODELSTM(F, H, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def slow(weights, x, h, c, spans, unfolds):
    """One sample and one step after the other, gate by gate, with Euler's method."""
    W, U, b = weights["weight_ih"], weights["weight_hh"], weights["bias"]
    W_flow, U_flow = weights["flow.weight_ih"], weights["flow.weight_hh"]
    b_flow, scale = weights["flow.bias"], weights["flow.scale"]
    all_outputs, all_h, all_c = [], [], []
    for row in range(len(x)):
        state, memory, outputs = h[row], c[row], []
        for t in range(x.shape[1]):
            i, f, g, o = (
                W[gate * H : (gate + 1) * H] @ x[row, t]
                + U[gate * H : (gate + 1) * H] @ state
                + b[gate * H : (gate + 1) * H]
                for gate in range(4)
            )
            memory = memory / (1 + torch.exp(-f - 3)) + torch.tanh(g) / (1 + torch.exp(-i))
            shown = torch.tanh(memory) / (1 + torch.exp(-o))
            for _ in range(unfolds):
                slope = scale * torch.tanh(W_flow @ shown + U_flow @ state + b_flow) - state
                state = state + spans[row, t] / unfolds * slope
            outputs.append(state)
        all_outputs.append(torch.stack(outputs))
        all_h.append(state)
        all_c.append(memory)
    return torch.stack(all_outputs), torch.stack(all_h), torch.stack(all_c)


def weigh(*parts):
    """A scalar in which every number counts differently."""
    return sum(
        (part * torch.arange(1, part.numel() + 1, dtype=part.dtype).reshape(part.shape).cos()).sum() for part in parts
    )


@pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("unfolds", [1, 4])
def test_it_equals_the_slow_one_forward_state_and_every_gradient(unfolds, timed):
    layer = make(unfolds=unfolds)
    given = [torch.randn(B, T, F), torch.randn(B, H), torch.randn(B, H), 2 * torch.rand(B, T)]
    ours = [part.double().requires_grad_() for part in given]
    theirs = [part.double().requires_grad_() for part in given]
    output, (h, c) = layer(ours[0], (ours[1], ours[2]), ours[3] if timed else None)
    weights = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    spans = theirs[3] if timed else torch.ones(B, T, dtype=torch.float64)
    expected = slow(weights, *theirs[:3], spans, unfolds)
    for part, other in zip((output, h, c), expected, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-11, atol=1e-12)
    weigh(output, h, c).backward()
    weigh(*expected).backward()
    for place in range(3 + timed):
        torch.testing.assert_close(ours[place].grad, theirs[place].grad, rtol=1e-9, atol=1e-11)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-9, atol=1e-11, msg=name)


def test_the_forget_bias_is_no_parameter():
    layer = ODELSTM(F, H)
    assert not bool(layer.bias.any())
    zero = torch.zeros(B, 1, F)
    with torch.no_grad():
        layer.weight_hh.zero_()
    _, (_, c) = layer(zero, (torch.zeros(B, H), torch.ones(B, H)))
    torch.testing.assert_close(c, torch.full((B, H), 3.0).sigmoid())


def test_no_time_moves_the_memory_and_not_the_hidden_state():
    layer, x = make(), torch.randn(B, T, F, dtype=torch.float64)
    h, c = torch.randn(2, B, H, dtype=torch.float64)
    output, (end, memory) = layer(x, (h, c), torch.zeros(B, T))
    assert torch.equal(end, h) and torch.equal(output, h.unsqueeze(1).expand_as(output))
    assert not torch.allclose(memory, c)


def test_its_flow_is_a_ct_rnn():
    layer = make(solver="rk4", unfolds=2)
    assert isinstance(layer.flow, CTRNN) and (layer.flow.solver, layer.flow.unfolds) == ("rk4", 2)
    x, h = torch.randn(B, 1, F, dtype=torch.float64), torch.randn(B, H, dtype=torch.float64)
    output, (_, c) = layer(x, (h, torch.zeros_like(h)))
    gates = x[:, 0] @ layer.weight_ih.T + h @ layer.weight_hh.T + layer.bias
    shown = gates[:, 3 * H :].sigmoid() * c.tanh()
    torch.testing.assert_close(layer.flow(shown.unsqueeze(1), h)[0], output)


def test_start_values_are_those_published():
    torch.manual_seed(0)
    layer = ODELSTM(30, 20)
    for weight in (layer.weight_hh, layer.flow.weight_hh):
        torch.testing.assert_close(weight.T @ weight, torch.eye(20), atol=1e-5, rtol=0)
    for weight, bound in ((layer.weight_ih, (6 / 110) ** 0.5), (layer.flow.weight_ih, (6 / 40) ** 0.5)):
        assert 0.9 * bound < weight.abs().max() <= bound
    assert not bool(layer.flow.bias.any()) and bool((layer.flow.scale == 1).all())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"solver": "rk5"}, "solver is one of euler, heun, rk4, dopri5, not 'rk5'"),
        ({"unfolds": -2}, "unfolds must be at least 1, not -2"),
    ],
)
def test_wrong_options_are_sentences(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ODELSTM(F, H, **options)
