"""Cells at odd sizes, and what it takes to compare a kernel with autograd in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from nnarena.nn import (
    CTGRU,
    CTRNN,
    DNC,
    GRU,
    LSTM,
    LTC,
    NCP,
    ODELSTM,
    AttentionSplit,
    Elman,
    ExpUnitaryRNN,
    FullyConnected,
    Jordan,
    MemoryAugmentedTransformer,
    MemoryCell,
    Recurrent,
    UnitaryRNN,
)

STEPS = 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CIRCUIT = NCP(
    inter=5, command=4, motor=2, sensory_fanout=2, inter_fanout=2, recurrent_command_synapses=3, motor_fanin=2, seed=1
)
CELLS = {
    "lstm": lambda **more: LSTM(3, 20, **more),
    "gru": lambda **more: GRU(3, 17, **more),
    "elman": lambda **more: Elman(3, 19, **more),
    "elman relu": lambda **more: Elman(3, 6, activation="relu", **more),
    "jordan": lambda **more: Jordan(3, 18, 4, **more),
    "jordan fading": lambda **more: Jordan(3, 5, 2, decay=0.5, **more),
    "ct_rnn": lambda **more: CTRNN(3, 18, **more),
    "ct_rnn euler": lambda **more: CTRNN(3, 5, solver="euler", unfolds=2, **more),
    "ct_gru": lambda **more: CTGRU(3, 7, scales=5, **more),
    "ode_lstm": lambda **more: ODELSTM(3, 18, **more),
    "ltc": lambda **more: LTC(3, CIRCUIT, unfolds=2, **more),
    "ltc full": lambda **more: LTC(3, FullyConnected(5, 2), unfolds=2, **more),
    "unitary": lambda **more: UnitaryRNN(3, 18, capacity=4, **more),
    "unitary real": lambda **more: UnitaryRNN(3, 6, capacity=2, complex=False, **more),
    "exp_unitary": lambda **more: ExpUnitaryRNN(3, 9, trainable_initial_state=True, **more),
    "memory_cell": lambda **more: MemoryCell(**more),
    "dnc": lambda **more: DNC(3, 2, hidden_size=18, slots=5, width=3, reads=2, **more),
    "attention_split": lambda **more: AttentionSplit(6, 18, 3, **more),
    "attention_split released": lambda **more: AttentionSplit(6, 18, 3, variant="released", **more),
    "attention_split gated": lambda **more: AttentionSplit(6, 18, 3, gated=True, **more),
    "attention_split dot_product": lambda **more: AttentionSplit(6, 18, 3, attention="dot_product", **more),
    "memory_transformer": lambda **more: MemoryAugmentedTransformer(
        3, 2, rows=4, columns=5, d_model=16, nhead=2, dim_feedforward=18, **more
    ),
}


class Last(nn.Module):
    """A layer of which the last output counts: asked for it alone, or picked out of all (`whole`)."""

    def __init__(self, layer, whole=False):
        super().__init__()
        self.layer, self.whole = layer, whole

    def forward(self, *given):
        return (self.layer(*given)[0][:, -1] if self.whole else self.layer.final(*given)), ()


def make(name, seed=0, cells=CELLS):
    torch.manual_seed(seed)
    layer = cells[name](backend="fused")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def inputs(layer, batch=3, steps=STEPS, seed=1):
    """x, timespans where the layer takes them, and a state that is not the one it would start from."""
    generator = torch.Generator().manual_seed(seed)
    device = next(layer.parameters()).device
    x = torch.randn(batch, steps, layer.input_size, generator=generator).to(device)
    spans = (torch.rand(batch, steps, generator=generator) + 0.5).to(device) if layer.continuous else None

    def elsewhere(part):
        return (part + 0.1 * torch.rand(part.shape, generator=generator).to(device)).detach()

    return x, spans, pytree.tree_map(elsewhere, layer.initial_state(batch, x))


def train(layer, weights, x, spans, state, driven=True):
    """Outputs, last state and all gradients of a sum in which every number counts differently.

    That of x is among them if it is `driven`, as by another layer.
    """
    leaves, tree = pytree.tree_flatten(state)
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    x = x.clone().requires_grad_(driven)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    fixed = dict(layer.named_buffers())
    given = (x, pytree.tree_unflatten(leaves, tree), *([] if spans is None else [spans]))
    output, last = functional_call(layer, {**weights, **fixed}, given)
    results = [output, *pytree.tree_leaves(last)]
    total = x.new_zeros(())
    for place, part in enumerate(results):
        numbers = torch.arange(part.numel(), dtype=torch.float64).add(place).cos().view(part.shape)
        total = total + (part * numbers.to(part)).sum()
    wanted = [*([x] if driven else []), *leaves, *weights.values()]
    gradients = torch.autograd.grad(total, wanted, allow_unused=True)
    names = [*(["x"] if driven else []), *(f"state {place}" for place in range(len(leaves))), *weights]
    return results, {
        name: torch.zeros_like(tensor) if part is None else part
        for name, part, tensor in zip(names, gradients, wanted, strict=True)
    }


def reference(layer, x, spans, state, driven=True):
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    for part in exact.modules():
        if isinstance(part, Recurrent):
            part.backend = "eager"
    doubled = pytree.tree_map(lambda part: part.double(), state)
    spans = None if spans is None else spans.double()
    return train(exact, dict(exact.named_parameters()), x.double(), spans, doubled, driven)


def assert_near(ours, exact, what, tolerance=2e-5, floor=0.1):
    """Near in the norm of the whole tensor: single numbers may cancel to almost nothing.

    One that is zero but for rounding is held against `floor`.
    """
    error = (ours.double() - exact).norm() / exact.norm().clamp_min(floor)
    assert error < tolerance, f"{what}: {float(error):.1e}"


class Own(Recurrent):
    """A cell that somebody brings, written without a thought of kernels: one function, x and state go in."""

    def __init__(self, step=None):
        super().__init__(3, 6, backend="fused")
        self.W, self.U = nn.Parameter(torch.randn(3, 6) / 2), nn.Parameter(torch.randn(6, 6) / 3)
        self.taken = step

    def initial_state(self, batch, like):
        return like.new_zeros(batch, 6)

    def constants(self):
        return self.W, self.U

    @staticmethod
    def step(constants, u, state):
        W, U = constants
        state = torch.where(state > 0.1, torch.tanh(u @ W.exp() + state @ U), 0.5 * state.roll(1, -1))
        return state, torch.cat([state[:, ::2], state.flip(-1)[:, :2]], -1)


class Straight(torch.autograd.Function):
    """The sign of a number, with a gradient as if it were the number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, pull):
        return pull


def without_gradient(x):
    with torch.no_grad():
        return x.sigmoid()


STEPS_OF_OTHERS = {
    "branches, rolls, flips and strides": Own.step,
    "softmax": lambda c, u, h: ((u @ c[0] + h @ c[1]).softmax(-1),) * 2,
    "norm": lambda c, u, h: (F.layer_norm(u @ c[0] + h @ c[1], (6,)),) * 2,
    "gelu and silu": lambda c, u, h: (F.gelu(u @ c[0]) + F.silu(h @ c[1]),) * 2,
    "einsum": lambda c, u, h: (torch.einsum("bi,ij,bj->bj", h, c[1], u @ c[0]).tanh(),) * 2,
    "stack and mean": lambda c, u, h: (torch.stack([h, u @ c[0], h @ c[1]]).mean(0),) * 2,
    "outer products": lambda c, u, h: ((h.unsqueeze(2) * (u @ c[0]).unsqueeze(1)).sum(1).tanh(),) * 2,
    "views": lambda c, u, h: ((h.view(-1, 2, 3).mT.flatten(1) @ c[1] + u @ c[0]).sin(),) * 2,
    "powers and roots": lambda c, u, h: ((h.square() + (u @ c[0]).abs() + 1).sqrt() @ c[1],) * 2,
    "clamp and where": lambda c, u, h: (torch.where(h > 0, (h @ c[1]).clamp(-0.5, 0.5), (u @ c[0]).relu()),) * 2,
    "logsumexp": lambda c, u, h: (h @ c[1] - torch.logsumexp(u @ c[0], -1, keepdim=True),) * 2,
    "views of views": lambda c, u, h: (
        (torch.cat([(h @ c[1]).split([2, 4], 1)[1].split([3, 1], 1)[0]] * 2, 1) + u @ c[0],) * 2
    ),
    "detach": lambda c, u, h: ((z := (u @ c[0] + h @ c[1]).tanh()) * z.detach(),) * 2,
    "no gradient": lambda c, u, h: (((u @ c[0]).tanh() + h @ c[1]) * without_gradient(h - u @ c[0]),) * 2,
    "a gradient of its own": lambda c, u, h: (0.5 * Straight.apply(u @ c[0] + 0.3 * h @ c[1]),) * 2,
    "what it was given": lambda c, u, h: ((h @ c[1] + u @ c[0]).tanh(), h),
    "the largest": lambda c, u, h: (h @ c[1] / (1 + (u @ c[0]).amax(-1, keepdim=True).abs()),) * 2,
}


def check_without_gradients(layer, batch):
    """Without gradients the numbers are the same."""
    x, spans, state = inputs(layer, batch)
    more = {} if spans is None else {"timespans": spans}
    output, last = layer(x, state, **more)
    with torch.no_grad():
        plain, also_last = layer(x, state, **more)
    for part, other in zip([plain, *pytree.tree_leaves(also_last)], [output, *pytree.tree_leaves(last)], strict=True):
        torch.testing.assert_close(part, other, rtol=1e-5, atol=1e-6)


def check_last(layer, tolerance):
    """The last output may be all that is wanted."""
    given = inputs(layer, 2)
    (ours,), gradients = train(Last(layer), dict(Last(layer).named_parameters()), *given)
    (exact,), slopes = reference(Last(layer, whole=True), *given)
    assert_near(ours, exact, "output", tolerance)
    for part in slopes:
        assert_near(gradients[part], slopes[part], part, tolerance)


ROWS, COLUMNS, UNITS = 4, 12, 40  # as many columns as matrix units multiply


class Fed(Recurrent):
    """A memory whose rows are fed to a net of two layers, in several ways of writing it down."""

    def __init__(self, feed):
        super().__init__(3, 1, backend="fused")
        self.feed = feed
        self.W, self.V = nn.Parameter(torch.randn(COLUMNS, UNITS) / 3), nn.Parameter(torch.randn(UNITS, COLUMNS) / 6)
        self.b, self.U = nn.Parameter(torch.randn(UNITS) / 9), nn.Parameter(torch.randn(3, COLUMNS))
        self.r = nn.Parameter(1e4 * torch.randn(ROWS, 1))

    def initial_state(self, batch, like):
        return like.new_zeros(batch, ROWS, COLUMNS)

    def constants(self):
        return self.W, self.b, self.V, self.r, self.U

    @property
    def step(self):
        def step(constants, u, state):
            *net, U = constants
            state = 0.5 * state + 0.5 * (self.feed(net, state.tanh()) + (u @ U).unsqueeze(1)).tanh()
            return state, state.sum(1)

        return step


FEEDS = {
    "relu": lambda net, z: (z @ net[0] + net[1]).relu() @ net[2],
    "relu, added to": lambda net, z: z + (z @ net[0] + net[1]).relu() @ net[2],
    "relu of a linear layer": lambda net, z: F.linear(z, net[0].mT, net[1]).relu() @ net[2],
    "relu, twice": lambda net, z: (h := (z @ net[0] + net[1]).relu()) @ net[2] + 0.1 * (h * h) @ net[2],
    "relu, and its mean": lambda net, z: (h := (z @ net[0] + net[1]).relu()) @ net[2] * h.mean(-1, keepdim=True),
    "relu, and its mean, not learned": lambda net, z: (
        (h := (z @ net[0] + net[1]).relu()) @ net[2] * h.detach().mean(-1, keepdim=True)
    ),
    "relu, with a bias for every row": lambda net, z: 1e-4 * ((z @ net[0] + net[3]).relu() @ net[2]),
    "no relu": lambda net, z: (z @ net[0] + net[1]) @ net[2],
    "tanh": lambda net, z: (z @ net[0] + net[1]).tanh() @ net[2],
}
