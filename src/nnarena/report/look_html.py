"""What `nnarena look` saw, as pieces of HTML: a confusion matrix, mistakes, what was learned, and a sample's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from nnarena.report.numbers import number, whole
from nnarena.report.panels import Kind, Scale, gradient, map_png
from nnarena.stats.confusion import shares

SIDE = 84  # pixels on the screen that a small picture has at least
TABLE = 20  # classes of which a table can be read; of more there is a picture

# What stages are called and what they mean; {row} and {column} are the directions of the two softmaxes.
STAGES = {
    "input": ("I", "What comes in."),
    "rows": ("X = softmax(I ⊙ Wx)", "Each {row} sums to 1: what counts most in its {row}?"),
    "columns": ("Y = softmax(I ⊙ Wy)", "Each {column} sums to 1: what counts most in its {column}?"),
    "relevance": ("R = X ⊙ Y", "High only where a {place} counts both in its {row} and in its {column}."),
    "attended": (
        "A = norm(R) ⊙ I",
        "The input, weighted by its relevance: what each head hands to the convolution.",
    ),
    "convolved": ("conv(A)", "After the convolution: it mixes all heads back into one {whole}."),
    "summed": ("conv(A) + I", "The input is added again (the skip), so that nothing is lost. Blue is below zero."),
    "normed": ("norm(…)", "After the batch norm."),
    "output": ("O = relu(…)", "What was below zero is now zero. This goes on to what comes next."),
    "weight_x": ("Wx", "Multiplies the input before the softmax over each {row}."),
    "weight_y": ("Wy", "Multiplies the input before the softmax over each {column}."),
    "bias_x": ("bx", "Is added before the softmax over each {row}."),
    "bias_y": ("by", "Is added before the softmax over each {column}."),
}
WORDS = {
    "image": {"row": "row", "column": "column", "place": "pixel", "whole": "image"},
    "sequence": {"row": "step", "column": "feature", "place": "number", "whole": "sequence"},
}


def picture(png: str, shape: Sequence[int], label: str, side: int = SIDE) -> str:
    """An image of `shape` (height, width), its pixels enlarged by a whole number where they are few."""
    height, width = shape
    factor = max(1, round(side / max(height, width)))
    return (
        f'<img src="data:image/png;base64,{png}" width="{width * factor}" height="{height * factor}" '
        f'alt="{escape(label)}" title="{escape(label)}">'
    )


def scale_bar(scale: Mapping[str, Any]) -> str:
    kind: Kind = scale["kind"]
    low = f"{'≤ ' if scale.get('log') else ''}{number(scale['low'])}"
    log = " (log)" if scale.get("log") else ""
    return (
        f'<span class="bar"><i>{low}</i><b style="background:{gradient(kind)}"></b>'
        f"<i>{number(scale['high'])}{log}</i></span>"
    )


def rows_html(rows: Sequence[Mapping[str, Any]], shape: Sequence[int], kind: str) -> str:
    """Stages one below the other: what they are at the left, their pictures at the right."""
    channels, height, width = shape
    drawn = (height, channels * width + channels - 1)
    side = SIDE if channels == 1 else 2 * SIDE
    lines = []
    for row in rows:
        symbol, about = STAGES.get(row["stage"], (row["stage"], ""))
        about = about.format(**WORDS[kind])
        several = len(row["pictures"]) > 1
        shown = "".join(
            f"<figure>{picture(png, drawn, f'{symbol}, head {place}' if several else symbol, side)}"
            + (f"<figcaption>head {place}</figcaption></figure>" if several else "</figure>")
            for place, png in enumerate(row["pictures"], 1)
        )
        lines.append(
            f'<div class="stage" data-stage="{escape(row["stage"])}"><div class="what"><b>{escape(symbol)}</b>'
            f'<p>{escape(about)}</p>{scale_bar(row["scale"])}</div><div class="maps">{shown}</div></div>'
        )
    return f'<div class="stages">{"".join(lines)}</div>'


def learned_html(layers: Sequence[Mapping[str, Any]], shapes: Sequence[Sequence[int]], kind: str) -> str:
    return "".join(
        f"<h3>Layer {place}</h3>{rows_html(layer['rows'], shape, kind)}"
        for place, (layer, shape) in enumerate(zip(layers, shapes, strict=True), 1)
    )


def followed_html(sample: Mapping[str, Any], kind: str, opened: bool) -> str:
    """One sample on its way through the layers, to be unfolded."""
    likely = sample.get("likely", [])
    title = f"sample {sample['sample']}"
    if likely:
        answered = likely[0]["class"]
        kind_, text = ("good", "right") if answered == sample["true"] else ("bad", f"taken for {answered}")
        badge = f'<span class="badge {kind_}">{escape(text)}</span>'
        title = f"{escape(sample['true'])} {badge}"
    bars = "".join(chance_html(item["class"], item["probability"], item["class"] == sample["true"]) for item in likely)
    layers = "".join(
        f"<h3>Layer {place}</h3>{rows_html(layer['rows'], layer['shape'], kind)}"
        for place, layer in enumerate(sample["layers"], 1)
    )
    image = picture(sample["picture"], sample["shape"], _name(sample), 96)
    head = (
        f'{image}<span class="title"><b>{title}</b><span class="chances">{bars}</span></span>'
        f'<span class="number">sample {sample["sample"]}</span>'
    )
    if not layers:
        return f'<div class="sample">{head}</div>'
    return f'<details class="sample"{" open" if opened else ""}><summary>{head}</summary>{layers}</details>'


def chance_html(name: str, share: float, right: bool) -> str:
    kind = "good" if right else "other"
    return (
        f'<span class="chance {kind}"><span>{escape(name)}</span><i><u style="width:{100 * share:.1f}%"></u></i>'
        f"<em>{percent(share)}</em></span>"
    )


def mistakes_html(figures: Mapping[str, Any], pictures: Mapping[str, Any], most: int | None = None) -> str:
    shape = pictures["followed"][0]["shape"] if pictures["followed"] else (SIDE, SIDE)
    cards = "".join(
        f'<figure class="mistake">{picture(png, shape, _name(item), 96)}<figcaption>'
        f'<b class="wrong">{escape(item["answered"])}</b><br><span>{percent(item["confidence"])} sure</span><br>'
        f'<span>is</span> <b class="right">{escape(item["true"])}</b></figcaption></figure>'
        for item, png in zip(figures["mistakes"][:most], pictures["mistakes"][:most], strict=False)
    )
    return f'<div class="mistakes">{cards}</div>'


def confusion_html(figures: Mapping[str, Any]) -> str:
    """Rows are what was true, columns what was answered: counts and shares; a picture where classes are many."""
    names, counts = figures["classes"], np.array(figures["confusion"])
    part, short = shares(counts), max(map(len, names)) <= 3
    if len(names) > TABLE:
        size = (len(names), len(names))
        png = map_png(part[None], Scale("heat", 0.0, 1.0))
        drawn = picture(png, size, "Rows: what was true. Columns: what was answered.", 500)
        bar = scale_bar({"kind": "heat", "low": 0.0, "high": 1.0})
        return f'<div class="matrix drawn">{drawn}{bar}{_class_list(figures["per_class"])}</div>'
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(_entry(counts[i, j], part[i, j], i == j) for j in range(len(names)))
        + f'<td class="own">{percent(figures["per_class"][i]["accuracy"])}</td></tr>'
        for i, name in enumerate(names)
    )
    corner = '<td class="corner">true ↓ &nbsp; answered →</td>'
    head = f'<thead><tr>{corner}{heads}<th scope="col" class="own"><span>accuracy</span></th></tr></thead>'
    kind = "matrix short" if short else "matrix"
    return f'<div class="scroll"><table class="{kind}">{head}<tbody>{lines}</tbody></table></div>'


def _entry(count: int, share: float, right: bool) -> str:
    if not count:
        return '<td class="none">·</td>'
    kind = "right" if right else "wrong"
    return f'<td class="{kind}" style="--share:{share:.3f}"><b>{whole(count)}</b><small>{percent(share)}</small></td>'


def _class_list(classes: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(classes, key=lambda item: (item["accuracy"] is None, item["accuracy"]))
    lines = "".join(f"<li>{escape(item['class'])} <b>{percent(item['accuracy'])}</b></li>" for item in ordered)
    title = "Accuracy of every class, the worst first"
    return f'<details><summary>{title}</summary><ol class="classes">{lines}</ol></details>'


def confused_html(figures: Mapping[str, Any]) -> str:
    """Which classes are most often taken for which, in words."""
    found = figures["most_confused"]
    if not found:
        return ""
    lines = "".join(
        f'<li><b class="right">{escape(item["true"])}</b> taken for <b class="wrong">{escape(item["answered"])}</b>, '
        f"{'once' if item['count'] == 1 else whole(item['count']) + ' times'}</li>"
        for item in found
    )
    return f'<ol class="confused">{lines}</ol>'


def _name(sample: Mapping[str, Any]) -> str:
    return f"sample {sample['sample']}"


def percent(share: float | None) -> str:
    """`84.1 %`, rounded as the leaderboard rounds 0.841; whole where it is all."""
    if share is None:
        return "–"
    text = f"{100 * float(f'{share:.3f}'):.1f}"
    return f"{'100' if text == '100.0' else text} %"
