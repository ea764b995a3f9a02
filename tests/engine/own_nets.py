"""Models and tasks of one's own that misbehave in every way a trial must survive. Named by this file's path."""

from __future__ import annotations

import hashlib
import os
import signal
import time

import numpy as np
import torch
from torch import nn

import nnarena
from nnarena.core.components import find


def noisy(spec, width: int = 6):
    """Dropout, and the buffers of a batch norm."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(spec.length * spec.input_size, width),
        nn.BatchNorm1d(width),
        nn.Dropout(0.3),
        nn.Linear(width, spec.output_size),
    )


def chancy(spec, width: int = 6):
    """A kind of dropout that draws from torch's stream of random numbers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(spec.length * spec.input_size, width),
        nn.AlphaDropout(0.3),
        nn.Linear(width, spec.output_size),
    )


def normed(spec, width: int = 6):
    """Two norms with running means, one of them without parameters; for any number of steps."""

    class Last(nn.Module):
        def forward(self, x):
            return x[:, -1]

    parts = [nn.Linear(spec.input_size, width), nn.BatchNorm1d(width), nn.Tanh(), nn.BatchNorm1d(width, affine=False)]
    return nn.Sequential(Last(), *parts, nn.Linear(width, spec.output_size))


def sums(rng, classes: int = 3, samples: int = 320):
    """Which class the last of four numbers is in; two features, as `add` has."""
    x = rng.random((samples, 4, 2), dtype=np.float32)
    return x, (x[:, -1, 0] * classes).astype(np.int64)


class Counting(nn.Module):
    """Counts its training steps in a buffer, and does something when there were `after`."""

    def __init__(self, input_size: int, output_size: int, after: int = 20) -> None:
        super().__init__()
        self.mix = nn.Linear(input_size, output_size)
        self.after = after
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.steps.add_(1)
            if self.steps > self.after:
                return self.happen(self.mix(x[:, -1]))
        return self.mix(x[:, -1])

    def happen(self, output):
        return output


class Diverges(Counting):
    def happen(self, output):
        return output * float("nan")


class Breaks(Counting):
    def happen(self, output):
        raise ZeroDivisionError("the cell [broke] at last")


class Hungry(Counting):
    def happen(self, output):
        raise MemoryError("no more")


class Kills(Counting):
    """Ends its own process, always after the same step."""

    def happen(self, output):
        os.kill(os.getpid(), signal.SIGKILL)


class Sleeps(Counting):
    """Takes its time at every step, but not where OWN_NETS_HURRY is set."""

    def __init__(self, input_size: int, output_size: int, seconds: float = 0.02) -> None:
        super().__init__(input_size, output_size)
        self.seconds = seconds

    def forward(self, x):
        if self.training and "OWN_NETS_HURRY" not in os.environ:
            time.sleep(self.seconds)
        return super().forward(x)


class Swings(Counting):
    """Answers with how far its count of steps is from `after`: best there, worse before and behind it."""

    def forward(self, x):
        super().forward(x)
        return 0 * self.mix(x[:, -1]) + (self.steps - self.after).abs()


class Records(Counting):
    """Writes a line for every batch it sees: mode and a hash of the numbers."""

    def __init__(self, input_size: int, output_size: int, log: str = "", noise: bool = False) -> None:
        super().__init__(input_size, output_size)
        self.log, self.noise = log, noise

    def forward(self, x):
        if self.log:
            with open(self.log, "a") as file:
                mode = "train" if self.training else "eval"
                file.write(f"{mode} {hashlib.sha256(x.numpy().tobytes()).hexdigest()}\n")
        if self.noise and self.training:
            x = x + torch.randn_like(x)
        return super().forward(x)


class Frozen(nn.Module):
    """A part of it must not be trained."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.fixed = nn.Linear(input_size, 3)
        self.fixed.requires_grad_(False)
        self.mix = nn.Linear(3, output_size)

    def forward(self, x):
        return self.mix(self.fixed(x[:, -1]))


class Reassigns(nn.Module):
    """Its running mean is a new tensor at every step."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.mix = nn.Linear(input_size, output_size)
        self.register_buffer("mean", torch.zeros(input_size))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1))
        return self.mix(x[:, -1] - self.mean)


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.one = nn.Linear(input_size, input_size)
        self.two = nn.Linear(input_size, input_size)
        self.two.weight = self.one.weight
        self.mix = nn.Linear(input_size, output_size)

    def forward(self, x):
        return self.mix(self.two(self.one(x[:, -1])))


def wrong_shape(spec):
    return nn.Linear(spec.input_size, spec.output_size + 1)


def no_parameters(spec):
    return nn.Identity()


class Tuple(Counting):
    def forward(self, x):
        return super().forward(x), None


class Flat(nnarena.Task):
    """The loss is 1, whatever one does."""

    def __init__(self, *, samples: int = 320) -> None:
        self.count = samples
        self.spec = nnarena.TaskSpec(input_shape=(3, 2), output_size=1, target="values")

    def samples(self, rng):
        return nnarena.Samples(
            rng.random((self.count, 3, 2), dtype=np.float32), np.zeros((self.count, 1), dtype=np.float32)
        )

    def loss(self, prediction, target):
        return 1 + 0 * prediction.mean()


class Timed(Flat):
    """Series, and the elapsed time."""

    def __init__(self) -> None:
        self.count = 320
        self.spec = nnarena.TaskSpec(input_shape=(3, 2), output_size=1, target="values", timespans=True)

    def samples(self, rng):
        x = rng.random((self.count, 3, 2), dtype=np.float32)
        spans = rng.random((self.count, 3), dtype=np.float32)
        return nnarena.Samples(x, spans.sum(1, keepdims=True), spans, np.arange(self.count) // 8)

    loss = nnarena.Task.loss


def zeros(rng):
    """Nothing in, nothing out: the squared answer is the loss."""
    return rng.random((320, 3, 2)), np.zeros(320, dtype=np.float32)


class Prints(Counting):
    """Talks to standard output, past Python too."""

    def forward(self, x):
        print('{"event": "finish", "result": {}}')
        os.write(1, b"no JSON at all\n")
        return super().forward(x)


class Small(nn.Module):
    """Stacks without trouble: a parameter that is one number, running statistics, a buffer, a part that is frozen."""

    def __init__(self, input_size: int, output_size: int, width: int = 5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.fixed = nn.Linear(input_size, width)
        self.fixed.requires_grad_(False)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Linear(width, output_size)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(input_size))

    def forward(self, x):
        if self.training:
            self.steps.add_(1)
            self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1))
        return self.scale * self.mix(torch.tanh(self.norm(self.fixed(x.mean(1) - self.mean))))


class Explodes(Small):
    """NaN for ever once it was trained for `after` steps, if its start value says so: about half of the seeds."""

    def __init__(self, input_size: int, output_size: int, after: int = 40) -> None:
        super().__init__(input_size, output_size)
        self.after = after
        self.register_buffer("ill", torch.rand(()) < 0.5)

    def forward(self, x):
        ends = self.ill & (self.steps > self.after)
        return super().forward(x) + torch.where(ends, torch.nan, 0.0)


class Differs(nn.Module):
    """Seeds differ in a number that is neither parameter nor buffer."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.mix = nn.Linear(input_size, output_size)
        self.factor = float(torch.rand(()))

    def forward(self, x):
        return self.factor * self.mix(x[:, -1])


class Signs(torch.optim.Optimizer):
    """An optimizer of one's own: nobody knows whether it leaves the members of a stack apart."""

    def __init__(self, params, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param -= group["lr"] * param.grad / (1e-9 + param.grad.norm())


class Apart(Signs):
    """The same, and it says that it can."""

    population_dims = 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    square = param.grad.square()
                    size = (
                        square.flatten(self.population_dims).sum(-1) if square.ndim > self.population_dims else square
                    )
                    shape = (*size.shape, *[1] * (param.ndim - size.ndim))
                    param -= group["lr"] * param.grad / (1e-9 + size.sqrt().view(shape))


class Ragged(Timed):
    """Series of unequal length: how many samples are left to train on depends on the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = nnarena.TaskSpec(input_shape=(3, 2), output_size=1, target="values")

    def samples(self, rng):
        x = rng.random((self.count, 3, 2), dtype=np.float32)
        owner = np.repeat(np.arange(6), [16, 150, 20, 60, 34, 40])
        return nnarena.Samples(x, x.sum((1, 2))[:, None], series=owner)


class KillsSeed(Small):
    """Ends its own process after 20 steps, and whoever is in it, if a start value says so: seeds above `above`."""

    def __init__(self, input_size: int, output_size: int, above: float = 0.6) -> None:
        super().__init__(input_size, output_size)
        self.above = above
        self.register_buffer("deadly", torch.rand(()))

    def forward(self, x):
        if self.training:
            deadly, steps = (torch.func.debug_unwrap(tensor) for tensor in (self.deadly, self.steps))
            if bool((deadly > self.above).any()) and int(steps.max()) > 20:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def waits(spec, width: int = 6):
    """Dropout, and the host waits for the device in a way that nobody can foresee."""

    class Waits(nn.Module):
        def forward(self, x):
            if x.is_cuda:
                torch.cuda.synchronize()
            return x

    return nn.Sequential(noisy(spec, width), Waits())


def pixels(spec):
    """A dense layer on all pixels of an image."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(spec.input_shape)), spec.output_size))


class Exact(nn.Module):
    """A built-in network for images in float64, where rounding is next to nothing."""

    def __init__(self, spec, net: str = "resnet18") -> None:
        super().__init__()
        self.net = find("model", net).load()(spec).double()

    def forward(self, x):
        return self.net(x.double())


class Idle(nn.Module):
    """Its first weight takes no part."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.unused = nn.Linear(input_size, output_size)
        self.used = nn.Linear(input_size, output_size)

    def forward(self, x):
        return self.used(x[:, -1])
