"""The rotations make a unitary matrix, which keeps lengths and gradients over a thousand steps."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap

from nnarena.core.spec import TaskSpec
from nnarena.kernels.layers import rotation
from nnarena.nn import unitary_rnn as unitary
from nnarena.nn.recurrent import _parts
from nnarena.nn.unitary_rnn import UnitaryRNN, unitary_rnn

B, T, F, H = 3, 6, 2, 8
VARIANTS = {
    "tunable": {"capacity": 4},
    "full": {"capacity": 8},
    "fft": {"style": "fft"},
    "real": {"capacity": 4, "complex": False},
    "real fft": {"style": "fft", "complex": False},
    "linear": {"capacity": 4, "modrelu": False},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """These matrices are so small that threads spend their time on waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(options, **more):
    torch.manual_seed(0)
    made = UnitaryRNN(F, H, dtype=torch.float64, **options, **more)
    with torch.no_grad():
        made.weight_ih.normal_()
        if made.bias is not None:
            made.bias.normal_(std=0.5)  # so that modReLU shrinks some units, stretches some and shuts others
    return made


def inputs(steps=T):
    return torch.randn(B, steps, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def start(layer):
    generator = torch.Generator().manual_seed(2)
    parts = tuple(torch.randn(B, H, dtype=torch.float64, generator=generator) for _ in range(1 + layer.complex))
    return parts if layer.complex else parts[0]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def all_close(state, other):
    for part, same in zip(_parts(state), _parts(other), strict=True):
        close(part, same)


def unitarity(matrix):
    """By how much W Wᴴ misses the identity, whatever the precision of W."""
    matrix = matrix.detach().to(torch.complex128)
    return float((matrix @ matrix.mH - torch.eye(len(matrix))).abs().max())


def pairs_of(layer):
    """Who is turned by which angle: for each layer of rotations a list of (first, second, place of the angle)."""
    size = layer.hidden_size
    if layer.style == "tunable":
        return [
            [(j, j + 1, (n // 2, j)) for j in range(size - 1) if j % 2 == n % 2]  # even first, then odd
            for n in range(layer.capacity)
        ]
    found = []
    for n in range(layer.capacity):
        apart = size // 2 ** (n + 1)
        firsts = [j for j in range(size) if j // apart % 2 == 0]
        found.append([(j, j + apart, (n, place)) for place, j in enumerate(firsts)])
    return found


def product_of_blocks(layer):
    """W as it is defined: one matrix for each rotation, multiplied in turn."""
    matrix = torch.eye(layer.hidden_size, dtype=torch.complex128)
    for pairs in pairs_of(layer):
        for first, second, place in pairs:
            cos, sin = layer.theta[place].cos(), layer.theta[place].sin()
            phase = torch.exp(1j * layer.phi[place]) if layer.complex else 1
            block = torch.eye(layer.hidden_size, dtype=torch.complex128)
            block[first, first], block[first, second] = cos + 0j, -sin * phase + 0j
            block[second, first], block[second, second] = sin + 0j, cos * phase + 0j
            matrix = block @ matrix
    return torch.exp(1j * layer.omega).unsqueeze(1) * matrix if layer.complex else matrix


def naive(layer, x, state):
    """The equations, step by step, in complex numbers."""
    matrix = product_of_blocks(layer)
    weight = torch.complex(*layer.weight_ih.chunk(2)) if layer.complex else layer.weight_ih + 0j
    h = torch.complex(*state) if layer.complex else state + 0j
    outputs = []
    for t in range(x.shape[1]):
        z = h @ matrix.T + (x[:, t] + 0j) @ weight.T
        n = z.abs() + 0.01
        h = z if layer.bias is None else z / n * torch.relu(n + layer.bias)
        outputs.append(h.real)
    return torch.stack(outputs, 1), ((h.real, h.imag) if layer.complex else h.real)


@variants
def test_the_matrix_is_the_product_of_its_rotations(options):
    layer = make(options)
    matrix = layer.recurrent_matrix()
    assert matrix.shape == (H, H) and matrix.is_complex() == layer.complex
    torch.testing.assert_close(matrix + 0j, product_of_blocks(layer), rtol=0, atol=1e-13)


@variants
def test_turning_h_is_multiplying_by_the_matrix(options):
    layer = make(options)
    state = _parts(start(layer))
    turned = layer.rotate(torch.stack(state))
    dense = (torch.complex(*state) if layer.complex else state[0]) @ layer.recurrent_matrix().T
    close(torch.complex(*turned) if layer.complex else turned[0], dense)


@variants
def test_it_equals_the_naive_loop_forward_final_state_and_every_gradient(options):
    layer = make(options)
    results = []
    for run in (layer, lambda x, state: naive(layer, x, state)):
        x = inputs().requires_grad_()
        parts = tuple(part.requires_grad_() for part in _parts(start(layer)))
        output, last = run(x, parts if layer.complex else parts[0])
        total = (output * torch.arange(output.numel(), dtype=x.dtype).view_as(output).cos()).sum()
        total = total + sum(((place + 1) * part.sin()).sum() for place, part in enumerate(_parts(last)))
        results.append((output, *_parts(last), *torch.autograd.grad(total, (x, *parts, *layer.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs)
        assert bool(theirs.any())


@settings(max_examples=40, deadline=None)
@given(
    half=st.integers(1, 32),
    layers=st.integers(1, 16),
    power=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    real=st.booleans(),
    wide=st.floats(0, 10),
)
def test_the_matrix_is_unitary_whatever_the_angles(half, layers, power, seed, real, wide):
    for options in (
        {"hidden_size": 2 * half, "capacity": 2 * min(layers, half)},
        {"hidden_size": 2**power, "style": "fft"},
    ):
        for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            torch.manual_seed(seed)
            layer = UnitaryRNN(1, **options, complex=not real, dtype=dtype)
            with torch.no_grad():
                layer.theta.mul_(wide)
            assert unitarity(layer.recurrent_matrix()) < bound


def test_full_capacity_reaches_every_direction_of_the_unitary_matrices():
    layer = UnitaryRNN(1, 6, capacity=6, dtype=torch.float64)
    angles = (layer.theta, layer.phi, layer.omega)
    entries = torch.view_as_real(layer.recurrent_matrix()).flatten()
    rows = [torch.autograd.grad(entry, angles, retain_graph=True) for entry in entries]
    slopes = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    assert slopes.shape == (2 * 36, 36)  # unitary matrices of size 6 have 36 degrees of freedom
    assert torch.linalg.matrix_rank(slopes, rtol=1e-8) == 36


def drive(layer, steps, h):
    """The last state after so many steps of silence."""
    return layer(torch.zeros(len(h[0]), steps, layer.input_size), h)[1]


@pytest.mark.parametrize("style", ["tunable", "fft"])
def test_a_thousand_steps_keep_the_length_of_the_state_and_of_its_gradient(style):
    torch.manual_seed(0)
    layer = UnitaryRNN(1, 32, style=style, modrelu=False)
    h = tuple(torch.randn(2, 32).requires_grad_() for _ in range(2))
    last = drive(layer, 1000, h)
    length, kept = torch.cat(h, 1).norm(dim=1), torch.cat(last, 1).norm(dim=1)
    torch.testing.assert_close(kept, length, rtol=1e-3, atol=0)
    asked = tuple(torch.randn(2, 32) for _ in range(2))
    back = torch.autograd.grad(last, h, asked)
    torch.testing.assert_close(torch.cat(back, 1).norm(dim=1), torch.cat(asked, 1).norm(dim=1), rtol=1e-3, atol=0)


def test_a_plain_tanh_network_loses_the_gradient_on_that_way():
    torch.manual_seed(0)
    layer = nn.RNN(1, 64, batch_first=True)
    h = torch.randn(1, 2, 64).requires_grad_()
    asked = torch.randn(1, 2, 64)
    (back,) = torch.autograd.grad(layer(torch.zeros(2, 1000, 1), h)[1], h, asked)
    assert back.norm() / asked.norm() < 1e-10


def test_modrelu_starts_as_the_identity():
    torch.manual_seed(0)
    layer = UnitaryRNN(F, H, capacity=4, dtype=torch.float64)
    linear = UnitaryRNN(F, H, capacity=4, modrelu=False, dtype=torch.float64)
    linear.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "bias"})
    close(layer(inputs())[0], linear(inputs())[0])


@variants
def test_zeros_give_zeros_and_finite_gradients(options):
    layer = make(options)
    output, _ = layer(torch.zeros(B, T, F, dtype=torch.float64))
    assert not output.any()
    output.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


@variants
def test_gradients_are_the_slopes(options):
    layer = make(options)
    names, tensors = zip(*layer.named_parameters(), strict=True)
    state = tuple(part.requires_grad_() for part in _parts(start(layer)))

    def run(x, *rest):
        given = rest[: len(state)]
        weights = dict(zip(names, rest[len(state) :], strict=True))
        output, last = torch.func.functional_call(layer, weights, (x, given if layer.complex else given[0]))
        return output, *_parts(last)

    assert torch.autograd.gradcheck(run, (inputs(2).requires_grad_(), *state, *tensors), fast_mode=True)


@variants
def test_two_pieces_are_the_whole_and_the_past_does_not_see_the_future(options):
    layer, x = make(options), inputs()
    whole, last = layer(x)
    first, between = layer(x[:, :2])
    second, end = layer(x[:, 2:], between)
    close(torch.cat([first, second], 1), whole)
    all_close(end, last)


@variants
def test_the_order_of_the_batch_and_of_its_axes_does_not_matter(options):
    layer, x = make(options), inputs()
    state = start(layer)
    output, last = layer(x, state)
    flipped = tuple(part.flip(0) for part in _parts(state))
    close(layer(x.flip(0), flipped if layer.complex else flipped[0])[0].flip(0), output)
    turned, also_last = make(options, batch_first=False)(x.transpose(0, 1), state)
    close(turned.transpose(0, 1), output)
    all_close(also_last, last)


@variants
def test_copies_pickles_and_state_dicts_give_the_same_numbers(options):
    layer, x = make(options), inputs()
    other = UnitaryRNN(F, H, dtype=torch.float64, **options)
    assert not torch.equal(other(x)[0], layer(x)[0])
    other.load_state_dict(layer.state_dict())
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        assert torch.equal(again(x)[0], layer(x)[0])
        assert again.theta is not layer.theta


def test_parameters_are_real_and_start_as_published():
    torch.manual_seed(0)
    shapes = {name: tuple(p.shape) for name, p in UnitaryRNN(3, 128).named_parameters()}
    assert shapes == {"theta": (8, 127), "phi": (8, 127), "omega": (128,), "weight_ih": (256, 3), "bias": (128,)}
    layer = UnitaryRNN(300, 128)
    for angles in (layer.theta, layer.phi, layer.omega):
        assert 3 < angles.abs().max() <= torch.pi and abs(angles.mean()) < 0.5
    assert 0.0099 < layer.weight_ih.abs().max() <= 0.01 and not layer.bias.any()
    assert {name for name, _ in make(VARIANTS["real"]).named_parameters()} == {"theta", "weight_ih", "bias"}
    assert make(VARIANTS["fft"]).theta.shape == (3, 4)


def test_dtype_and_device_are_those_asked_for():
    layer = UnitaryRNN(F, 16, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float16)}
    output, state = UnitaryRNN(F, 16)(torch.zeros(1, 1, F))
    assert {part.dtype for part in (output, *state)} == {torch.float32}


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (7, {"capacity": 2}, "hidden_size must be even .* not 7"),
        (8, {"capacity": 3}, "capacity must be even, .* not 3"),
        (8, {"capacity": 10}, r"at most hidden_size \(8\), not 10"),
        (8, {"capacity": 0}, "at least 2 .* not 0"),
        (12, {"style": "fft"}, "power of two .* not 12"),
        (1, {"style": "fft"}, "power of two .* not 1"),
        (8, {"style": "full"}, "style is 'tunable' or 'fft', not 'full'"),
        (0, {}, "hidden_size must be at least 1, not 0"),
    ],
)
def test_sizes_that_cannot_be_paired_are_refused(size, options, message):
    with pytest.raises(ValueError, match=message):
        UnitaryRNN(F, size, **options)


def test_wrong_inputs_states_and_timespans_are_refused():
    layer = make(VARIANTS["tunable"])
    with pytest.raises(ValueError, match=r"reads \(batch, time, 2\), not \(3, 6, 3\)"):
        layer(torch.zeros(B, T, F + 1))
    with pytest.raises(ValueError, match=r"wants a state of \(3, 8\), \(3, 8\) for this input, not \(3, 8\)"):
        layer(inputs(), torch.zeros(B, H))
    with pytest.raises(ValueError, match="counts steps, not time"):
        layer(inputs(), timespans=torch.ones(B, T))


@pytest.mark.parametrize("timespans", [False, True])
def test_the_competitor_reads_time_as_a_feature_and_shows_the_real_part(timespans):
    spec = TaskSpec(input_shape=(T, F), output_size=4, target="values", timespans=timespans)
    net = unitary_rnn(spec, hidden_size=8, capacity=4)
    x = (torch.randn(B, T, F), torch.rand(B, T))[: 1 + timespans]
    assert net.layer.input_size == F + timespans and net(*x).shape == (B, 4)
    features = torch.cat([x[0], x[1].unsqueeze(-1)], -1) if timespans else x[0]
    torch.testing.assert_close(net(*x), net.head(net.layer(features)[1][0]))


SIZES = [(2, 2), (6, 2), (14, 14), (18, 4), (128, 16)]
sizes = pytest.mark.parametrize(("units", "capacity"), SIZES)
kinds = pytest.mark.parametrize("numbers", [True, False], ids=["complex", "real"])
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def seeds_of(units, capacity, numbers, seeds=2, device="cpu"):
    """A layer, its angles for some seeds, up to a few turns, and a pull on every part of its matrix."""
    torch.manual_seed(units)
    layer = UnitaryRNN(2, units, capacity=capacity, complex=numbers, device=device)
    angles = {name: part for name, part in layer.named_parameters() if name in ("theta", "phi", "omega")}
    many = {name: (8 * torch.randn(seeds, *part.shape)).to(device) for name, part in angles.items()}
    return layer, many, torch.randn(seeds, 1 + numbers, units, units).to(device)


def pulled(angles, pull):
    """The kernel's matrices of all seeds, and the gradient of every angle."""
    tensors = [part.clone().requires_grad_() for part in angles.values()]
    matrices = torch.stack(vmap(rotation.rotated_identity)(*tensors), 1)
    return matrices.detach(), *torch.autograd.grad((matrices * pull).sum(), tensors)


def exactly(layer, angles, pull):
    """The same of one seed after the other by `rotate`, in float64."""
    found = []
    for seed, each in enumerate(pull.double()):
        one = copy.deepcopy(layer).double()
        one.load_state_dict({name: part[seed] for name, part in angles.items()}, strict=False)
        matrix = torch.stack(one._matrix())
        found.append((matrix.detach(), *torch.autograd.grad((matrix * each).sum(), [getattr(one, n) for n in angles])))
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@kinds
@sizes
def test_the_kernel_makes_what_rotations_make_with_every_gradient(units, capacity, numbers, device, monkeypatch):
    if device == "cpu":  # where few rows take as long as many
        monkeypatch.setattr(rotation, "ROWS", max(2, (1 << units.bit_length()) // 8))
        monkeypatch.setattr(rotation, "PAIRS", 4096)
    layer, angles, pull = seeds_of(units, capacity, numbers, 2, device)
    found = pulled(angles, pull)
    for mine, wanted in zip(found, exactly(layer, angles, pull), strict=True):
        assert (mine.double() - wanted).norm() <= 1e-6 * wanted.norm()
    for parts in found[0].cpu():
        assert unitarity(torch.complex(*parts) if numbers else parts[0]) < 3e-6


def test_seeds_are_what_each_is_alone_and_again():
    _, angles, pull = seeds_of(6, 4, True)
    together, again = (pulled(angles, pull) for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(together, again, strict=True))
    for seed in range(2):
        alone = pulled({name: part[seed, None] for name, part in angles.items()}, pull[seed, None])
        assert torch.equal(alone[0][0], together[0][seed])
        for one, many in zip(alone, together, strict=True):  # torch adds up the shares of programs in another order
            torch.testing.assert_close(one[0], many[seed], rtol=1e-5, atol=1e-6)


def test_seeds_that_share_their_phases():
    _, angles, _ = seeds_of(6, 4, True)
    given = tuple({**angles, "phi": angles["phi"][0]}.values())
    matrices = vmap(rotation.rotated_identity, in_dims=(0, None, 0))(*given)
    for seed in range(2):
        one = rotation.rotated_identity(given[0][seed], given[1], given[2][seed])
        assert all(torch.equal(part[seed], same) for part, same in zip(matrices, one, strict=True))


def test_cosines_and_sines_are_those_of_the_angle_and_lie_on_the_circle_however_large():
    near, far = torch.arange(-20, 21) * torch.pi / 8, torch.tensor([1e-20, -9.5, 1001.5 * torch.pi, 3e4, 1e7, 1e9])
    angles = torch.cat([near, far])
    cos, sin = vmap(rotation.rotated_identity)(angles.view(-1, 1, 1))[0][:, 0].double().unbind(1)
    for mine, function in ((cos, torch.cos), (sin, torch.sin)):
        torch.testing.assert_close(mine[:-2], function(angles[:-2].double()), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(cos**2 + sin**2, torch.ones_like(cos), rtol=0, atol=3e-7)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_angle_that_is_no_number_is_not_hidden():
    assert rotation.rotated_identity(torch.tensor([[torch.nan]]))[0].isnan().all()


def test_a_second_derivative_of_the_kernel_is_refused():
    _, angles, _ = seeds_of(6, 2, True, seeds=1)
    theta, phi, omega = (part[0].requires_grad_() for part in angles.values())
    (slope,) = torch.autograd.grad(rotation.rotated_identity(theta, phi, omega)[0].sum(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: use backend='eager'"):
        slope.sum().backward()


def test_who_takes_the_kernel(monkeypatch):
    taken = []
    monkeypatch.setattr(rotation, "rotated_identity", lambda *angles: taken.append(len(angles)) or angles)
    for options in ({}, {"complex": False}, {"style": "fft"}, {"backend": "eager"}, {"dtype": torch.float64}):
        layer = UnitaryRNN(2, 8, **{"capacity": 4, **options})
        layer._matrix()  # on a CPU: nobody
        with monkeypatch.context() as patch:
            patch.setattr(unitary, "can_fuse", lambda angles: angles.dtype == torch.float32)
            layer._matrix()
    assert taken == [3, 1]


@pytest.mark.gpu
def test_on_a_gpu_the_matrix_is_that_of_the_cpu_recorded_or_not(never_waiting):
    torch.manual_seed(0)
    layer = UnitaryRNN(2, 128, device="cuda")
    angles = [layer.theta, layer.phi, layer.omega]
    pulls = torch.randn(2, 128, 128, device="cuda").unbind()

    def step():
        parts = layer._matrix()
        return *(part.detach() for part in parts), *torch.autograd.grad(parts, angles, pulls)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with never_waiting():
        found = step()
        graph.replay()
    assert all(torch.equal(one, two) for one, two in zip(found, recorded, strict=True))
    slow = copy.deepcopy(layer).double().cpu()
    parts = slow._matrix()
    wanted = torch.autograd.grad(parts, [slow.theta, slow.phi, slow.omega], [pull.double().cpu() for pull in pulls])
    for mine, exact in zip(found, (*parts, *wanted), strict=True):
        assert (mine.cpu().double() - exact).norm() < 1e-6 * exact.norm()
