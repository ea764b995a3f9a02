"""What was experienced, as a ring of tensors.

R rows, N environments side by side, F features of an observation, A actions, S numbers of a carried state, B samples,
K frames, n steps of a return.

A row holds one step of all environments. Where it lies is its row; *when* it was is its age in the ring, counted from
the oldest row that is left: `time` 0 is the oldest. Windows of frames and returns over several steps are put together
when they are asked for, from rows that follow each other; neither reaches into another episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnarena.core.errors import BadOption


class Replay:
    """The last `capacity` transitions.

    observation, action, reward, following   s, a, r, s'
    terminated                               1 where the episode was over by itself
    over                                     whether it was over, by itself or by a limit of time
    age                                      how many steps of the episode came before
    state                                    what a recurrent actor carried before it saw s
    """

    def __init__(
        self,
        capacity: int,
        envs: int,
        observation: int,
        actions: int,
        *,
        frames: int = 1,
        state: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if capacity % envs or capacity < envs * (frames + 1):
            raise BadOption(f"A buffer of {capacity} must be a multiple of {envs} environments, and hold some windows.")
        self.rows, self.envs, self.frames, self.device = capacity // envs, envs, frames, device

        widths = {"observation": observation, "action": actions, "reward": 1, "following": observation}
        self.widths = widths | {"terminated": 1, "state": state}
        self.packed = torch.zeros(self.rows, envs, sum(self.widths.values()), device=device)
        parts = self.packed.split(list(self.widths.values()), -1)
        self.kept = {
            name: part[..., 0] if name in ("reward", "terminated") else part
            for name, part in zip(self.widths, parts, strict=True)
        }
        self.kept["over"] = torch.zeros(self.rows, envs, dtype=torch.bool, device=device)
        self.kept["age"] = torch.zeros(self.rows, envs, dtype=torch.int64, device=device)
        self.place = self.filled = 0
        # The row of time 0; the first transition that is drawn, and how many are; how many times there are.
        self.span = torch.zeros(4, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return self.filled * self.envs

    def add(self, **step: Tensor) -> None:
        """A step of all environments: every tensor (N, …), on the ring's device."""
        parts = [step[name] if step[name].dim() == 2 else step[name][:, None] for name in self.widths]
        torch.cat(parts, 1, out=self.packed[self.place])
        self.kept["over"][self.place] = step["over"]
        self.kept["age"][self.place] = step["age"]
        self.place = (self.place + 1) % self.rows
        self.filled = min(self.filled + 1, self.rows)
        self._look()

    def cut(self) -> None:
        """Episodes that run now end here, as if by a limit of time."""
        if self.filled:
            self.kept["over"][self.place - 1] = True

    def _look(self) -> None:
        # Once the ring is full, the first windows have lost their beginning: they are not drawn.
        full = self.filled == self.rows
        first = self.frames - 1 if full else 0
        drawn = first * self.envs, (self.filled - first) * self.envs
        self.span.copy_(torch.tensor([self.place if full else 0, *drawn, self.filled]))

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Times and environments (B,) of some transitions, all alike probable. Asks the device for no number."""
        _, first, drawn, _ = self.span.unbind()
        which = torch.rand(count, dtype=torch.float64, device=self.device).mul_(drawn).long().add_(first)
        if self.envs == 1:
            return which, torch.zeros_like(which)
        return which // self.envs, which % self.envs

    def take(self, time: Tensor, env: Tensor) -> dict[str, Tensor]:
        """All that was kept of some transitions (B, …) but how old their episodes were, by one look into the memory."""
        place = (time + self.span[0]).remainder_(self.rows)
        if self.envs > 1:
            place = place.mul_(self.envs).add_(env)
        parts = self.packed.view(-1, self.packed.shape[-1]).index_select(0, place).split(list(self.widths.values()), 1)
        return dict(zip(self.widths, parts, strict=True))

    def at(self, name: str, time: Tensor, env: Tensor) -> Tensor:
        """What was kept under a name at some times (B, …) in environments of the same shape."""
        return self.kept[name][(self.span[0] + time) % self.rows, env]

    def returns(self, time: Tensor, env: Tensor, steps: int, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
        """Σ γⁱ r over at most `steps` steps, the factor of what follows them, and the time of the last one, all (B,).

        The sum ends with the episode, or with what is there. What follows counts γ to the number of steps taken, and
        nothing where the episode was over by itself.
        """
        total, last = self.at("reward", time, env), time
        going = ~self.at("over", time, env)
        for step in range(1, steps):
            there = going & (time + step < self.span[3])
            now = torch.where(there, time + step, last)
            total = total + torch.where(there, gamma**step * self.at("reward", now, env), 0.0)
            last, going = now, there & ~self.at("over", now, env)
        factor = gamma ** (last - time + 1).to(total.dtype)
        return total, factor * (1 - self.at("terminated", last, env)), last

    def window(self, time: Tensor, env: Tensor, following: bool = False) -> Tensor:
        """The last K frames (B, K, F) at a time, or after it. An episode's first frame stands for those before it."""
        if self.frames == 1:
            return self.at("following" if following else "observation", time, env)[:, None]
        count = self.frames - following
        back = torch.arange(count - 1, -1, -1, device=self.device)
        back = torch.minimum(back, self.at("age", time, env)[:, None])
        frames = self.at("observation", time[:, None] - back, env[:, None].expand_as(back))
        return torch.cat([frames, self.at("following", time, env)[:, None]], 1) if following else frames

    def tensors(self) -> dict[str, Tensor]:
        """What is there, the oldest first."""
        order = (self.place - self.filled + torch.arange(self.filled, device=self.device)) % self.rows
        return {name: ring[order] for name, ring in self.kept.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.check(tensors)
        self.filled = len(tensors["age"])
        self.place = self.filled % self.rows
        for name, ring in self.kept.items():
            ring[: self.filled].copy_(tensors[name])
        self._look()

    def check(self, tensors: dict[str, Tensor]) -> None:
        """ValueError if these are not what another ring of this kind held."""
        count = len(tensors["age"]) if "age" in tensors else 0
        wanted = {name: (count, *ring.shape[1:]) for name, ring in self.kept.items()}
        if count > self.rows or wanted != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
            raise ValueError("what was experienced has other names or shapes")
