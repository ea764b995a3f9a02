"""An agent at work: environments, replay and soft actor-critic, an epoch after the other.

N environments, F features of an observation, A actions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nnarena.core.errors import BadOption
from nnarena.core.learner import Learner, Means, Work
from nnarena.core.seeds import derive
from nnarena.rl.critics import make_critics
from nnarena.rl.encoder import make_encoder
from nnarena.rl.envs import Environments
from nnarena.rl.replay import Replay
from nnarena.rl.sac import SAC, Batch, split

REHEARSAL = 20  # steps that a plan is made from


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an agent practises; `tasks.control` says what each means."""

    steps: int = 1000
    frames: int = 5
    envs: int = 1
    warm_up: int = 100
    buffer: int = 100_000
    n_step: int = 1
    gamma: float = 0.99
    tau: float = 0.005
    critic_size: int = 256
    episodes: int = 10
    carry: bool = False
    burn_in: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "frames", "envs", "buffer", "n_step", "critic_size", "episodes"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("steps", "buffer"):
            if getattr(self, name) % self.envs:
                raise BadOption(f"{name}={getattr(self, name)} must be a multiple of envs={self.envs}.")
        if not 0 <= self.warm_up < self.steps:
            raise BadOption(f"warm_up must lie within the first epoch, from 0 to {self.steps - 1}, not {self.warm_up}.")
        for name in ("gamma", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise BadOption(f"{name} must lie above 0 and be at most 1, not {getattr(self, name)}.")
        if self.buffer < self.envs * (self.frames + 1):
            raise BadOption(f"buffer={self.buffer} must hold more than {self.frames} frames of every environment.")
        if self.burn_in and not self.carry:
            raise BadOption("burn_in is for a carried state: add carry=true.")
        if not 0 <= self.burn_in <= self.frames // 2:
            raise BadOption(f"burn_in must be at most half of the {self.frames} frames, not {self.burn_in}.")
        if self.carry and self.frames < 2:
            raise BadOption(f"carry=true needs at least 2 frames to learn from, not {self.frames}.")


class Agent(Learner):
    """Soft actor-critic with any model as its actor: one update for every step of an environment.

    In training, actions are drawn from the policy, after `warm_up` uniform ones. When it is examined, the agent acts by
    the middle of its policy, tanh(μ), in environments of their own whose episodes follow from the seed alone.
    """

    def __init__(
        self,
        environment: str,
        observation: int,
        actions: int,
        settings: Settings,
        model: nn.Module,
        optimizer: Optimizer,
        means: Means,
    ) -> None:
        self.environment, self.sizes, self.settings, self.means = environment, (observation, actions), settings, means
        self.model, self.steps = model, settings.steps
        self.modules = list(model.modules())
        self.encoder = make_encoder(model, settings.frames, settings.carry, settings.burn_in)
        self.replay = Replay(
            settings.buffer,
            settings.envs,
            observation,
            actions,
            frames=settings.frames,
            state=self.encoder.state_size,
            device=means.device,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(means.seed, "critics"))
            critics = make_critics(observation + actions, settings.critic_size, means.device)
        critics_optimizer = means.make_optimizer(critics)
        if hasattr(critics_optimizer, "population_dims"):
            critics_optimizer.population_dims = 1  # type: ignore[attr-defined]  # two critics, each by itself
        self.sac = SAC(
            self.encoder.moments,
            [param for param in model.parameters() if param.requires_grad],
            optimizer,
            critics,
            critics_optimizer,
            actions,
            lr=optimizer.param_groups[0]["lr"],
            tau=settings.tau,
        )
        self.optimizers = {"critics": critics_optimizer, "alpha": self.sac.alpha_optimizer}
        self.taken = 0
        self.envs = Environments(environment, settings.envs, observation, actions)
        self.judges: Environments | None = None
        self.renew()

    def renew(self) -> None:
        self.sac.renew()
        self.update = self.means.repeat(self._update)

    def practise(self, go_on: Work) -> dict[str, float]:
        total, before = 0.0, self.sac.losses.clone()
        updates = 0
        observation = self.envs.seed(derive(self.means.seed, "practice", self.taken))
        fresh = np.ones(len(self.envs), bool)
        age = np.zeros(len(self.envs), np.int64)
        memory = self.encoder.begin(self._tensor(observation))
        for _ in range(self.steps // len(self.envs)):
            go_on()
            seen = self._tensor(observation)
            memory = self._renewed(memory, seen, fresh)
            state = self.encoder.state(memory)
            action, memory = self._act(memory, seen)
            step = self.envs.step(action.cpu().numpy())
            self.replay.add(
                observation=seen,
                action=action,
                reward=self._tensor(step.reward),
                following=self._tensor(step.following),
                terminated=self._tensor(step.terminated.astype(np.float32)),
                over=self._tensor(step.over),
                age=self._tensor(age),
                state=state,
            )
            total += float(step.reward.sum())
            self.taken += len(self.envs)
            age = np.where(step.over, 0, age + 1)
            observation, fresh = step.following.copy(), step.over
            self.envs.begin(fresh, observation)
            if self.taken > self.settings.warm_up:
                self._set_training(True)
                for _ in range(len(self.envs)):
                    self.update()
                updates += len(self.envs)
        self.replay.cut()
        critic, actor, entropy = ((self.sac.losses - before) / updates).tolist()
        return {
            "loss": critic,
            "reward_per_step": total / self.steps,
            "actor_loss": actor,
            "entropy": entropy,
            "alpha": float(self.sac.log_alpha.detach().exp()),
        }

    def examine(self, part: str) -> dict[str, float]:
        def mean_action(memory: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
            moments, memory = self.encoder.step(memory, seen)
            return split(moments)[0].tanh(), memory

        return self._judge(part, mean_action)

    def baselines(self) -> dict[str, dict[str, float]]:
        generator = torch.Generator().manual_seed(derive(self.means.seed, "baseline"))

        def anything(memory: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
            return 2 * torch.rand(len(seen), self.sizes[1], generator=generator) - 1, memory

        return {"random actions": self._judge("test", anything)}

    def tensors(self) -> dict[str, Tensor]:
        replay = {f"replay.{name}": tensor for name, tensor in self.replay.tensors().items()}
        return {**self.sac.tensors(), **replay, "taken": torch.tensor(self.taken)}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        replay = {name.removeprefix("replay."): tensors[name] for name in tensors if name.startswith("replay.")}
        mine = self.sac.tensors()
        shapes = {name: tensor.shape for name, tensor in {**mine, "taken": torch.tensor(0)}.items()}
        if shapes != {name: tensor.shape for name, tensor in tensors.items() if not name.startswith("replay.")}:
            raise ValueError("the critics have other names or shapes")
        self.replay.load(replay)
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])
        self.taken = int(tensors["taken"])

    def seconds(self) -> float:
        every, warm = self.steps, self.settings.warm_up
        self.steps = REHEARSAL * len(self.envs)
        self.taken = warm  # so that it learns from the first step on
        self.practise(lambda: None)  # warms up, and on a GPU records
        began = time.perf_counter()
        self.practise(lambda: None)
        practice = (time.perf_counter() - began) / self.steps
        began = time.perf_counter()
        observation = self.envs.seed(0)
        for _ in range(REHEARSAL):
            self._act(self.encoder.begin(self._tensor(observation)), self._tensor(observation))
            self.envs.step(np.zeros((len(self.envs), self.sizes[1]), np.float32))
        look = (time.perf_counter() - began) / REHEARSAL / len(self.envs)
        return every * practice + self.settings.episodes * self.envs.limit * look

    def close(self) -> None:
        self.envs.close()
        if self.judges is not None:
            self.judges.close()

    def _update(self) -> None:
        settings, replay = self.settings, self.replay
        time, env = replay.draw(self.means.batch_size)
        first = replay.take(time, env)
        if settings.n_step == 1:
            last, end = time, first
            reward, discount = first["reward"][:, 0], settings.gamma * (1 - first["terminated"][:, 0])
        else:
            reward, discount, last = replay.returns(time, env, settings.n_step, settings.gamma)
            end = replay.take(last, env)
        self.sac.update(
            Batch(
                observation=first["observation"],
                action=first["action"],
                reward=reward,
                discount=discount,
                following=end["following"],
                inputs=self.encoder.inputs(replay, time, env, taken=first),
                next_inputs=self.encoder.inputs(replay, last, env, following=True, taken=end),
            )
        )

    @torch.no_grad()
    def _act(self, memory: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """A drawn action (N, A); a uniform one while there is too little to learn from."""
        self._set_training(False)
        moments, memory = self.encoder.step(memory, seen)
        if self.taken < self.settings.warm_up:
            return 2 * torch.rand(len(seen), self.sizes[1], device=seen.device) - 1, memory
        mean, log_std = split(moments)
        return torch.addcmul(mean, log_std.exp(), torch.randn_like(mean)).tanh_(), memory

    @torch.no_grad()
    def _judge(self, part: str, act: object) -> dict[str, float]:
        """Whole episodes, all at once, each from its own start."""
        if self.judges is None:
            self.judges = Environments(self.environment, self.settings.episodes, *self.sizes)
        self._set_training(False)
        observation = self.judges.seed(derive(self.means.seed, "episodes", part))
        running, total = np.ones(len(self.judges), bool), np.zeros(len(self.judges))
        memory = self.encoder.begin(self._tensor(observation))
        while running.any():
            action, memory = act(memory, self._tensor(observation))  # type: ignore[operator]
            step = self.judges.step(action.cpu().numpy(), running)
            total += step.reward
            running, observation = running & ~step.over, step.following
        return {"cost": -float(total.mean()), "return": float(total.mean())}

    def _renewed(self, memory: Tensor, seen: Tensor, fresh: np.ndarray) -> Tensor:
        """The memory, empty where an episode begins."""
        if not fresh.any():
            return memory
        rows = torch.from_numpy(fresh).to(memory.device)
        return torch.where(rows.view(-1, *[1] * (memory.dim() - 1)), self.encoder.begin(seen), memory)

    def _set_training(self, yes: bool) -> None:
        """As `model.train(yes)`, which walks through all modules every time; here this is twice a step."""
        for module in self.modules:
            vars(module)["training"] = yes

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.means.device)
