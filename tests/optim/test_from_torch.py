"""Registered optimizers: torch's, bit for bit, with every option passed on."""

from __future__ import annotations

import pytest
import torch

from nnarena.core.components import catalogue

CLASSES = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
}
OURS = {name: item for name, item in catalogue("optimizer").items() if item.module == "nnarena.optim.from_torch"}
# Other values than the defaults; some mean something only beside others.
OTHERS = {
    "lr": 0.03,
    "momentum": 0.7,
    "dampening": 0.2,
    "weight_decay": 0.3,
    "betas": (0.5, 0.7),
    "eps": 1e-2,
    "amsgrad": True,
    "nesterov": True,
    "momentum_decay": 0.5,
    "alpha": 0.6,
    "centered": True,
    "lr_decay": 0.3,
    "initial_accumulator_value": 0.4,
    "rho": 0.4,
}
COMPANIONS = {"dampening": {"momentum": 0.7}, "nesterov": {"momentum": 0.7}, "amsgrad": {"betas": (0.5, 0.7)}}
# What the engine makes groups of, and never reaches an optimizer, is not torch's.
OPTIONS = {name: [option.name for option in item.options] for name, item in OURS.items()}
EVERY_OPTION = [(name, option) for name, options in OPTIONS.items() for option in options]


def walk(make, steps=12):
    """Parameters after every step down a bent valley, in two tensors."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(4))]
    optimizer = make(params)
    trace = []
    for step in range(steps):
        optimizer.zero_grad()
        noise = 1 + 0.5 * torch.sin(torch.tensor(float(step) * 2.1))
        ((params[0] ** 2 * noise).sum() + (params[1] ** 4).sum() + params[0][0].sum() * params[1][:2].sum()).backward()
        optimizer.step()
        trace.append(torch.cat([p.detach().flatten() for p in params]).clone())
    return torch.stack(trace)


def ours(name, **options):
    component = OURS[name]
    return lambda params: component.load()(params, **component.resolve(options))


def test_every_registered_optimizer_is_compared():
    assert OURS.keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_the_defaults_are_torchs_step_by_step(name):
    assert torch.equal(walk(ours(name)), walk(lambda params: CLASSES[name](params)))


@pytest.mark.parametrize(("name", "option"), EVERY_OPTION)
def test_every_option_is_torchs_and_changes_the_steps(name, option):
    options = COMPANIONS.get(option, {}) | {option: OTHERS[option]}
    changed = walk(ours(name, **options))
    assert torch.equal(changed, walk(lambda params: CLASSES[name](params, **options)))
    assert not torch.equal(changed, walk(ours(name, **COMPANIONS.get(option, {}))))


@pytest.mark.parametrize("name", CLASSES)
def test_all_options_at_once(name):
    options = {option: OTHERS[option] for option in OPTIONS[name]}
    options.pop("dampening", None)  # torch has no dampening beside nesterov
    assert torch.equal(walk(ours(name, **options)), walk(lambda params: CLASSES[name](params, **options)))


@pytest.mark.parametrize("name", sorted(catalogue("optimizer")))
def test_parameter_groups_closures_schedulers_and_state_dicts_work(name):
    component = catalogue("optimizer")[name]
    one, two = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = component.load()([{"params": [one], "lr": 0.5}, {"params": [two]}], **component.resolve({}))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, component.resolve({})["lr"]]

    def closure():
        optimizer.zero_grad()
        loss = ((one - 3) ** 2).sum() + ((two - 3) ** 2).sum()
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(20):
        optimizer.step(closure)
    assert closure().item() < first
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    again = component.load()([{"params": [one]}, {"params": [two]}], **component.resolve({}))
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == 0.25
