"""The protocol: how every trial of a study is trained. Its defaults are those of the published arena."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Literal

from nnarena.core.common import check_common
from nnarena.core.components import Component, catalogue, option_docs
from nnarena.core.errors import BadOption
from nnarena.core.options import Option, Value, render, resolve

# Settings that came after the first stores were made.
LATER = ("schedule", "milestones", "step_factor", "select", "watch_test", "watch_gradient", "precision", "init")
LATER += ("lr_decay", "warmup", "clip_norm", "clip_value", "l1", "l2", "dropout", "input_noise", "weight_noise")
LATER += ("label_smoothing", "label_noise", "bagging", "same_data", "watch_training", "full_batch")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How every trial of a study is trained; `--set name=value` sets any of these, and all are part of its identity.

    Options:
        epochs: epochs at most
        batch_size: samples a step; splits are cut to whole batches, but for a test set that its publisher set aside
        full_batch: every step sees all training samples, so that an epoch is one step: gradient descent proper; splits
            are cut to whole batches of batch_size all the same, and looked at in these
        samples: samples at most, for every task of the study; none leaves it to the task
        lr: learning rate for every optimizer of the study; none leaves it to the optimizer
        test_fraction: share of the samples that is kept for the test
        validation_fraction: share of the samples that selects the model
        stop_patience: epochs without progress after which training ends
        plateau_patience: epochs without progress after which the learning rate falls
        plateau_factor: what the learning rate is multiplied by on a plateau
        min_delta: how much lower the validation loss must be to count as progress
        schedule: plateau lowers the learning rate where there is no progress, steps after the milestones; exponential
            multiplies it by lr_decay after every epoch, cosine lets it fall to 0 along half a wave over all epochs
        milestones: epochs after which the learning rate falls, as in (81,122), with schedule=steps
        step_factor: what the learning rate is multiplied by at a milestone
        lr_decay: what the learning rate is multiplied by after every epoch, with schedule=exponential
        warmup: epochs over which the learning rate rises to its full value, in equal steps, before any schedule
        clip_norm: how long the gradient of a model may be at most, all its tensors as one vector; none does not clip
        clip_value: how far from 0 each number of the gradient may be at most; none does not clip
        select: which weights are tested, best by validation or last, those of the last epoch
        watch_test: record the test metrics of every epoch, by which nothing is chosen
        watch_gradient: record the mean gradient of the first layer's weights and the length of every weight's, over the
            steps of an epoch, and in the result how the last epoch went
        precision: of products and convolutions, float32; or on a GPU tf32 (10 bits of 23, torch's own for convolutions)
            or bf16 (7 bits); weights and loss stay float32
        init: start values of the weight matrices of all models, as in he; none leaves them to the model
        l1: adds λ Σ|w| of all weights, tensors of two or more dimensions, to what is learned (not to the losses shown)
        l2: adds λ/2 Σ w² of all weights likewise; decay apart from the gradient is an optimizer's, as adamw's
        dropout: share of the units that a model leaves out at every step of training, where it has such an option
        input_noise: standard deviation of normal noise on the inputs, another for every sample and epoch of training
        weight_noise: standard deviation of normal noise on all weights while a gradient is computed, another every step
        label_smoothing: share of a label that is spread evenly over all classes in training
        label_noise: share of the training labels that are wrong: other classes, by the seed, the same in all epochs
        bagging: every seed trains on as many samples as there are, drawn from them with replacement
        same_data: all seeds have the data and the split of the first, so that they differ by start, order and bagging
        watch_training: record the metrics of the tested weights on the training samples, as `training`
        timeout: seconds a trial may take; none has no limit
        threads: CPU threads a trial computes with
    """

    epochs: int = 128
    batch_size: int = 128
    full_batch: bool | None = None
    samples: int | None = None
    lr: float | None = None
    test_fraction: float = 0.1
    validation_fraction: float = 0.1
    stop_patience: int = 5
    plateau_patience: int = 2
    plateau_factor: float = 0.1
    min_delta: float = 1e-4
    schedule: Literal["plateau", "steps", "exponential", "cosine"] = "plateau"
    milestones: tuple[int, ...] = ()
    step_factor: float = 0.1
    lr_decay: float = 0.95
    warmup: int = 0
    clip_norm: float | None = None
    clip_value: float | None = None
    select: Literal["best", "last"] = "best"
    watch_test: bool = False
    watch_gradient: bool = False
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    init: str | None = None
    l1: float | None = None
    l2: float | None = None
    dropout: float | None = None
    input_noise: float | None = None
    weight_noise: float | None = None
    label_smoothing: float | None = None
    label_noise: float | None = None
    bagging: bool = False
    same_data: bool = False
    watch_training: bool = False
    timeout: float | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        check_common(vars(self))
        positive = (
            "epochs",
            "batch_size",
            "samples",
            "lr",
            "timeout",
            "threads",
            "stop_patience",
            "plateau_patience",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadOption(f"{name} must be above 0, not {value}.")
        for name in ("test_fraction", "validation_fraction", "plateau_factor", "step_factor", "lr_decay"):
            if not 0 < getattr(self, name) < 1:
                raise BadOption(f"{name} must lie between 0 and 1, not {getattr(self, name)}.")
        if self.test_fraction + self.validation_fraction >= 1:
            raise BadOption("test_fraction and validation_fraction leave nothing to train on.")
        if not 0 <= self.warmup < self.epochs:
            raise BadOption(f"warmup must be fewer epochs than all, which are {self.epochs}, not {self.warmup}.")
        if self.lr_decay != 0.95 and self.schedule != "exponential":
            raise BadOption("lr_decay belongs to schedule=exponential.")
        if not self.min_delta >= 0:
            raise BadOption(f"min_delta must not be negative, not {self.min_delta}.")
        if any(late <= early for early, late in pairwise((0, *self.milestones))):
            raise BadOption(f"milestones must be epochs that grow, as in (81,122), not {render(self.milestones)}.")
        if bool(self.milestones) != (self.schedule == "steps"):
            raise BadOption(
                "schedule=steps and milestones belong together, as in schedule=steps and milestones=(81,122)."
            )

    @classmethod
    def options(cls) -> list[Option]:
        docs = option_docs(inspect.getdoc(cls) or "")
        return [Option(item.name, str(item.type), item.default, doc=docs[item.name]) for item in fields(cls)]

    @classmethod
    def of(cls, settings: Mapping[str, Value]) -> Protocol:
        """The default protocol with `settings` applied, each checked."""
        known = cls.options()
        for name in settings:
            if all(option.name != name for option in known) and (owner := _owner(name)):
                where = f"{owner.name}[{name}={render(settings[name])}]"
                raise BadOption(f"the protocol has no option {name!r}: who has it takes it in brackets, as in {where}.")
        return cls(**resolve("the protocol", known, settings))

    def settings(self) -> dict[str, Value]:
        """What differs from the published protocol."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}

    def as_dict(self) -> dict[str, Value]:
        return asdict(self)

    def identity(self) -> dict[str, Value]:
        """What a trial's identity is made of. One of `LATER` counts only where it is set: older trials keep theirs."""
        changed = self.settings()
        return {name: value for name, value in self.as_dict().items() if name not in LATER or name in changed}


PUBLISHED = Protocol()


def _owner(option: str) -> Component | None:
    """The first model, optimizer or task that has such an option of its own."""
    everything = [*catalogue("model").values(), *catalogue("optimizer").values(), *catalogue("task").values()]
    return next((part for part in everything if any(item.name == option for item in part.options)), None)
