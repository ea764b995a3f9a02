"""What a trained model looks at, for the report.

B samples, T steps of the source, L steps of what is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nnarena.core.spec import END, PADDING
from nnarena.core.task import Task
from nnarena.engine.step import Data

SHOWN = 3  # samples


class _Look(nn.Module):
    """A model called by its `attention_map`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> Any:
        return self.model.attention_map(source)  # type: ignore[operator]


@torch.no_grad()
def attention_maps(model: nn.Module, task: Task, weights: Mapping[str, Tensor], data: Data) -> list[dict[str, Any]]:
    """Of the first test samples: source, target and what was written, in words, and the weights of every word.

    A model has something to show if it has `attention_map(source)`, which gives tokens (B, L) and weights (B, L, T).
    One that attends in several places says by `attention_of` which of them it shows.
    """
    if not hasattr(model, "attention_map"):
        return []
    inputs, targets = data.batch(torch.arange(min(SHOWN, len(data)), device=data.targets.device))
    own = {f"model.{name}": tensor for name, tensor in weights.items()}
    found = functional_call(_Look(model.eval()), own, inputs)
    if found is None:
        return []
    parts = (inputs[0], targets, *found)
    return [_one(task, *rows) for rows in zip(*(part.cpu().tolist() for part in parts), strict=True)]


def _one(
    task: Task, source: list[int], target: list[int], said: list[int], weights: list[list[float]]
) -> dict[str, Any]:
    steps = [place for place, token in enumerate(source) if token != PADDING]
    end = said.index(END) + 1 if END in said else len(said)
    return {
        "source": [task.word(source[place], written=False) for place in steps],
        "target": [task.word(token, written=True) for token in target if token != PADDING],
        "written": [task.word(token, written=True) for token in said[:end]],
        "weights": [[round(row[place], 3) for place in steps] for row in weights[:end]],
    }
