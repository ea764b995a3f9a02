"""A trained model once more on its test samples: what it answers, and what happens in its layers on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nnarena.core.look import Layer, Look, Staged
from nnarena.engine.prepare import Ready
from nnarena.engine.step import answer


@torch.no_grad()
def look(ready: Ready, weights: Mapping[str, Tensor], batch_size: int, images: int, seed: int) -> Look:
    """What a model answers with these weights, and what its layers make of `images` test samples drawn by `seed`."""
    ready.model.eval()
    data, task, place = ready.parts["test"], ready.task, ready.split.test
    count = len(data)
    followed = np.random.default_rng(seed).permutation(count)[:images]
    is_class = task.spec.target == "class" and not task.spec.per_step
    probabilities = None
    if is_class:
        rows = torch.arange(count, device=data.targets.device).split(batch_size)
        answers = [answer(ready.model, task, weights, data.batch(part)[0]).double().softmax(-1) for part in rows]
        probabilities = torch.cat(answers).cpu().numpy()
    inputs, _ = data.batch(torch.from_numpy(followed).to(data.targets.device))
    return Look(
        classes=task.class_names() if is_class else (),
        inputs=ready.samples.inputs[place],
        white=float(ready.samples.inputs.max()),
        targets=ready.samples.targets[place],
        probabilities=probabilities,
        samples=np.asarray(place),
        followed=followed,
        layers=tuple(staged_layers(ready.model, weights, inputs)),
    )


def staged_layers(model: nn.Module, weights: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> list[Layer]:
    """Every `Staged` layer that is called, in the order of the calls, with what it makes of what it is called with.

    A hook before the layer asks for its stages: inside of it nothing may be called, for kernels do several at once.
    """
    found: list[Layer] = []

    def watch(name: str):
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            assert isinstance(module, Staged)
            stages = module.stages(given[0])._asdict()
            kept = {key: _array(value) for key, value in stages.items() if value is not None}
            arrays = {key: _array(value) for key, value in module.arrays().items()}
            found.append(Layer(name, _array(given[0]), kept, arrays))

        return hook

    layers = [(name, module) for name, module in model.named_modules() if _is_staged(module)]
    handles = [module.register_forward_pre_hook(watch(name)) for name, module in layers]
    try:
        functional_call(model, dict(weights), inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def can_be_looked_into(model: nn.Module) -> bool:
    return any(_is_staged(module) for module in model.modules())


def _is_staged(module: nn.Module) -> bool:
    return isinstance(module, Staged)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy().copy()
