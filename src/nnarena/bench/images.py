"""Images a second of a training loop: ours beside a plain one with torchvision's transforms and torch's DataLoader.

Both train the same network with AdamW on random images of CIFAR-10's size, batches of 128, cropped and mirrored at
random: what the images show changes no time. The plain loop is what most people write: pictures are changed one by one
in as many processes as there are cores. Ours keeps bytes on the device and changes whole batches there.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset

from nnarena.api import make_study
from nnarena.core.components import catalogue
from nnarena.core.errors import BadOption, UnknownName
from nnarena.engine.device import cores, synchronise
from nnarena.engine.fit import seconds_per_step

BATCH, SIDE, CLASSES = 128, 32, 10
TASK = "cifar10[augment=pad_crop+flip]"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
STEPS = {"cuda": 200, "cpu": 4}
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A way to train: its images a second, all seeds together, and how many times those of the plain loop that is."""

    way: str
    seeds: int
    images_per_second: float
    ratio: float


def choose(name: str) -> str:
    known = [model for model, component in catalogue("model").items() if component.reads == "images"]
    if name not in known:
        raise UnknownName("model of images", name, known)
    if importlib.util.find_spec("torchvision") is None:
        raise BadOption("Models of images are torchvision's: pip install 'nnarena[images]'.")
    return name


def compare(model: str, device: torch.device, seeds: int, tell: Tell) -> Iterator[Row]:
    """The plain loop, then ours: alone, and so many seeds at once.

    On a GPU in float32, in tf32, which is what torch takes for the convolutions of the plain loop, and in bf16.
    """
    steps = STEPS[device.type]
    tell("a plain loop")
    plain = BATCH / plain_loop(model, device, steps)
    yield Row(way="plain loop", seeds=1, images_per_second=plain, ratio=1.0)
    for precision in ("float32", "tf32", "bf16")[: 3 if device.type == "cuda" else 1]:
        for count in dict.fromkeys((1, seeds)):
            way = "ours" if precision == "float32" else f"ours, {precision}"
            tell(f"{way}, {count} at once")
            speed = BATCH * count / our_loop(model, device, steps, count, precision)
            yield Row(way=way, seeds=count, images_per_second=speed, ratio=speed / plain)


def our_loop(model: str, device: torch.device, steps: int, seeds: int, precision: str) -> float:
    """Seconds of a step of the engine, all seeds as one."""
    settings = {"batch_size": BATCH, "precision": precision, "threads": cores()}
    study = make_study(None, [TASK], [model], ["adamw"], seeds=seeds, settings=settings)
    return seconds_per_step(study.trials(), device, steps)


def plain_loop(model: str, device: torch.device, steps: int) -> float:
    """Seconds of a step of the loop that most people write."""
    import torchvision
    from torchvision.transforms import v2

    change = v2.Compose(
        [
            v2.ToPILImage(),
            v2.RandomCrop(SIDE, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    pictures = Pictures(BATCH * min(steps, 50), change)
    loader = DataLoader(
        pictures, BATCH, shuffle=True, num_workers=cores(), pin_memory=device.type == "cuda", persistent_workers=True
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    net = getattr(torchvision.models, model)(num_classes=CLASSES).to(device)
    optimizer = AdamW(net.parameters())
    warm_up = max(2, steps // 10)
    for number, (images, labels) in enumerate(batches):
        if number == warm_up:
            synchronise(device)
            began = time.perf_counter()
        if number == warm_up + steps:
            break
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    synchronise(device)
    return (time.perf_counter() - began) / steps


class Pictures(Dataset):
    """Random pictures and labels, one by one."""

    def __init__(self, count: int, change: Callable[[np.ndarray], torch.Tensor]) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        self.labels = rng.integers(0, CLASSES, count)
        self.change = change

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.change(self.images[index]), int(self.labels[index])
