"""A person's own optimizer."""

from __future__ import annotations

import pytest
import torch

from nnarena.core.errors import ArenaError, BadOption
from nnarena.optim.adopt import adopt


class Signs(torch.optim.Optimizer):
    """Steps of one size.

    Options:
        lr: the size
    """

    def __init__(self, params, lr: float = 0.1, *, twice: bool = False):
        super().__init__(params, {"lr": lr, "twice": twice})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= (1 + group["twice"]) * group["lr"] * p.grad.sign()


def test_the_first_argument_takes_the_parameters_and_all_others_are_options():
    component = adopt(Signs)
    assert component.resolve({}) == {"lr": 0.1, "twice": False}
    assert [option.doc for option in component.options] == ["the size", ""]
    p = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    optimizer = component.load()([p], **component.resolve({"lr": 0.25, "twice": True}))
    p.grad = torch.tensor([3.0, -5.0])
    optimizer.step()
    assert p.tolist() == [0.5, -0.5]
    with pytest.raises(BadOption, match="Signs has no option 'params'"):
        component.resolve({"params": 1})


def test_a_function_that_returns_an_optimizer():
    def mine(params, lr=0.5):
        return torch.optim.SGD(params, lr=lr)

    assert adopt(mine).load()([torch.nn.Parameter(torch.ones(1))], lr=0.25).param_groups[0]["lr"] == 0.25


def test_what_is_no_optimizer_is_a_sentence():
    def mine(params):
        return "no"

    with pytest.raises(ArenaError, match=r"mine gave a str; an optimizer must be a torch\.optim\.Optimizer"):
        adopt(mine).load()([])
    for wrong in (lambda: None, lambda weights: None):
        with pytest.raises(ArenaError, match="cannot be an optimizer: its first argument must be params"):
            adopt(wrong)

    class Wrong:
        pass

    with pytest.raises(ArenaError, match=r"Wrong cannot be an optimizer: a class must be a subclass of torch\.optim"):
        adopt(Wrong)
