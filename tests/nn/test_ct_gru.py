"""CTGRU is its equations, number for number."""

from __future__ import annotations

import math

import pytest
import torch

from nnarena.nn.ct_gru import CTGRU

B, T, F, H, M = 3, 5, 2, 4, 3


def make(scales=M):
    torch.manual_seed(0)
    layer = CTGRU(F, H, scales=scales, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def slow(weights, x, traces, spans, scales):
    """One sample, one step, one unit and one scale after the other, from dense layers over [x, h]."""
    size = H * scales
    W, U, U_q, b = (weights[name] for name in ("weight_ih", "weight_hh", "weight_qh", "bias"))
    dense = {
        "r": (torch.cat([W[:size], U[:size]], 1), b[:size]),
        "s": (torch.cat([W[size : 2 * size], U[size:]], 1), b[size : 2 * size]),
        "q": (torch.cat([W[2 * size :], U_q], 1), b[2 * size :]),
    }
    taus = [10 ** (i / 2) for i in range(scales)]

    def share(name, read, unit):
        """How much of a unit belongs to each scale."""
        W, b = dense[name]
        logits = []
        for i, tau in enumerate(taus):
            place = unit * scales + i
            logits.append(-((W[place] @ read + b[place] - math.log(tau)) ** 2))
        powers = [logit.exp() for logit in logits]
        return [power / sum(powers) for power in powers]

    all_outputs, all_traces = [], []
    for row in range(len(x)):
        kept, outputs = [list(unit.unbind()) for unit in traces[row].T], []
        for t in range(x.shape[1]):
            h = torch.stack([sum(unit) for unit in kept])
            read = torch.cat([x[row, t], h])
            recalled = torch.stack(
                [sum(r * trace for r, trace in zip(share("r", read, k), kept[k], strict=True)) for k in range(H)]
            )
            W_q, b_q = dense["q"]
            q = torch.tanh(W_q @ torch.cat([x[row, t], recalled]) + b_q)
            new = []
            for k in range(H):
                s = share("s", read, k)
                new.append(
                    [
                        ((1 - s[i]) * kept[k][i] + s[i] * q[k]) * torch.exp(-spans[row, t] / taus[i])
                        for i in range(scales)
                    ]
                )
            kept = new
            outputs.append(torch.stack([sum(unit) for unit in kept]))
        all_outputs.append(torch.stack(outputs))
        all_traces.append(torch.stack([torch.stack(unit) for unit in kept], 1))
    return torch.stack(all_outputs), torch.stack(all_traces)


def weigh(output, state):
    """A scalar in which every number counts differently."""
    return sum(
        (part * torch.arange(1, part.numel() + 1, dtype=part.dtype).reshape(part.shape).cos()).sum()
        for part in (output, state)
    )


@pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("scales", [1, M])
def test_it_equals_the_slow_one_forward_state_and_every_gradient(scales, timed):
    layer = make(scales)
    x, spans = torch.randn(B, T, F, dtype=torch.float64), 2 * torch.rand(B, T, dtype=torch.float64)
    state = torch.randn(B, scales, H, dtype=torch.float64)
    ours = [part.clone().requires_grad_() for part in (x, state, spans)]
    theirs = [part.clone().requires_grad_() for part in (x, state, spans)]
    output, last = layer(ours[0], ours[1], ours[2] if timed else None)
    weights = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    expected, expected_last = slow(
        weights, theirs[0], theirs[1], theirs[2] if timed else torch.ones_like(spans), scales
    )
    torch.testing.assert_close(output, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=1e-11, atol=1e-12)
    weigh(output, last).backward()
    weigh(expected, expected_last).backward()
    for ours_leaf, their_leaf in zip(ours[: 2 + timed], theirs, strict=False):
        torch.testing.assert_close(ours_leaf.grad, their_leaf.grad, rtol=1e-9, atol=1e-11)
    for name, parameter in layer.named_parameters():
        theirs_grad = weights[name].grad
        torch.testing.assert_close(parameter.grad, theirs_grad, rtol=1e-9, atol=1e-11, msg=name)


def test_without_input_every_trace_decays_with_its_own_time():
    layer = make()
    with torch.no_grad():
        layer.bias.zero_()
        layer.weight_hh.zero_()
        layer.weight_qh.zero_()
    state = torch.randn(B, M, H, dtype=torch.float64)
    zero = torch.zeros(B, 1, F, dtype=torch.float64)
    _, short = layer(zero, state, torch.full((B, 1), 1.0))
    _, long = layer(zero, state, torch.full((B, 1), 3.0))
    taus = torch.tensor([1, 10**0.5, 10], dtype=torch.float64)
    torch.testing.assert_close(long, short * (-2 / taus).exp().unsqueeze(-1))


def test_start_values_are_glorots_over_input_and_state_together():
    torch.manual_seed(0)
    layer = CTGRU(30, 20, scales=5)
    blocks = [*layer.weight_ih.split([100, 100, 20]), *layer.weight_hh.split(100), layer.weight_qh]
    for block, outputs in zip(blocks, [100, 100, 20] * 2, strict=True):
        bound = (6 / (50 + outputs)) ** 0.5
        assert 0.95 * bound < block.abs().max() <= bound
    assert not bool(layer.bias.any())


def test_state_and_output_have_their_shapes():
    output, state = make()(torch.zeros(B, T, F, dtype=torch.float64))
    assert output.shape == (B, T, H) and state.shape == (B, M, H)
    torch.testing.assert_close(state.sum(1), output[:, -1])


def test_it_compiles_whole():
    layer, x = make(), torch.randn(B, T, F, dtype=torch.float64)
    spans = torch.rand(B, T, dtype=torch.float64)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(compiled(x, None, spans), layer(x, None, spans))


def test_wrong_scales_are_a_sentence():
    with pytest.raises(ValueError, match="scales must be at least 1, not 0"):
        CTGRU(F, H, scales=0)
    assert repr(CTGRU(2, 3)) == "CTGRU(2, 3, scales=8)"
