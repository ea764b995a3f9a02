"""What our own optimizers share: tensors gathered into lists, steps that are counted, options that are checked.

A subclass says what it keeps (`keeps`), what its options may be (`check`) and how a list of tensors moves: step by step
(`move`), and, for the kernels that do the same in three launches, in numbers (`rule`, `numbers`).
"""

# torch's optimizers are written with torch._foreach_…, which it does not export and types too narrowly.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.kernels.optimizers.multi import Numbers, Rule
from nnarena.optim import fused
from nnarena.optim.fused import Group

Params = Iterable[Tensor] | Iterable[dict[str, Any]]
HALVES = (torch.float16, torch.bfloat16)
LARGE = 16_384  # numbers


@dataclass
class Batch:
    """Parameters of one type on one device, and what belongs to each; complex numbers as pairs of real ones.

    `kept[name]` are the tensors that the optimizer keeps, `is_weight` tells matrices and kernels from biases.
    """

    params: list[Tensor]
    grads: list[Tensor]
    kept: dict[str, list[Tensor]]
    steps: list[Tensor]
    is_weight: list[bool]


class Grouped(Optimizer):
    """An optimizer that moves many tensors at once.

    `population_dims`: how many first dimensions of every tensor count members of a population, whose norms and
    products are taken apart. Numbers of 16 bits are computed with as 32, and kept, as torch does, as 16.
    """

    population_dims = 0
    counts = True  # whether it keeps the number of steps

    def __init__(self, params: Params, defaults: Group) -> None:
        ways = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
        super().__init__(params, {**ways, **defaults})

    def keeps(self, group: Group) -> tuple[str, ...]:
        """The names of the tensors that are kept beside each parameter, all zeros at first."""
        raise NotImplementedError

    def check(self, group: Group) -> None:
        """Raise ValueError if an option is out of range."""
        raise NotImplementedError

    def move(self, group: Group, batch: Batch) -> None:
        """Change `batch.params` and `batch.kept` where they lie."""
        raise NotImplementedError

    def rule(self, group: Group) -> Rule:
        """`move` as the kernels know it."""
        raise NotImplementedError

    def numbers(self, group: Group, device: torch.device) -> Numbers:
        """The numbers of `move`, for the kernels."""
        raise NotImplementedError

    def projects(self, group: Group, is_weight: bool) -> bool:
        """Whether updates of a tensor may lose something."""
        return is_weight

    @property
    def tables(self) -> dict[Any, Any]:
        """What the kernels know of lists of tensors; not part of the state."""
        return self.__dict__.setdefault("_tables", {})

    def add_param_group(self, param_group: Group) -> None:
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step; `closure`, if there is one, computes the loss and its gradients, and the loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            for group in self.param_groups:
                for params in self._buckets(group):
                    self._step(group, params)
        return loss

    def _buckets(self, group: Group) -> Iterator[list[Tensor]]:
        """The parameters with gradients, in lists of one type and device; or each by itself, if not `foreach`.

        On a CPU a large one is by itself too, unless asked otherwise: so it stays in the cache during its step.
        """
        buckets: dict[Any, list[Tensor]] = {}
        foreach = group["foreach"]
        for place, param in enumerate(group["params"]):
            grad = param.grad
            if grad is None or not (size := param.numel()):
                continue
            if grad.layout is not torch.strided:
                raise RuntimeError(
                    f"{type(self).__name__} cannot take sparse gradients: make them dense, or use torch's SparseAdam."
                )
            alone = foreach is False or (foreach is None and size > LARGE and param.is_cpu)
            key = place if alone else (param.device, param.dtype, grad.dtype)
            buckets.setdefault(key, []).append(param)
        yield from buckets.values()

    def _step(self, group: Group, params: list[Tensor]) -> None:
        names, first = self.keeps(group), params[0]
        in_kernels = fused.is_wanted(type(self).__name__, group, first) and first.dtype == first.grad.dtype  # type: ignore[union-attr]
        where = first.device if in_kernels or group["capturable"] else torch.device("cpu")
        if where != first.device and first.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{type(self).__name__} can be recorded in a CUDA graph only with capturable=True.")
        states = [self.state[param] for param in params]
        for param, state in zip(params, states, strict=True):
            if len(state) < len(names) + self.counts:
                self._begin(param, state, names, where)
        steps = [state["step"] for state in states] if self.counts else []
        if steps:
            with torch.no_grad():
                torch._foreach_add_(steps, 1.0)
        if in_kernels and fused.step(self, group, params, states):
            return
        stored = [_real(params), *(_real([state[name] for state in states]) for name in names)]
        # Numbers of 16 bits, and those that gradients shall flow through, change as copies that are written back.
        if params[0].dtype in HALVES:
            values = [[tensor.float() for tensor in tensors] for tensors in stored]
        else:
            values = [copies(ts) for ts in stored] if group["differentiable"] else stored
        grads = [grad.to(values[0][0].dtype) for grad in _real([param.grad for param in params])]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        is_weight = [param.ndim - self.population_dims > 1 for param in params]
        self.move(group, Batch(values[0], grads, dict(zip(names, values[1:], strict=True)), steps, is_weight))
        if values is not stored:
            for olds, news in zip(stored, values, strict=True):
                for old, new in zip(olds, news, strict=True):
                    old.copy_(new)  # torch._foreach_copy_ has no gradient

    def _begin(self, param: Tensor, state: dict[str, Tensor], names: tuple[str, ...], where: torch.device) -> None:
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        if self.counts and "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=where)


def _real(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    """The same numbers in memory of their own; gradients flow through."""
    if torch.is_grad_enabled():  # torch._foreach_mul would keep what changes later
        return [tensor.clone() for tensor in tensors]
    return list(torch._foreach_mul(tensors, 1.0))


def demand(owner: str, group: Group, name: str, fits: Callable[[Any], bool], phrase: str) -> None:
    """Raise a sentence that names the option, what it must be, and its value."""
    if not fits(group[name]):
        raise ValueError(f"{owner}: {name} must be {phrase}, not {group[name]!r}.")


def is_rate(value: Any) -> bool:
    """A learning rate: a finite number ≥ 0, or a tensor of one number, which nobody looks at."""
    return value.numel() == 1 if isinstance(value, Tensor) else is_positive(value)


def is_positive(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf


def is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def are_betas(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_share, value))
