"""What `nnarena look` saw, as plain data: figures for scripts, and pictures for the pages.

    {"format", "figures": {…}, "pictures": {"kind", "mistakes": […], "learned": […], "followed": […]}}

The whole of it is `look.json` of a trial; `figures` is what `--json` prints. A picture is a PNG in base 64. Pictures
come in rows that share one scale, one picture of each head or one of the layer:

    {"stage", "pictures", "scale": {"kind", "low", "high", "log"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnarena.core.look import Layer, Look
from nnarena.core.trial import Trial
from nnarena.report.panels import Kind, as_dict, image_png, map_png, scale_of
from nnarena.stats.confusion import confusion, most_confused

FORMAT = 1
MISTAKES_SHOWN = 48
LIKELY = 3  # classes whose probability is told of a sample that is followed
# How stages are shown; what has another name is on both sides of zero.
KINDS: dict[str, Kind] = {"input": "grey", "rows": "heat", "columns": "heat", "relevance": "heat", "output": "grey"}
PER_HEAD = ("rows", "columns", "relevance", "attended")


def seen(look: Look, trial: Trial, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Figures and pictures of what was seen of a trial; `name` is that of its folder."""
    figures = {
        **{kind: getattr(trial, kind).label for kind in ("task", "model", "optimizer")},
        **{"study": trial.study, "trial": name, "seed": trial.seed},
        **{key: result.get(key) for key in ("status", "parameters", "epochs", "best_epoch", "test")},
        "test_samples": len(look.targets),
        "followed": [int(number) for number in look.samples[look.followed]],
        **_answers(look),
    }
    wrong = [int(place) for place in _wrong(look)[:MISTAKES_SHOWN]]
    pictures = {
        "kind": "image" if look.inputs.ndim == 4 else "sequence",
        "mistakes": [_input_png(look, place) for place in wrong],
        "learned": [_learned(layer) for layer in look.layers],
        "followed": [_followed(look, row, int(place)) for row, place in enumerate(look.followed)],
    }
    return {"format": FORMAT, "figures": figures, "pictures": pictures}


def _answers(look: Look) -> dict[str, Any]:
    """Accuracy, by class too, the confusion matrix, and every mistake; nothing where there are no classes."""
    if look.probabilities is None:
        return {"classes": [], "accuracy": None, "per_class": [], "confusion": [], "most_confused": [], "mistakes": []}
    names, answers = look.classes, look.probabilities.argmax(1)
    counts = confusion(look.targets, answers, len(names))
    right, total = counts.diagonal(), counts.sum(1)
    return {
        "classes": list(names),
        "accuracy": float((answers == look.targets).mean()),
        "per_class": [
            {"class": name, "samples": int(n), "right": int(hits), "accuracy": hits / n if n else None}
            for name, n, hits in zip(names, total.tolist(), right.tolist(), strict=True)
        ],
        "confusion": counts.tolist(),
        "most_confused": [
            {"true": names[i], "answered": names[j], "count": count} for i, j, count in most_confused(counts, 10)
        ],
        "mistakes": [
            {
                "sample": int(look.samples[place]),
                "true": names[look.targets[place]],
                "answered": names[answers[place]],
                "confidence": float(look.probabilities[place].max()),
                "probability_of_true": float(look.probabilities[place, look.targets[place]]),
            }
            for place in _wrong(look)
        ],
    }


def _wrong(look: Look) -> np.ndarray:
    """Places of the samples that were answered wrongly, the most confident answer first."""
    if look.probabilities is None:
        return np.array([], np.int64)
    wrong = np.flatnonzero(look.probabilities.argmax(1) != look.targets)
    return wrong[np.argsort(-look.probabilities[wrong].max(1), kind="stable")]


def _input_png(look: Look, place: int) -> str:
    values = look.inputs[place]
    if values.ndim == 3:
        return image_png(values, look.white)
    maps = _maps(values)
    return map_png(maps, scale_of("heat", maps))


def _followed(look: Look, row: int, place: int) -> dict[str, Any]:
    """One sample: what it is, what was answered, and what every layer makes of it."""
    about: dict[str, Any] = {"sample": int(look.samples[place]), "picture": _input_png(look, place)}
    about["shape"] = _maps(look.inputs[place]).shape[1:]
    if look.probabilities is not None:
        chances = look.probabilities[place]
        about["true"] = look.classes[look.targets[place]]
        about["likely"] = [
            {"class": look.classes[k], "probability": float(chances[k])} for k in np.argsort(-chances)[:LIKELY]
        ]
    return about | {"layers": [_story(layer, row) for layer in look.layers]}


def _learned(layer: Layer) -> dict[str, Any]:
    rows = []
    for name, arrays in layer.arrays.items():
        scale = scale_of("signed", arrays)
        maps = [_maps(array) for array in arrays]
        rows.append({"stage": name, "pictures": [map_png(one, scale) for one in maps], "scale": as_dict(scale)})
    return {"name": layer.name, "rows": rows}


def _story(layer: Layer, row: int) -> dict[str, Any]:
    """What a layer makes of one sample, stage by stage, each with a scale of its own that its heads share.

    A layer without a skip adds nothing, and its sum is left out.
    """
    shape = layer.inputs.shape[1:]
    stages = dict(layer.stages)
    if "summed" in stages and np.array_equal(stages["summed"], stages["convolved"]):
        del stages["summed"]
    lines = []
    for name, values in {"input": layer.inputs, **stages}.items():
        one = values[row]
        each = one.reshape(-1, *shape) if name in PER_HEAD else one[None]
        scale = scale_of(KINDS.get(name, "signed"), one)
        pictures = [map_png(_maps(part), scale) for part in each]
        lines.append({"stage": name, "pictures": pictures, "scale": as_dict(scale)})
    return {"name": layer.name, "shape": _maps(layer.inputs[row]).shape, "rows": lines}


def _maps(values: np.ndarray) -> np.ndarray:
    """(C, H, W) to be drawn: an image as it is; of a sequence (T, F) time goes to the right, features downwards."""
    return values if values.ndim == 3 else values.T[None]
