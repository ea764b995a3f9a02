"""The base class of tasks: data, loss and metrics; says what goes in and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nnarena.core.spec import BEGIN, END, PADDING, SPECIAL, Samples, TaskSpec
from nnarena.core.tokens import token_hits, token_loss

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from nnarena.core.learner import Learner, Means

Loss = Callable[[Tensor, Tensor], Tensor]


class Task:
    """Subclass it, set `self.spec` in `__init__`, and write `samples`.

    Keyword-only arguments of `__init__` are the task's options. The loss follows from the specification: mean
    squared error for values, cross entropy for classes and tokens; override `loss` and `score` for anything else.
    """

    spec: TaskSpec
    noise: int = 0  # random numbers that `present` takes for every sample in training
    practises: bool = False  # whether the model learns from what it does, by `learner`, and not from samples
    answers: bool = False  # whether a trained model can be asked by a person, by `Learner.ask`

    def check(self) -> None:
        """Raise DataError if something is missing to make the samples; asked before a study starts."""

    def samples(self, rng: np.random.Generator) -> Samples:
        """All data, before the split. Every random choice comes from `rng`."""
        raise NotImplementedError

    def learner(self, model: nn.Module, optimizer: Optimizer, means: Means) -> Learner:
        """Who trains the model, in place of samples, if the task `practises`; `optimizer` is that of the model."""
        raise NotImplementedError

    def present(self, inputs: tuple[Tensor, ...], noise: Tensor | None) -> tuple[Tensor, ...]:
        """What the model is called with, of a batch as it lies on the device: bytes become numbers, images shift.

        `noise` (B, self.noise) is uniform between 0 and 1 in training, another one for every sample and epoch but
        the same for all rivals; it is None in validation and test. A sample must not depend on its neighbours, and
        no number may travel between host and device.
        """
        return inputs

    def answer(self, model: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        """The prediction that validation and test look at; a task may ask several times and average."""
        return model(*inputs)

    def class_names(self) -> tuple[str, ...]:
        """What the classes are called in pictures and tables: their numbers, where they have no names."""
        return tuple(map(str, range(self.spec.output_size))) if self.spec.target == "class" else ()

    def teach(
        self, model: Callable[..., Any], inputs: tuple[Tensor, ...], target: Tensor, loss_of: Loss | None = None
    ) -> Tensor:
        """The loss of a batch in training, by `loss_of` in the place of `loss` if it is given.

        A model that writes tokens is handed the target, to be told what it should have written before each step; with
        its logits it may return more that is to be lowered. Others see their inputs only.
        """
        loss_of = loss_of or self.loss
        if self.spec.target != "tokens":
            return loss_of(model(*inputs), target)
        told = model(*inputs, target)
        logits, *more = told if isinstance(told, tuple) else (told,)
        return loss_of(logits, target) + sum(more)

    def judge(
        self,
        model: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        target: Tensor,
        see: Callable[[Tensor], None] = lambda prediction: None,
    ) -> dict[str, Tensor]:
        """The metrics of a batch in validation and test; `see` is shown what the model answers.

        The loss of a model that writes tokens is that of each token after the right ones, a likelihood; all else is
        counted on what it writes by itself, from the source alone.
        """
        answer = self.answer(model, inputs)
        see(answer)
        said = self.score(answer, target)
        if self.spec.target != "tokens":
            return said
        told = self.score(model(*inputs, target), target)
        loss = next(iter(told))
        return said | {loss: told[loss]}

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """What training and model selection lower: the mean over a batch."""
        if self.spec.target == "tokens":
            return token_loss(prediction, target)
        if self.spec.target == "class":
            return F.cross_entropy(prediction, target)
        return F.mse_loss(prediction, target)

    def score(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Means over a batch, the loss first. The last one ranks the leaderboard."""
        loss = self.loss(prediction, target)
        if self.spec.target == "tokens":
            return {"cross_entropy": loss, **token_hits(prediction, target)}
        if self.spec.target == "class":
            hit = (prediction.argmax(-1) == target).to(prediction.dtype)
            return {"cross_entropy": loss, "accuracy": hit.mean()}
        return {"mse": loss}

    def word(self, token: int, written: bool) -> str:
        """How a person would read a token, of a source or of what is written."""
        return {PADDING: "", BEGIN: "^", END: "■"}.get(token, str(token - SPECIAL))

    def baselines(self, train: Samples, test: Samples) -> dict[str, dict[str, float]]:
        """What one gets on `test` without a model: the mean, the majority class or token, the last frame."""
        guesses = dict(trivial_guesses(self.spec, train, test))
        targets = torch.from_numpy(test.targets)
        return {
            name: {metric: float(value) for metric, value in self.score(guess, targets).items()}
            for name, guess in guesses.items()
        }


def trivial_guesses(spec: TaskSpec, train: Samples, test: Samples) -> list[tuple[str, Tensor]]:
    """Named predictions for `test` that need no learning beyond counting."""
    if spec.target == "tokens":
        # Likewise the best constant answer, by place; padding is not counted.
        counts = np.stack([np.bincount(place, minlength=spec.output_size) for place in train.targets.T])
        counts[:, PADDING] = 0
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        logits = torch.from_numpy(np.log(np.maximum(share, 1e-12))).float()
        return [("majority token", logits.expand(len(test), -1, -1))]
    if spec.target == "class":
        # The best constant answer in both metrics: the log of the class frequencies.
        share = np.bincount(train.targets, minlength=spec.output_size) / len(train)
        logits = torch.from_numpy(np.log(np.maximum(share, 1e-12))).float()
        return [("majority class", logits.expand(len(test), -1))]
    mean = torch.from_numpy(train.targets.mean(axis=0, dtype=np.float64)).float()
    guesses = [("mean", mean.expand(len(test), *mean.shape))]
    if not spec.per_step and test.inputs.shape[-1] == spec.output_size:
        guesses.append(("last frame", torch.from_numpy(test.inputs[:, -1])))
    return guesses
