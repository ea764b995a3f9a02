"""Forcing: how much is told, that it is what each kind says, and who learns what in professor forcing."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import nnarena
import nnarena.nn.forcing as forcing
from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import END, PADDING, SPECIAL, TaskSpec
from nnarena.core.tokens import shifted
from nnarena.nn.forcing import Discriminator, Draws, inverse_sigmoid_rate, sampled, share_of_truth

B, T, L, V = 4, 5, 6, 8
SPEC = TaskSpec(input_shape=(T,), output_size=V, target="tokens", vocabulary=V, target_length=L)
NAMES = ["encoder_decoder", "seq2seq_transformer"]


def make(name="encoder_decoder", **options):
    component = catalogue("model")[name]
    sizes = {"hidden_size": 7} if name == "encoder_decoder" else {"d_model": 8}
    torch.manual_seed(0)
    made = component.load()(SPEC, **component.resolve(sizes | options)).double()
    torch.manual_seed(1)
    with torch.no_grad():
        for part, parameter in made.named_parameters():
            if "discriminator" not in part:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def tokens():
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(SPECIAL, V, (B, n), generator=generator) for n in (T, L))
    target[1, 3], target[1, 4:] = END, PADDING
    return source, target


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("over", [1, 10, 1000])
def test_the_share_of_truth_falls_as_its_equation_says(over):
    steps = torch.arange(0, 2 * over + 1)
    linear, exponential, sigmoid = (share_of_truth(kind, steps, over) for kind in ("linear", "exponential", "other"))
    k = inverse_sigmoid_rate(over)
    assert k * math.log(k) == pytest.approx(over / 2)
    for i in {0, over // 2, over, 2 * over}:
        assert linear[i].item() == pytest.approx(max(0, 1 - i / over))
        assert exponential[i].item() == pytest.approx(0.01 ** (i / over), rel=1e-4)
        assert sigmoid[i].item() == pytest.approx(k / (k + math.exp(i / k)), rel=1e-3)
    for share in (linear, exponential, sigmoid):
        assert bool((share.diff() <= 0).all()) and share.min() >= 0 and share[0] > 0.5
    if over % 2 == 0:
        assert sigmoid[over // 2].item() == pytest.approx(0.5, abs=1e-4)


def test_draws_are_a_function_of_seed_and_count():
    torch.manual_seed(3)
    draws = Draws()
    state = {name: value.clone() for name, value in draws.state_dict().items()}
    first, second = draws(64, 50), draws(64, 50)
    assert not torch.equal(first, second) and int(draws.steps) == 2
    assert abs(first.mean().item() - 0.5) < 0.02 and first.min() > 0 and first.max() < 1
    draws.load_state_dict(state)
    assert torch.equal(draws(64, 50), first) and torch.equal(draws(64, 50), second)
    other = Draws()
    assert not torch.equal(other(64, 50), first)


def test_sampling_is_by_probability():
    logits = torch.tensor([0.0, 1.0, 2.0]).log_softmax(-1)
    noise = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0)).clamp(1e-7, 1 - 1e-7)
    counts = sampled(logits.expand(40_000, 3), noise).bincount(minlength=3) / 40_000
    torch.testing.assert_close(counts, logits.exp(), atol=0.01, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_scheduled_begins_as_teacher_and_ends_as_free(name):
    source, target = tokens()
    teacher, free = make(name), make(name, forcing="free")
    scheduled = make(name, forcing="scheduled", anneal="linear", anneal_steps=3)
    told = teacher(source, target)
    close(scheduled(source, target), told)
    scheduled.draws.steps.fill_(3)
    close(scheduled(source, target), free(source, target))
    close(free(source, target), teacher.eval()(source))
    assert not torch.allclose(told, free(source, target))
    for model in (scheduled, free):  # who is judged is told everything, or nothing
        close(model.eval()(source, target), told)
        close(model(source), teacher(source))


@pytest.mark.parametrize("name", NAMES)
def test_scheduled_sampling_by_hand(name):
    source, target = tokens()
    model = make(name, forcing="scheduled", anneal="exponential", anneal_steps=10)
    model.draws.steps.fill_(2)
    share = 0.01**0.2
    told = model.draws(B, L) < share
    assert told.any() and not told.all()
    model.draws.steps.fill_(2)
    found = model(source, target)
    heard = shifted(target)
    for place in range(1, L):  # token by token: what was heard before decides what is said
        guess = make(name).eval()(source, torch.cat([heard[:, 1:], heard[:, :1]], 1))[:, place - 1].argmax(-1)
        heard[:, place] = torch.where(told[:, place - 1], target[:, place - 1], guess)
    memory = model.read(source)
    close(found, model.say(memory, model.think(memory, heard)))


def test_all_start_from_the_same_weights():
    start = make().state_dict()
    for kind in ("scheduled", "free", "professor"):
        other = make(forcing=kind).state_dict()
        assert all(torch.equal(other[name], value) for name, value in start.items())


def behaviours(model, source, target):
    """What the discriminator sees, by hand: told and alone."""
    memory = model.read(source)
    outputs = model.think(memory, shifted(target))
    noise = model.draws(B, L * V).unflatten(1, (L, V))
    own, logits = model.alone(memory, B, noise=noise)
    seen = (target != PADDING).unsqueeze(-1)
    told = torch.cat([outputs, model.say(memory, outputs).softmax(-1)], -1) * seen
    return told, torch.cat([own, logits.softmax(-1)], -1) * seen


@pytest.mark.parametrize(("sure", "unsure"), [(2.0, -1.0), (2.0, 2.0), (-1.0, -1.0)])
def test_in_professor_forcing_each_learns_its_own(sure, unsure, monkeypatch):
    monkeypatch.setattr(forcing, "SURE", sure)
    monkeypatch.setattr(forcing, "UNSURE", unsure)
    source, target = tokens()
    model = make(forcing="professor")
    logits, contest = model(source, target)
    close(logits, make()(source, target))
    contest.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    twin = make(forcing="professor")
    told, alone = behaviours(twin, source, target)
    judge = twin.discriminator
    own = -F.logsigmoid(judge(told.detach())).mean() - (1 - judge(alone.detach()).sigmoid()).log().mean()
    fooled = -F.logsigmoid(judge(alone)).mean()
    listens, learns = unsure < 0, sure > 1
    close(contest, (own if learns else 0) + (fooled if listens else 0))
    inner = dict(judge.named_parameters(prefix="discriminator"))
    outer = {name: value for name, value in twin.named_parameters() if name not in inner}
    wanted = dict(zip(inner, torch.autograd.grad(own, list(inner.values())), strict=True))
    wanted |= dict(zip(outer, torch.autograd.grad(fooled, list(outer.values()), allow_unused=True), strict=True))
    for name, value in wanted.items():
        active = learns if name in inner else listens
        expected = torch.zeros_like(found[name]) if not active or value is None else value
        close(found[name] if found[name] is not None else expected, expected)


@pytest.mark.parametrize("task", ["copy", "dates"])
@pytest.mark.parametrize("name", NAMES)
def test_the_judge_is_smaller_than_the_writer(name, task):
    model = nnarena.build(f"{name}[forcing=professor]", task=task)
    judge = sum(parameter.numel() for parameter in model.discriminator.parameters())
    assert 0 < 2 * judge < sum(parameter.numel() for parameter in model.parameters())


def gru(layer, x):
    """The last state of a GRU over x (B, L, F), by its equations."""
    h = x.new_zeros(len(x), layer.hidden_size)
    for x_l in x.unbind(1):
        own = (x_l @ layer.weight_ih.T + layer.bias_ih).chunk(3, -1)
        back = (h @ layer.weight_hh.T + layer.bias_hh).chunk(3, -1)
        r, z = torch.sigmoid(own[0] + back[0]), torch.sigmoid(own[1] + back[1])
        h = (1 - z) * torch.tanh(own[2] + r * back[2]) + z * h
    return h


@pytest.mark.parametrize(("shift", "learns", "listens"), [(0.0, True, False), (0.3, True, True), (3.0, False, True)])
def test_the_two_losses_of_professor_forcing_are_their_equations(shift, learns, listens):
    torch.manual_seed(0)
    judge = Discriminator(3, 4).double()
    told = (torch.randn(40, 5, 3, dtype=torch.float64) + shift).requires_grad_()
    alone = (torch.randn(40, 5, 3, dtype=torch.float64) - shift).requires_grad_()
    optimizer = torch.optim.Adam(judge.parameters(), 0.02)
    for _ in range(20):  # a little of judging, so that it is right as often as it can
        optimizer.zero_grad()
        (F.softplus(-judge(told.detach())).mean() + F.softplus(judge(alone.detach())).mean()).backward()
        optimizer.step()

    def judged(b):
        ends = torch.cat([gru(judge.layer.forwards, b), gru(judge.layer.backwards, b.flip(1))], -1)
        return torch.sigmoid(ends @ judge.head.weight[0] + judge.head.bias)

    close(judge(told).sigmoid(), judged(told))
    right = (int((judged(told) > 0.5).sum()) + int((judged(alone) < 0.5).sum())) / 80
    assert (right < 0.99, right > 0.75) == (learns, listens)
    of_judge = -judged(told).log().mean() - (1 - judged(alone)).log().mean()
    of_writer = -judged(alone).log().mean()
    found = judge.contest(told, alone)
    close(found, learns * of_judge + listens * of_writer)
    by_told, by_alone, *by_judge = torch.autograd.grad(found, [told, alone, *judge.parameters()], allow_unused=True)
    assert by_told is None  # the right tokens are not to be unlearned
    close(by_alone, listens * torch.autograd.grad(of_writer, alone)[0])
    for mine, other in zip(by_judge, torch.autograd.grad(of_judge, list(judge.parameters())), strict=True):
        close(mine, learns * other)


def test_a_discriminator_tells_behaviours_apart():
    torch.manual_seed(0)
    judge = Discriminator(3, 4)
    optimizer = torch.optim.Adam(judge.parameters(), 0.03)
    for _ in range(60):
        told, alone = torch.randn(32, 5, 3) + 0.8, torch.randn(32, 5, 3) - 0.8
        optimizer.zero_grad()
        judge.contest(told, alone).backward()
        optimizer.step()
    assert (judge(told) > 0).float().mean() > 0.9 and (judge(alone) < 0).float().mean() > 0.9


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"anneal": "linear"}, "it anneals with forcing=scheduled only, not with forcing=teacher"),
        ({"anneal_steps": 5, "forcing": "free"}, "it anneals with forcing=scheduled only, not with forcing=free"),
        ({"anneal_steps": 0, "forcing": "scheduled"}, "it takes anneal_steps of at least 1, not 0"),
        ({"beam": 0}, "it takes beam of at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_told(options, reason):
    with pytest.raises(Unfit, match=reason):
        make(**options)


def test_without_an_output_sequence_there_is_nothing_to_force():
    spec = TaskSpec(input_shape=(4, 2), output_size=1, target="values")
    with pytest.raises(Unfit, match="the task asks for no such sequence: there is nothing to force"):
        catalogue("model")["encoder_decoder"].load()(spec, forcing="scheduled")
