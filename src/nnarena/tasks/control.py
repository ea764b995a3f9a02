"""Control: an agent learns to move by soft actor-critic, and the competitor is what its actor sees with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnarena.core.components import task
from nnarena.core.errors import ArenaError
from nnarena.core.learner import Learner, Means
from nnarena.core.spec import TaskSpec
from nnarena.core.task import Task
from nnarena.rl.agent import Agent, Settings
from nnarena.rl.envs import check_installed, make_one

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Control(Task):
    """An environment of Gymnasium with continuous actions. A subclass names it and its sizes.

    The model reads the last frames (frames, observations) and answers with the mean and the log deviation of every
    action (2 × actions), which tanh squashes to the bounds of the environment. Two critics (256, 256), the same for all
    competitors, judge the current observation and action. An epoch is so many steps of the environment, with one
    update after each; episodes that run when it ends are cut there. The metric is the mean return of episodes apart
    from training; `cost` is its negative. The protocol's batch_size is that of an update; early stopping and plateaus
    do not apply.

    Options:
        steps: steps of the environment an epoch
        frames: how many of the last observations the model sees
        envs: environments side by side
        warm_up: steps with uniform actions before the first update
        buffer: transitions that replay keeps
        n_step: rewards that are summed before a critic is asked
        gamma: discount γ
        tau: how far the target critics follow in an update
        critic_size: units of the critics' two hidden layers
        episodes: episodes of a validation, and of the test
        carry: recurrent models carry their state through an episode; replay keeps it
        burn_in: first frames of a window that bring a carried state up to date, without gradient
    """

    practises = True
    environment: str
    observations: int
    actions: int
    packages: tuple[str, ...] = ("gymnasium", "mujoco")

    def __init__(
        self,
        *,
        steps: int = 1000,
        frames: int = 5,
        envs: int = 1,
        warm_up: int = 100,
        buffer: int = 100_000,
        n_step: int = 1,
        gamma: float = 0.99,
        tau: float = 0.005,
        critic_size: int = 256,
        episodes: int = 10,
        carry: bool = False,
        burn_in: int = 0,
    ) -> None:
        self.settings = Settings(
            steps=steps,
            frames=frames,
            envs=envs,
            warm_up=warm_up,
            buffer=buffer,
            n_step=n_step,
            gamma=gamma,
            tau=tau,
            critic_size=critic_size,
            episodes=episodes,
            carry=carry,
            burn_in=burn_in,
        )
        self.spec = TaskSpec(input_shape=(frames, self.observations), output_size=2 * self.actions, target="values")

    def check(self) -> None:
        check_installed(*self.packages)
        env = make_one(self.environment)
        found = env.observation_space.shape[0], env.action_space.shape[0]
        env.close()
        if found != (self.observations, self.actions):
            raise ArenaError(
                f"{self.environment} has {found[0]} observations and {found[1]} actions, "
                f"not {self.observations} and {self.actions}."
            )

    def learner(self, model: nn.Module, optimizer: Optimizer, means: Means) -> Learner:
        return Agent(self.environment, self.observations, self.actions, self.settings, model, optimizer, means)


@task("halfcheetah", reference="Wawrzyński 2009; Gymnasium's HalfCheetah-v5 (Towers et al. 2024)")
class HalfCheetah(Control):
    """Run as fast as two legs can: HalfCheetah-v5, 17 observations, 6 joints, episodes of 1000 steps."""

    environment, observations, actions = "HalfCheetah-v5", 17, 6


@task("walker2d", reference="Erez et al. 2011; Gymnasium's Walker2d-v5 (Towers et al. 2024)")
class Walker2d(Control):
    """Walk without falling: Walker2d-v5, 17 observations, 6 joints, at most 1000 steps."""

    environment, observations, actions = "Walker2d-v5", 17, 6


@task("hopper", reference="Erez et al. 2011; Gymnasium's Hopper-v5 (Towers et al. 2024)")
class Hopper(Control):
    """Hop on one leg without falling: Hopper-v5, 11 observations, 3 joints, at most 1000 steps."""

    environment, observations, actions = "Hopper-v5", 11, 3


@task("pendulum", reference="Gymnasium's Pendulum-v1 (Towers et al. 2024)")
class Pendulum(Control):
    """Swing a pendulum up and keep it there: Pendulum-v1, 3 observations, 1 torque, episodes of 200 steps."""

    environment, observations, actions = "Pendulum-v1", 3, 1
    packages = ("gymnasium",)
