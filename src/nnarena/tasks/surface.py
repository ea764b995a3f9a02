"""Surfaces to descend on, step by step: what is left of training when there are no samples."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.learner import Learner, Means, Work
from nnarena.core.seeds import derive
from nnarena.core.spec import TaskSpec
from nnarena.core.surfaces import find_surface
from nnarena.core.task import Task

FIRST, LATER = 60, 100  # steps of a path that the report is left: all at the beginning, then so many at most


@task("surface", reference="Rosenbrock 1960; Beale 1958, On an iterative method for finding a local minimum")
class OnSurface(Task):
    """Walk down f(x, y); the model is a place, as `point` is.

        ℓ_t(θ) = f(θ) + σ ε_t·θ,   ε_t ~ N(0, 1)²,   so that the gradient is ∇f(θ) + σ ε_t

    The noise ε_t is a function of the seed and the step, the same for all rivals. There is nothing to generalise to:
    validation and test are the same look at the place, after the last step of an epoch and without noise. `value` is
    f(θ), `distance` how far away the nearest minimum is, and `excess`, which ranks, f(θ) − f*, which no f can undercut.

    quartic is x⁴ + 4 x³ + y², rosenbrock (1 − x)² + 100 (y − x²)², beale the sum of its three squares, saddle
    x² − y² + y⁴ / 2, ravine (x + y)² / 20 + 5 (x − y)² with σ = 2: `core/surfaces.py`.

    Options:
        of: quartic, rosenbrock, beale, saddle or ravine
        steps: steps of an epoch
        start: where the walk begins, as in (-1.2,1); none takes the place that the surface has for it
        noise: σ; none takes that of the surface
    """

    practises = True

    def __init__(
        self,
        *,
        of: str = "rosenbrock",
        steps: int = 50,
        start: tuple[float, float] | None = None,
        noise: float | None = None,
    ) -> None:
        self.of, self.steps, self.surface = of, steps, find_surface(of)
        self.start = self.surface.start if start is None else start
        self.noise_size = self.surface.noise if noise is None else noise
        if steps < 1:
            raise BadOption(f"surface: steps must be at least 1, not {steps}.")
        if not self.surface.has(self.start):
            low, high = self.surface.low, self.surface.high
            raise BadOption(
                f"surface: the start {self.start} lies outside of {of}, whose x is from {low[0]:g} to {high[0]:g} and "
                f"y from {low[1]:g} to {high[1]:g}."
            )
        if not 0 <= self.noise_size < math.inf:
            raise BadOption(f"surface: noise must be a number that is not negative, not {noise}.")
        self.spec = TaskSpec(input_shape=(), output_size=2, target="values", start=self.start)

    def learner(self, model: nn.Module, optimizer: Optimizer, means: Means) -> Learner:
        return Walk(self, model, optimizer, means)

    def look(self, place: Tensor) -> dict[str, float]:
        """The metrics of a place, in float64."""
        x, y = place.detach().double().cpu()
        value = float(self.surface.formula(x, y))
        away = min(math.hypot(x - a, y - b) for a, b in self.surface.minima)
        return {"value": value, "distance": away, "excess": value - self.surface.least}


class Walk(Learner):
    """Takes the steps of the optimizer, and remembers every place.

    On a GPU a step is one graph: it reads its noise, and writes its place, its loss and its gradient, by a counter that
    lies there.
    """

    def __init__(self, task: OnSurface, model: nn.Module, optimizer: Optimizer, means: Means) -> None:
        self.task, self.model, self.optimizer, self.means = task, model, optimizer, means
        self.steps, self.taken, self.optimizers = task.steps, 0, {}
        device = means.device
        self.asked = torch.zeros(1, device=device)  # one answer of the model
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        self.tilt = torch.zeros(self.steps, 2, device=device)
        self.trail = torch.zeros(self.steps, 2, device=device)
        self.losses, self.slopes = torch.zeros(self.steps, device=device), torch.zeros(self.steps, device=device)
        with torch.no_grad():
            self.path = self.place().clone().unsqueeze(0)  # (steps so far + 1, 2)
        self.renew()

    def place(self) -> Tensor:
        return self.model(self.asked)[0]

    def renew(self) -> None:
        self.step = self.means.repeat(self._step)

    def _step(self) -> None:
        self.optimizer.zero_grad()
        place = self.place()
        value = self.task.surface.formula(place[0], place[1])
        if self.task.noise_size:
            (value + self.tilt.index_select(0, self.count)[0] @ place).backward()
        else:
            value.backward()
        slope = torch.stack([p.grad.square().sum() for p in self.model.parameters() if p.grad is not None]).sum().sqrt()
        self.optimizer.step()
        with torch.no_grad():
            self.losses.index_copy_(0, self.count, value.detach().reshape(1))
            self.slopes.index_copy_(0, self.count, slope.reshape(1))
            self.trail.index_copy_(0, self.count, self.place().reshape(1, 2))
            self.count += 1

    def practise(self, go_on: Work) -> dict[str, float]:
        """The mean of f over the places where the gradient was taken, and of the gradient's length."""
        generator = torch.Generator().manual_seed(derive(self.means.seed, "tilt", self.taken))
        self.tilt.copy_(self.task.noise_size * torch.randn(self.steps, 2, generator=generator))
        self.count.zero_()
        for _ in range(self.steps):
            go_on()
            self.step()
        self.taken += self.steps
        self.path = torch.cat([self.path, self.trail])
        return {"loss": float(self.losses.double().mean()), "gradient": float(self.slopes.double().mean())}

    @torch.no_grad()
    def examine(self, part: str) -> dict[str, float]:
        return self.task.look(self.place())

    def baselines(self) -> dict[str, dict[str, float]]:
        """Not to move."""
        return {"the start": self.task.look(self.path[0])}

    def tensors(self) -> dict[str, Tensor]:
        return {"path": self.path}

    def load(self, tensors: dict[str, Tensor]) -> None:
        path = tensors.get("path")
        if path is None or path.ndim != 2 or path.shape[1] != 2 or len(path) % self.steps != 1 % self.steps:
            raise ValueError("a walk keeps its path, one place a step")
        self.path = path.to(self.means.device)
        self.taken = len(path) - 1

    def seconds(self) -> float:
        began = time.perf_counter()
        self.practise(lambda: None)
        return time.perf_counter() - began

    def exhibit(self) -> dict[str, Any]:
        """Places of the path as [step, x, y, f], fewer of them later on; up to where a number was no longer finite."""
        path = self.path.double().cpu()
        values = self.task.surface.formula(path[:, 0], path[:, 1])
        good = torch.isfinite(values) & torch.isfinite(path).all(1)
        end = len(path) if good.all() else int(good.int().argmin())
        every = max(1, math.ceil((len(path) - 1 - FIRST) / LATER))
        steps = sorted({*range(min(FIRST, end)), *range(FIRST, end, every), end - 1} - {-1})
        places = [
            [step, *(float(f"{number:.5g}") for number in (*path[step].tolist(), float(values[step])))]
            for step in steps
        ]
        return {"kind": "path", "surface": self.task.of, "steps": len(path) - 1, "places": places}
