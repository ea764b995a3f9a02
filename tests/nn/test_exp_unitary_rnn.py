"""The exponential is unitary, any unitary matrix is one, and the layer is its equation."""

from __future__ import annotations

import copy
import pickle

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from nnarena.core.spec import TaskSpec
from nnarena.kernels.layers.exponential import FEW, MANY_UNITS, unitary_exponential
from nnarena.nn.exp_unitary_rnn import (
    ExpUnitaryRNN,
    exponential_series,
    matrix_exponential_unitary_rnn,
    polished,
    triangle_places,
)

B, T, F, H = 3, 6, 3, 5
VARIANTS = {
    "full": {},
    "half": {"capacity": 0.5},
    "none": {"capacity": 0.0},
    "fourier": {"fourier_input": True},
    "start": {"trainable_initial_state": True},
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
    made = ExpUnitaryRNN(F, H, dtype=torch.float64, **options, **more)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))  # no start value is zero, so every path counts
    return made


def inputs(steps=T):
    return torch.randn(B, steps, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def start():
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(B, H, dtype=torch.float64, generator=generator) for _ in range(2))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def all_close(state, other):
    for part, same in zip(state, other, strict=True):
        close(part, same)


def unitarity(matrix):
    """By how much W Wᴴ misses the identity, whatever the precision of W."""
    matrix = matrix.detach().to(torch.complex128)
    return float((matrix @ matrix.mH - torch.eye(len(matrix))).abs().max())


def skew(layer):
    """L − Lᴴ, entry by entry along the diagonals of L."""
    size = layer.hidden_size
    places = [(column + below, column) for below in range(size) for column in range(size - below)]
    lower = torch.zeros(size, size, dtype=torch.complex128)
    for (row, column), re, im in zip(places, *layer.triangle, strict=False):
        lower[row, column] = torch.complex(re, im)
    return lower - lower.mH


def naive(layer, x, state):
    """The equations, step by step, in complex numbers."""
    matrix = torch.linalg.matrix_exp(skew(layer))
    weight = torch.complex(*layer.weight_ih.chunk(2))
    features = torch.cat([x + 0j, torch.fft.fft(x)], -1) if layer.fourier_input else x + 0j
    h = torch.complex(*state)
    outputs = []
    for t in range(x.shape[1]):
        z = h @ matrix.T + features[:, t] @ weight.T
        n = z.abs() + 0.01
        h = z / n * torch.relu(n + layer.bias)
        outputs.append(torch.cat([h.real, h.imag], -1))
    return torch.stack(outputs, 1), (h.real, h.imag)


@variants
def test_the_matrix_is_scipys_exponential(options):
    layer = make(options)
    close(layer.recurrent_matrix().detach(), torch.from_numpy(scipy.linalg.expm(skew(layer).detach().numpy())))


@variants
def test_it_equals_the_naive_loop_forward_final_state_and_every_gradient(options):
    layer = make(options)
    leaves = [p for p in layer.parameters() if p is not layer.start and p.numel()]
    results = []
    for run in (layer, lambda x, state: naive(layer, x, state)):
        x, state = inputs().requires_grad_(), tuple(part.requires_grad_() for part in start())
        output, last = run(x, state)
        total = (output * torch.arange(output.numel(), dtype=x.dtype).view_as(output).cos()).sum()
        total = total + last[0].sin().sum() + 2 * last[1].sin().sum()
        results.append((output, *last, *torch.autograd.grad(total, (x, *state, *leaves))))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs)
        assert bool(theirs.any())


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 0.1, 1, 3])
)
def test_the_matrix_is_unitary_whatever_the_triangle(size, share, seed, scale):
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        torch.manual_seed(seed)
        layer = ExpUnitaryRNN(1, size, capacity=share, dtype=dtype)
        with torch.no_grad():
            layer.triangle.normal_(std=scale)
        assert unitarity(layer.recurrent_matrix()) < bound


def test_any_unitary_matrix_can_be_reached():
    torch.manual_seed(0)
    wanted = torch.linalg.qr(torch.randn(H, H, dtype=torch.complex128))[0]
    log = torch.from_numpy(scipy.linalg.logm(wanted.numpy()))
    lower = torch.tril(log, -1) + torch.diag(log.diagonal() / 2)
    layer = ExpUnitaryRNN(1, H, dtype=torch.float64)
    with torch.no_grad():
        entries = lower.flatten()[triangle_places(H)]
        layer.triangle.copy_(torch.stack([entries.real, entries.imag]))
    close(layer.recurrent_matrix().detach(), wanted)


def test_only_the_real_part_of_the_diagonal_is_idle():
    layer = make({})
    layer(inputs())[0].square().sum().backward()
    idle = layer.triangle.grad.abs() < 1e-12
    assert idle[0, :H].all() and not idle[0, H:].any() and not idle[1].any()


def test_it_starts_as_published():
    torch.manual_seed(0)
    layer = ExpUnitaryRNN(30, 20)
    torch.testing.assert_close(layer.recurrent_matrix(), torch.eye(20, dtype=torch.complex64), rtol=0, atol=0)
    assert not layer.bias.any()
    bound = (6 / (30 + 20)) ** 0.5
    for part in layer.weight_ih.chunk(2):
        assert 0.98 * bound < part.abs().max() <= bound
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {"triangle": (2, 210), "weight_ih": (40, 30), "bias": (20,)}
    assert set(layer.state_dict()) == set(shapes)


def test_a_share_of_the_triangle_is_the_band_at_the_diagonal():
    assert triangle_places(3).tolist() == [0, 4, 8, 3, 7, 6]
    layer = make({"capacity": 0.6})
    assert layer.triangle.shape == (2, 9)
    assert not torch.tril(skew(layer), -2).any() and torch.diagonal(skew(layer), -1).all()


def test_a_thousand_steps_keep_the_length_of_the_state_and_of_its_gradient():
    torch.manual_seed(0)
    layer = ExpUnitaryRNN(1, 32)
    with torch.no_grad():
        layer.triangle.normal_(std=0.3)
    h = tuple(torch.randn(2, 32).requires_grad_() for _ in range(2))
    last = layer(torch.zeros(2, 1000, 1), h)[1]  # modReLU with zero bias is the identity
    torch.testing.assert_close(torch.cat(last, 1).norm(dim=1), torch.cat(h, 1).norm(dim=1), rtol=1e-3, atol=0)
    asked = tuple(torch.randn(2, 32) for _ in range(2))
    back = torch.autograd.grad(last, h, asked)
    torch.testing.assert_close(torch.cat(back, 1).norm(dim=1), torch.cat(asked, 1).norm(dim=1), rtol=1e-3, atol=0)


def test_a_learned_start_is_where_a_call_without_a_state_starts():
    layer = make({"trainable_initial_state": True})
    given = tuple(part.expand(B, H) for part in layer.start)
    output, _ = layer(inputs())
    close(output, layer(inputs(), given)[0])
    output[:, 0].sum().backward()
    assert layer.start.grad.all()


def test_zeros_give_zeros_and_finite_gradients():
    layer = make({})
    output, _ = layer(torch.zeros(B, T, F, dtype=torch.float64))
    assert not output.any()
    output.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


@pytest.mark.parametrize("options", [{}, {"capacity": 0.5, "fourier_input": True}])
def test_gradients_are_the_slopes(options):
    layer = make(options)
    names, tensors = zip(*layer.named_parameters(), strict=True)

    def run(x, re, im, *rest):
        weights = dict(zip(names, rest, strict=True))
        output, last = torch.func.functional_call(layer, weights, (x, (re, im)))
        return output, *last

    parts = (inputs(2).requires_grad_(), *(part.requires_grad_() for part in start()))
    assert torch.autograd.gradcheck(run, (*parts, *tensors), fast_mode=True)


@variants
def test_two_pieces_are_the_whole_and_the_past_does_not_see_the_future(options):
    layer, x = make(options), inputs()
    whole, last = layer(x)
    first, between = layer(x[:, :2])
    second, end = layer(x[:, 2:], between)
    close(torch.cat([first, second], 1), whole)
    all_close(end, last)
    close(torch.cat(last, 1), whole[:, -1])


@variants
def test_the_order_of_the_batch_and_of_its_axes_does_not_matter(options):
    layer, x, state = make(options), inputs(), start()
    output, last = layer(x, state)
    assert output.shape == (B, T, 2 * H)
    close(layer(x.flip(0), tuple(part.flip(0) for part in state))[0].flip(0), output)
    turned, also_last = make(options, batch_first=False)(x.transpose(0, 1), state)
    close(turned.transpose(0, 1), output)
    all_close(also_last, last)


@variants
def test_copies_pickles_and_state_dicts_give_the_same_numbers(options):
    layer, x = make(options), inputs()
    other = ExpUnitaryRNN(F, H, dtype=torch.float64, **options)
    assert not torch.equal(other(x)[0], layer(x)[0])
    other.load_state_dict(layer.state_dict())
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        assert torch.equal(again(x)[0], layer(x)[0])
        assert again.triangle is not layer.triangle


def test_dtype_and_device_are_those_asked_for():
    layer = ExpUnitaryRNN(F, H, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float16)}
    output, state = ExpUnitaryRNN(F, H)(torch.zeros(1, 1, F))
    assert {part.dtype for part in (output, *state)} == {torch.float32}


@pytest.mark.parametrize("share", [-0.1, 1.5, 16])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match=f"from 0 to 1, not {share}"):
        ExpUnitaryRNN(F, H, capacity=share)


def test_wrong_inputs_and_states_are_refused():
    layer = make({})
    with pytest.raises(ValueError, match=r"reads \(batch, time, 3\), not \(3, 6, 4\)"):
        layer(torch.zeros(B, T, F + 1))
    with pytest.raises(ValueError, match=r"wants a state of \(3, 5\), \(3, 5\) for this input, not \(3, 10\)"):
        layer(inputs(), torch.zeros(B, 2 * H))
    with pytest.raises(ValueError, match="hidden_size must be at least 1, not 0"):
        ExpUnitaryRNN(F, 0)


@pytest.mark.parametrize("timespans", [False, True])
def test_the_competitor_reads_time_as_a_feature_and_shows_both_parts(timespans):
    spec = TaskSpec(input_shape=(T, F), output_size=4, target="values", timespans=timespans)
    net = matrix_exponential_unitary_rnn(spec, hidden_size=H, fourier_input=True, trainable_initial_state=True)
    x = (torch.randn(B, T, F), torch.rand(B, T))[: 1 + timespans]
    assert net.layer.input_size == F + timespans and net(*x).shape == (B, 4)
    features = torch.cat([x[0], x[1].unsqueeze(-1)], -1) if timespans else x[0]
    torch.testing.assert_close(net(*x), net.head(torch.cat(net.layer(features)[1], -1)))


@pytest.mark.parametrize("size", [0.1, 3.0, 29.0])
def test_the_series_is_the_exponential(size):
    torch.manual_seed(0)
    matrix = torch.randn(12, 12, dtype=torch.complex128)
    matrix = matrix - matrix.mH
    matrix = size * matrix / torch.linalg.matrix_norm(matrix, 2)
    torch.testing.assert_close(exponential_series(matrix), torch.linalg.matrix_exp(matrix), rtol=1e-7, atol=1e-7)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def plain(triangles):
    matrices = [polished(torch.linalg.matrix_exp(torch.complex(*skew_parts(each)))) for each in triangles]
    return torch.stack(matrices).real, torch.stack(matrices).imag


def skew_parts(triangles):
    re, im = triangles
    return torch.stack([re - re.t(), im + im.t()])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("seeds", "units", "size"), [(1, 5, 2.0), (3, 16, 20.0), (5, 18, 1.0), (2, 40, 0.0), (5, 70, 5.0)]
)
def test_kernels_give_the_exponential_and_its_gradient(seeds, units, size, device):
    """As torch in float64, of one seed and of many; entries and gradients as parts of the largest.

    The matrix units of a GPU, which multiply many large ones, cut off where others round.
    """
    tolerance = 6e-6 if seeds > FEW and units >= MANY_UNITS else 3e-6
    numbers = torch.Generator().manual_seed(units)
    triangles = torch.randn(seeds, 2, units, units, generator=numbers)
    triangles = (size * triangles / (4 * units**0.5)).to(device)
    pulls = torch.randn(2, seeds, units, units, generator=numbers).to(device)

    def found(call, triangles, pulls):
        triangles = triangles.clone().requires_grad_()
        parts = call(triangles)
        total = sum((part * pull).sum() for part, pull in zip(parts, pulls, strict=True))
        return *(part.detach() for part in parts), torch.autograd.grad(total, triangles)[0]

    ours = found(vmap(lambda each: unitary_exponential(skew_parts(each))), triangles, pulls)
    wanted = found(plain, triangles.double(), pulls.double())
    for one, other in zip(ours, wanted, strict=True):
        largest = float(other.abs().max()) or 1.0
        assert float((one.double() - other).abs().max()) < tolerance * largest


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_begin_with_the_identity_and_have_no_second_derivative(device):
    zeros = torch.zeros(2, 7, 7, device=device, requires_grad=True)
    re, im = unitary_exponential(skew_parts(zeros))
    assert torch.equal(re, torch.eye(7, device=device)) and torch.equal(im, torch.zeros_like(im))
    (slope,) = torch.autograd.grad(re.square().sum() + im.sin().sum(), zeros, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: use backend='eager'"):
        slope.sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "fused", "eager"])
def test_the_layer_on_a_gpu_is_the_layer(backend, monkeypatch):
    from nnarena.kernels.layers import exponential

    called, kernels = [], exponential.unitary_exponential
    monkeypatch.setattr(exponential, "unitary_exponential", lambda *parts: called.append(1) or kernels(*parts))
    layer = make({}).float()
    matrix = layer.recurrent_matrix()
    layer.backend = backend
    torch.testing.assert_close(layer.cuda().recurrent_matrix().cpu(), matrix, rtol=0, atol=2e-6)
    assert len(called) == (backend != "eager")
