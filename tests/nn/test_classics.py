"""Jordan's network is its equations; both directions and layers on top of each other are torch's, number for number."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import nnarena
from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn import CTRNN, GRU, LSTM, Bidirectional, ConvNet1d, Elman, Jordan, Stacked
from nnarena.nn.budget import widest
from nnarena.nn.cells import CELLS, cell_parameters

B, T, F, H = 3, 6, 2, 5
ONE = TaskSpec(input_shape=(T, F), output_size=3, target="values")
EACH = TaskSpec(input_shape=(T, F), output_size=3, target="values", per_step=True)


def x_of(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def shaken(layer, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer.double()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def weigh(output):
    return (output * torch.arange(1, output.numel() + 1, dtype=output.dtype).reshape(output.shape).cos()).sum()


def test_elman_with_relu_is_torchs():
    ours = shaken(Elman(F, H, activation="relu", backend="eager"))
    twin = nn.RNN(F, H, nonlinearity="relu", batch_first=True, dtype=torch.float64)
    theirs = [twin.weight_ih_l0, twin.weight_hh_l0, twin.bias_ih_l0]
    with torch.no_grad():
        twin.bias_hh_l0.zero_()
        for mine, other in zip(ours.parameters(), theirs, strict=True):
            other.copy_(mine)
    a, b = x_of(B, T, F), x_of(B, T, F)
    for output in (ours(a)[0], twin(b)[0]):
        weigh(output).backward()
    close(ours(a)[0], twin(b)[0])
    close(a.grad, b.grad)
    for mine, other in zip(ours.parameters(), theirs, strict=True):
        close(mine.grad, other.grad)
    ours.backend = "native"
    close(ours(a)[0], twin(b)[0])


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_jordan_is_its_equations(decay):
    ours = shaken(Jordan(F, H, 3, decay=decay, backend="eager"))
    x = x_of(B, T, F)
    output, last = ours(x)
    s, by_hand = torch.zeros(B, 3, dtype=torch.float64), []
    for t in range(T):
        h = torch.tanh(x[:, t] @ ours.weight_ih.T + s @ ours.weight_oh.T + ours.bias_h)
        y = h @ ours.weight_ho.T + ours.bias_o
        s = decay * s + y
        by_hand.append(y)
    close(output, torch.stack(by_hand, 1))
    close(last, s)
    if not decay:
        close(last, output[:, -1])  # the output, and nothing else, is kept


def test_jordans_gradients_are_the_slopes():
    ours = shaken(Jordan(F, 3, 2, decay=0.5, backend="eager"))
    assert torch.autograd.gradcheck(lambda x: ours(x)[0], (x_of(2, 3, F),))
    names, values = zip(
        *((name, value.detach().requires_grad_()) for name, value in ours.named_parameters()), strict=True
    )
    x = x_of(2, 3, F).detach()
    call = lambda *given: torch.func.functional_call(ours, dict(zip(names, given, strict=True)), (x,))[0]  # noqa: E731
    assert torch.autograd.gradcheck(call, values)


@pytest.mark.parametrize(("sizes", "reason"), [((2, 3, 0), "output_size"), ((2, 0, 3), "hidden_size")])
def test_jordan_refuses_sizes(sizes, reason):
    with pytest.raises(ValueError, match=f"{reason} must be at least 1, not 0"):
        Jordan(*sizes)
    with pytest.raises(ValueError, match="decay must lie between 0 and 1"):
        Jordan(2, 3, 1, decay=1.0)
    with pytest.raises(ValueError, match="activation is one of tanh, relu, not 'cosine'"):
        Elman(2, 3, activation="cosine")


def torch_twin(kind, stack, layers):
    """torch's bidirectional layers with the weights of ours."""
    theirs = {LSTM: nn.LSTM, GRU: nn.GRU, Elman: nn.RNN}[kind]
    twin = theirs(F, H, num_layers=layers, bidirectional=True, batch_first=True, dtype=torch.float64)
    pairs = {}
    for depth, (way, part) in itertools.product(range(layers), (("", "forwards"), ("_reverse", "backwards"))):
        ours = getattr(stack.layers[depth], part)
        for name, parameter in ours.named_parameters():
            pairs[f"{'bias_ih' if name == 'bias' else name}_l{depth}{way}"] = parameter
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(pairs[name]) if name in pairs else parameter.zero_()
    return twin, pairs


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [LSTM, GRU, Elman])
def test_two_layers_in_both_directions_are_torchs_with_every_gradient(kind, layers, backend):
    stack = shaken(Stacked(*(Bidirectional(kind(2 * H if deep else F, H, backend=backend)) for deep in range(layers))))
    twin, pairs = torch_twin(kind, stack, layers)
    ours, theirs = x_of(B, T, F), x_of(B, T, F)
    output, states = stack(ours)
    their_output, their_state = twin(theirs)
    close(output, their_output)
    their_h = their_state[0] if kind is LSTM else their_state
    for place, state in enumerate(state for pair in states for state in pair):
        close(state[0] if kind is LSTM else state, their_h[place])
    weigh(output).backward()
    weigh(their_output).backward()
    close(ours.grad, theirs.grad)
    for name, parameter in twin.named_parameters():
        if name in pairs:
            close(pairs[name].grad, parameter.grad)
    close(stack.last(output), torch.cat([their_h[-2], their_h[-1]], -1))


def test_stacked_layers_go_on_from_their_states():
    stack = shaken(Stacked(LSTM(F, H), GRU(H, 4), Elman(4, 3)))
    x = x_of(B, T, F)
    whole, _ = stack(x)
    first, state = stack(x[:, :2])
    second, _ = stack(x[:, 2:], state)
    close(torch.cat([first, second], 1), whole)


def test_each_direction_has_start_values_of_its_own_or_is_given():
    torch.manual_seed(0)
    both = Bidirectional(LSTM(F, H))
    assert not torch.equal(both.forwards.weight_ih, both.backwards.weight_ih)
    shared = LSTM(F, H)
    assert Bidirectional(shared, shared).backwards is shared


def test_going_back_the_time_since_the_step_before_is_that_until_the_step_after():
    layer = shaken(CTRNN(F, H))
    both = Bidirectional(layer, layer)
    x, spans = x_of(B, T, F), torch.rand(B, T, dtype=torch.float64) + 0.5
    output, _ = both(x, timespans=spans)
    moments = spans.cumsum(1)
    since = torch.cat([spans[:, :1], moments.diff(dim=1).flip(1)], 1)  # of the turned sequence
    close(output[..., :H], layer(x, timespans=spans)[0])
    close(output[..., H:].flip(1), layer(x.flip(1), timespans=since)[0])


def test_layers_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="Layer 1 gives 5 features, and layer 2 takes 4"):
        Stacked(LSTM(F, 5), LSTM(4, 5))
    with pytest.raises(ValueError, match="at least one layer"):
        Stacked()
    with pytest.raises(ValueError, match="batch first"):
        Bidirectional(LSTM(F, H, batch_first=False))
    for name in ("stacked", "bidirectional", "conv1d"):
        with pytest.raises(Unfit, match="at least 1 layer"):
            catalogue("model")[name].load()(ONE, layers=0)


def test_one_answer_of_both_directions_has_seen_every_step():
    for name in ("bidirectional", "stacked", "conv1d"):
        model = catalogue("model")[name].load()(ONE).double()
        x = x_of(1, T, F)
        model(x).sum().backward()
        assert bool((x.grad.abs().sum(-1) > 0).all()), name
    model = catalogue("model")["bidirectional"].load()(EACH).double()
    x = x_of(1, T, F)
    model(x)[0, 2].sum().backward()
    assert bool((x.grad.abs().sum(-1) > 0).all())  # a step sees past and future


@pytest.mark.parametrize(("kernel", "layers"), [(3, 1), (5, 2), (2, 3), (4, 2)])
def test_convolutions_are_sums_over_time(kernel, layers):
    torch.manual_seed(0)
    net = ConvNet1d(F, 4, kernel_size=kernel, layers=layers).double()
    x = x_of(B, 20, F)
    h = x.detach()
    for depth, layer in enumerate(net.layers):
        out = torch.zeros(B, 20, 4, dtype=torch.float64) + layer.bias
        for t, j in itertools.product(range(20), range(kernel)):
            place = t + 2**depth * (j - (kernel - 1) // 2)
            if 0 <= place < 20:
                out[:, t] += h[:, place] @ layer.weight[:, :, j].T
        h = out.relu()
    close(net(x), h)
    assert net.reach == 1 + (kernel - 1) * (2**layers - 1)


def test_a_convolution_sees_as_far_as_it_says():
    net = ConvNet1d(1, 8, kernel_size=3, layers=3).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.abs_()  # nothing cancels, nothing is cut off
    x = x_of(1, 41, 1).detach().abs().requires_grad_()
    net(x)[0, 20].sum().backward()
    assert int((x.grad != 0).sum()) == net.reach == 15


@pytest.mark.parametrize("name", ["elman", "jordan", "bidirectional", "stacked", "conv1d"])
def test_rivals_have_about_20000_parameters(name):
    cells = ["lstm", "gru", "elman"] if name in ("bidirectional", "stacked") else [None]
    for cell in cells:
        model = nnarena.build(f"{name}[cell={cell}]" if cell else name, task="add")
        count = sum(p.numel() for p in model.parameters())
        assert (2000 if name == "jordan" else 19_000) < count <= 20_000, (cell, count)
    assert sum(p.numel() for p in nnarena.build("jordan", task="walker").parameters()) > 19_900


def test_counts_of_cells_are_theirs():
    for cell, kind in CELLS.items():
        assert cell_parameters(cell, F, H) == sum(p.numel() for p in kind(F, H).parameters())
    for budget in (1, 5, 26, 100, 101):
        width = widest(lambda n: n * n, budget)
        assert width * width <= budget < (width + 1) ** 2
