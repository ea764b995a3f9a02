"""Element-wise attention by kernels: against the plain layer in float64, forward, statistics and every gradient."""

from __future__ import annotations

import copy
import importlib.util
from contextlib import nullcontext

import pytest
import torch
from kernel_helpers import DEVICES
from torch import nn
from torch.func import functional_call, stack_module_state

from nnarena.engine.norms import SideBySide
from nnarena.nn import AttentionWise2d, attention_wise

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed.", allow_module_level=True)

from nnarena.kernels.layers import relevance

CASES = {
    "odd sides": ((1, 7, 5, 2), 3, {}),
    "three channels": ((3, 4, 6, 2), 2, {}),
    "Fashion-MNIST": ((1, 28, 28, 1), 3, {}),
    "biases": ((2, 5, 3, 1), 3, {"bias": True}),
    "temperature": ((1, 6, 9, 2), 2, {"temperature": 0.3}),
    "all": ((1, 3, 4, 2), 3, {"bias": True, "temperature": 2.5, "norm": True, "skip": False}),
    "one row": ((1, 1, 6, 2), 3, {}),
}


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Where kernels run: in the interpreter, or on a GPU."""
    if request.param == "cpu":
        monkeypatch.setattr(attention_wise, "can_fuse", lambda x: x.dtype == torch.float32)
    return request.param


@pytest.fixture(autouse=True)
def full_precision():
    """Of torch's convolutions on a GPU."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """So that a program has two samples, and the last one fewer."""
    monkeypatch.setattr(relevance, "shares", lambda pieces, most: (-(-pieces // 2), 2))


def make(case, device, seed=0, std=1.0):
    sizes, batch, options = CASES[case]
    torch.manual_seed(seed)
    layer = AttentionWise2d(*sizes, std=std, **options)
    nn.init.normal_(layer.conv.weight)
    nn.init.zeros_(layer.scale.running_var)  # so that what is added is seen
    for bias in (layer.attention.bias_x, layer.attention.bias_y):
        if bias is not None:
            nn.init.normal_(bias)
    return layer.to(device), torch.randn(2, batch, *sizes[:-1]).to(device)


def pull_of(output):
    """The same numbers in float32 and float64."""
    return torch.linspace(-1, 2, output.numel()).view(output.shape).to(output)


def train(layer, batches):
    """Output and gradients after each batch, and the buffers at the end."""
    found = []
    for batch in batches:
        x = batch.clone().requires_grad_()
        output = layer(x)
        pull = pull_of(output)
        gradients = torch.autograd.grad((output * pull).sum(), [x, *layer.parameters()])
        found.append({"output": output.detach(), "x": gradients[0]})
        found[-1] |= {name: part for (name, _), part in zip(layer.named_parameters(), gradients[1:], strict=True)}
    return [*found, {name: buffer.clone() for name, buffer in layer.named_buffers()}]


def exact(layer, batches):
    return train(copy.deepcopy(layer).double(), batches.double())


def assert_near(ours, wanted, tolerance=2e-5):
    for mine, exact_ones in zip(ours, wanted, strict=True):
        assert mine.keys() == exact_ones.keys()
        for name, number in exact_ones.items():
            number = number.detach().double()
            far, size = float((mine[name].double() - number).abs().max()), float(number.abs().max())
            floor = 0.1 if name == "conv.bias" else 1e-3  # before a norm, its gradient is nothing but rounding
            assert far <= tolerance * (size + floor), f"{name}: {far} of {size}"


def forward(layer):
    """The last kernel on the way forward."""
    return "convolve" if relevance.can_convolve(*layer.size) else "attend"


def launches(monkeypatch):
    """How often kernels are launched."""
    counted, right = [], relevance._Launch._run

    def counting(self, kernel, *arguments):
        counted.append(kernel.__name__)
        right(self, kernel, *arguments)

    monkeypatch.setattr(relevance._Launch, "_run", counting)
    return counted


@pytest.mark.parametrize("case", CASES)
def test_two_steps_of_training(case, device, monkeypatch):
    layer, batches = make(case, device)
    wanted, names = exact(layer, batches), launches(monkeypatch)
    assert_near(train(layer, batches), wanted)
    assert names == ["measure", "settle", forward(layer), "pulled", "to_images", "to_weights"] * 2


@pytest.mark.parametrize("case", ["odd sides", "all"])
def test_the_convolution_may_be_torch_s(case, device, monkeypatch):
    monkeypatch.setattr(relevance, "CONVOLVED", 0)
    layer, batches = make(case, device)
    wanted, names = exact(layer, batches[:1]), launches(monkeypatch)
    assert_near(train(layer, batches[:1]), wanted)
    assert names == ["measure", "settle", "attend", "pulled", "to_images", "to_weights"]


@pytest.mark.parametrize("case", ["odd sides", "all", "biases"])
def test_with_the_statistics_of_before(case, device, monkeypatch):
    layer, batches = make(case, device)
    for norm in (layer.scale, layer.norm):
        if norm is not None:
            nn.init.uniform_(norm.running_mean, 0.0, 0.2)
            nn.init.uniform_(norm.running_var, 0.01, 0.1)
    layer.eval()
    before, names = copy.deepcopy(dict(layer.named_buffers())), launches(monkeypatch)
    assert_near(train(layer, batches[:1]), exact(layer, batches[:1]))
    assert names == ["settle", forward(layer), *["pulled"] * (forward(layer) == "convolve"), "to_images", "to_weights"]
    assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


def test_start_values_of_the_paper_lose_no_digits(device):
    """X ⊙ Y is all but constant then, and the variance is much smaller than the mean's square."""
    layer, batches = make("odd sides", device, std=0.02)
    layer.scale.momentum = 1.0  # nothing of the start is left
    wanted = exact(layer, batches[:1])
    ours = train(layer, batches[:1])
    assert_near(ours, wanted)
    mean, variance = (wanted[-1][f"scale.running_{name}"] for name in ("mean", "var"))
    assert float((variance / mean.square()).max()) < 2e-3
    torch.testing.assert_close(ours[-1]["scale.running_var"].double(), variance, rtol=1e-4, atol=0)


def test_large_numbers_overflow_nowhere(device):
    layer, batches = make("odd sides", device, std=200.0)
    wanted = exact(layer, batches[:1])
    assert_near(train(layer, batches[:1]), wanted, tolerance=1e-3)


@pytest.mark.parametrize("wanted", ["images", "weights"])
def test_nobody_computes_what_nobody_wants(wanted, device, monkeypatch):
    layer, batches = make("odd sides", device)
    names = launches(monkeypatch)
    x = batches[0].requires_grad_(wanted == "images")
    layer.attention.requires_grad_(wanted == "weights")
    layer(x).sum().backward()
    assert names == ["measure", "settle", "convolve", "pulled", f"to_{wanted}"]


def test_the_same_call_gives_the_same_bits(device):
    layer, batches = make("odd sides", device)
    once, again = (train(copy.deepcopy(layer), batches[:1]) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for one, two in zip(once, again, strict=True) for name in one)


@pytest.mark.parametrize(("case", "side_by_side"), [("odd sides", True), ("temperature", False), ("all", True)])
def test_a_population_is_its_members(case, side_by_side, device, monkeypatch):
    made = [make(case, device, seed) for seed in range(2)]
    alone = [train(copy.deepcopy(layer), batches[:1]) for layer, batches in made]
    params, buffers = stack_module_state([layer for layer, _ in made])
    x = torch.stack([batches[0] for _, batches in made]).requires_grad_()
    skeleton, names = copy.deepcopy(made[0][0]), launches(monkeypatch)

    def one(params, buffers, x):
        held = {**params, **buffers}
        return functional_call(skeleton, held, (x,)), {name: held[name] for name in buffers}

    with SideBySide() if side_by_side else nullcontext():
        output, after = torch.vmap(one)(params, buffers, x)
    gradients = torch.autograd.grad((output * pull_of(output[0])).sum(), [x, *params.values()])
    assert names == ["measure", "settle", forward(skeleton), "pulled", "to_images", "to_weights"]
    for seed, wanted in enumerate(alone):
        mine = {"output": output[seed].detach(), "x": gradients[0][seed]}
        mine |= {name: part[seed] for name, part in zip(params, gradients[1:], strict=True)}
        assert_near([mine, {name: after[name][seed] for name in buffers}], wanted)
        assert all(torch.equal(after[name], buffers[name]) for name in buffers)  # they change where they lie
    skeleton.eval()
    with torch.no_grad(), SideBySide():
        answers, _ = torch.vmap(one)(params, after, x)
    for seed, (layer, batches) in enumerate(made):
        layer.load_state_dict({name: part[seed] for name, part in {**params, **after}.items()})
        wanted = copy.deepcopy(layer).double().eval()(batches[0].double())
        assert_near([{"answer": answers[seed]}], [{"answer": wanted}])


def test_a_second_derivative_is_refused_in_a_sentence(device):
    layer, batches = make("odd sides", device)
    x = batches[0].requires_grad_()
    (slope,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative: use `layer.stages\(x\).output`"):
        slope.sum().backward()


def test_what_kernels_do_not_do_is_done_plainly(device, monkeypatch):
    def plainly(layer, x):
        names = launches(monkeypatch)
        layer(x.to(device))
        return names == []

    assert plainly(AttentionWise2d(1, 65, 2, 1, device=device), torch.rand(2, 1, 65, 2))
    assert plainly(AttentionWise2d(1, 3, 3, 1, device=device, dtype=torch.float64), torch.rand(2, 1, 3, 3).double())
    layer = AttentionWise2d(1, 3, 3, 1, device=device)
    layer.scale.momentum = None  # a mean over all batches
    assert plainly(layer, torch.rand(2, 1, 3, 3))
    layer.scale = nn.BatchNorm2d(1, affine=False, track_running_stats=False)
    assert plainly(layer, torch.rand(2, 1, 3, 3))
    assert not plainly(AttentionWise2d(1, 3, 3, 1, device=device), torch.rand(2, 1, 3, 3))
    with pytest.raises(ValueError, match="more than 1 value"):
        AttentionWise2d(1, 1, 1, 1, device=device)(torch.rand(1, 1, 1, 1, device=device))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own imports
def test_autocast_and_torch_compile_take_the_plain_way(monkeypatch):
    layer, x = AttentionWise2d(1, 8, 8, 2, device="cuda"), torch.rand(4, 1, 8, 8, device="cuda")
    names = launches(monkeypatch)
    with torch.autocast("cuda", torch.bfloat16):
        layer(x)
    torch.compile(layer)(x)
    assert names == []


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(1, 28, 28, 8), (3, 32, 32, 4), (1, 64, 64, 2), (2, 40, 17, 3), (1, 8, 8, 5)])
@pytest.mark.parametrize("options", [{}, {"bias": True, "temperature": 0.5}])
def test_sizes_in_use(sizes, options, monkeypatch):
    monkeypatch.undo()
    torch.manual_seed(0)
    layer = AttentionWise2d(*sizes, std=0.5, device="cuda", **options)
    batches = 0.5 + torch.rand(2, 67, *sizes[:-1], device="cuda")  # away from where relu has a corner
    wanted = exact(layer, batches)
    assert_near(train(layer, batches), wanted, tolerance=1e-4)


@pytest.mark.gpu
def test_a_recorded_step_is_the_step_itself(never_waiting):
    layer, batches = make("Fashion-MNIST", "cuda")
    recorded, x = copy.deepcopy(layer), batches[0]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            recorded(x).sum().backward()
    torch.cuda.synchronize()
    recorded.load_state_dict(layer.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = recorded(x)
        slopes = torch.autograd.grad(output.sum(), list(recorded.parameters()))
    with never_waiting():
        wanted = layer(x)
        wanted_slopes = torch.autograd.grad(wanted.sum(), list(layer.parameters()))
        graph.replay()
    assert torch.equal(output, wanted)
    assert all(torch.equal(one, two) for one, two in zip(slopes, wanted_slopes, strict=True))
    assert torch.equal(recorded.scale.running_var, layer.scale.running_var)
