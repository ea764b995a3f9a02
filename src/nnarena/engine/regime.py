"""Noise and softer labels in training, all of it a function of seed, epoch and step: nothing to store.

B samples, S members, C classes. With t the label and p the prediction of a sample:

    L = (1 − ε) loss(p, t) − ε/C Σ_c log p_c      label_smoothing = ε
    x ← x + σ z                                   input_noise = σ, z normal, other numbers for every sample and epoch
    g = ∇loss at w + σ z, applied at w            weight_noise = σ, z normal, other numbers at every step

Validation and test never see any of it. A member of a population gets the numbers that it would get alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nnarena.core.errors import ArenaError, Unfit
from nnarena.core.noise import normal
from nnarena.core.task import Loss, Task
from nnarena.core.trial import Trial
from nnarena.engine.hold import is_weight

# What a key is changed by, so that noise on inputs or weights is no copy of the numbers that a task's own changes get.
INPUTS, WEIGHTS = 0x5A17_C0DE_1234_5678, 0x3B2E_77F1_9ABC_DEF0
OF_SAMPLES = ("input_noise", "weight_noise", "label_smoothing", "label_noise", "bagging", "watch_training")
OF_SAMPLES += ("same_data",)


@dataclass(frozen=True)
class Regime:
    """How a batch is learned from, where it is not in the plain way."""

    label_smoothing: float = 0.0
    weight_noise: float = 0.0

    def loss_of(self, task: Task) -> Loss | None:
        """What is learned in the place of the task's own loss, if anything is."""
        share = self.label_smoothing

        def smooth(prediction: Tensor, target: Tensor) -> Tensor:
            return (1 - share) * task.loss(prediction, target) - share * torch.log_softmax(prediction, -1).mean()

        return smooth if share else None

    def shaken(
        self, params: Mapping[str, Tensor], keys_S: Tensor, step: Tensor, population_dims: int = 0
    ) -> dict[str, Tensor]:
        """Those weights that get noise, with it. `step` (1,) counts the steps of an epoch; `keys_S` are the epoch's."""
        if not self.weight_noise:
            return {}
        found, count = {}, len(params)
        for place, (name, param) in enumerate(params.items()):
            if is_weight(param, population_dims):
                index_S = (step * count + place).expand(len(keys_S))
                noise = normal(keys_S ^ WEIGHTS, index_S, param.numel() // len(keys_S))
                found[name] = param + self.weight_noise * noise.view(param.shape).to(param.dtype)
        return found


def regime_of(trial: Trial) -> Regime:
    asked = trial.common("model")
    return Regime(
        label_smoothing=asked.get("label_smoothing", 0.0),
        weight_noise=asked.get("weight_noise", 0.0),
    )


def check_regime(trial: Trial, task: Task) -> None:
    """Raise Unfit where something is asked for that the task has no use for."""
    asked = {name: getattr(trial.protocol, name) for name in OF_SAMPLES} | trial.common("model")
    if task.practises:
        idle = [name for name in OF_SAMPLES if asked[name]]
        if idle:
            raise Unfit(f"{trial.task.label} has no samples, its model learns from what it does: leave {idle[0]} out.")
    if task.spec.target != "class":
        for name in ("label_smoothing", "label_noise"):
            if asked[name]:
                raise Unfit(f"{name} is for classes, and {trial.task.label} asks for {task.spec.target}.")
    if task.spec.vocabulary and asked["input_noise"]:
        raise Unfit(f"input_noise is for inputs that are numbers, and {trial.task.label} gives tokens.")


def shaken_inputs(inputs: tuple[Tensor, ...], index_B: Tensor, key: Tensor, size: float) -> tuple[Tensor, ...]:
    """A batch whose first input, the samples themselves, has normal noise."""
    x = inputs[0]
    if not x.is_floating_point():
        raise ArenaError("input_noise is for inputs that are numbers, and this task gives symbols.")
    noise = normal(key ^ INPUTS, index_B, x[0].numel()).view(x.shape).to(x.dtype)
    return x + size * noise, *inputs[1:]


def wrong_labels(
    targets: np.ndarray, train: np.ndarray, share: float, classes: int, rng: np.random.Generator
) -> np.ndarray:
    """A copy of all targets in which so large a share of those of `train` is another class, each as likely."""
    changed = targets[train]
    flat = changed.reshape(-1)  # a view: `changed` is a copy already
    which = rng.choice(flat.size, round(share * flat.size), replace=False)
    flat[which] = (flat[which] + rng.integers(1, classes, len(which))) % classes
    targets = targets.copy()
    targets[train] = changed
    return targets
