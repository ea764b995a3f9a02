"""What `nnarena look` saw as one HTML file that opens anywhere, offline. It has no script at all."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from nnarena.report.board import breakable, paragraph
from nnarena.report.look_html import (
    confused_html,
    confusion_html,
    followed_html,
    learned_html,
    mistakes_html,
    percent,
)
from nnarena.report.numbers import whole

HERE = Path(__file__).parent
CLOSE = 1e-6  # accuracies that differ by less are the same
ROUNDING = 0.005  # and by less than this because of rounding
HONEST = (
    "They show the weights that were tested, on test samples whose score was on record before anybody looked. "
    "To change a model because of what is seen here, and to test it on the same samples again, would be to choose by "
    "the test."
)
ABOUT = {
    "followed": (
        "One by one through the layers",
        "Test samples drawn at random, on their way through every layer, from top to bottom. The heads of a stage "
        "share one scale of colours, which stands beside it. Unfold a sample to follow it.",
    ),
    "learned": (
        "What was learned",
        "Every head has two weights for each place of its input, one for each softmax. They are the same for all "
        "inputs. Orange is above zero, blue below: where the input is large, orange draws attention and blue turns it "
        "away.",
    ),
    "confusion": (
        "What is taken for what",
        "All test samples: rows are what was true, columns what was answered. Counts, and shares of their row.",
    ),
    "mistakes": (
        "Mistakes",
        "Test samples that were answered wrongly, those first of which the model was most sure.",
    ),
}


def build_look_page(seen: Mapping[str, Any]) -> str:
    """The whole file as text, from what `look.json` holds."""
    figures = seen["figures"]
    sections = look_sections(seen)
    titles = {key: ABOUT[key][0] for key in sections}
    names = {
        "title": escape(f"{figures['model']} on {figures['task']}"),
        "style": (HERE / "page.css").read_text() + (HERE / "look.css").read_text(),
        "header": _header(figures),
        "nav": "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in titles.items()),
        "honest": escape(f"{HONEST} {recount(figures)}".strip()),
        "sections": "".join(_section(key, content) for key, content in sections.items()),
    }
    return Template((HERE / "look.html").read_text()).substitute(names)


def look_sections(seen: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the page, in their order; those that have nothing to show are not there."""
    figures, pictures = seen["figures"], seen["pictures"]
    kind, followed = pictures["kind"], pictures["followed"]
    found: dict[str, str] = {}
    if pictures["learned"]:
        shapes = [layer["shape"] for layer in followed[0]["layers"]]
        samples = (followed_html(sample, kind, place == 0) for place, sample in enumerate(followed))
        found["followed"] = _directions(kind, shapes[0][0]) + "".join(samples)
        found["learned"] = learned_html(pictures["learned"], shapes, kind)
    if figures["classes"]:
        words = confused_html(figures)
        often = f"<div><h3>Most often</h3>{words}</div>" if words else ""
        found["confusion"] = f'<div class="beside">{confusion_html(figures)}{often}</div>'
    if figures["mistakes"]:
        more = len(figures["mistakes"]) - len(pictures["mistakes"])
        rest = paragraph(f"And {more:,} more: `nnarena look … --json` lists them all.") if more > 0 else ""
        found["mistakes"] = mistakes_html(figures, pictures) + rest
    return found


def _directions(kind: str, channels: int) -> str:
    """What the parts of a picture are, where one cannot guess it."""
    if kind == "sequence":
        return paragraph("Of a sequence, time runs to the right, and its features lie one below the other.")
    if channels == 3:
        return paragraph("The three parts of a picture are the channels: red, green, blue.")
    return paragraph(f"The parts of a picture are its {channels} channels.") if channels > 1 else ""


def recount(figures: Mapping[str, Any]) -> str:
    """Whether what was counted now agrees with what the trial's record says."""
    recorded, counted = (figures["test"] or {}).get("accuracy"), figures["accuracy"]
    if recorded is None or counted is None:
        return ""
    if abs(recorded - counted) < CLOSE:
        return f"Counted here, the accuracy is that of the record: {percent(counted)}."
    why = "more than rounding can do: the data or the code are not those of the trial"
    if abs(recorded - counted) < ROUNDING:
        why = "another device or version rounds another way"
    return f"Counted here, the accuracy is {100 * counted:.3f} %, and the record has {100 * recorded:.3f} %: {why}."


def _section(key: str, content: str) -> str:
    title, about = ABOUT[key]
    return f'<section class="looked" id="{key}"><h2>{escape(title)}</h2>{paragraph(about)}{content}</section>'


def _header(figures: Mapping[str, Any]) -> str:
    wrong = len(figures["mistakes"])
    tiles = [(percent(figures["accuracy"]), "test accuracy")] if figures["accuracy"] is not None else []
    tiles.append((whole(figures["test_samples"]), "test samples"))
    tiles += [(whole(wrong), "mistakes")] if figures["classes"] else []
    tiles.append((whole(figures["parameters"]), "parameters"))
    shown = "".join(f'<div class="tile"><b>{value}</b><span>{text}</span></div>' for value, text in tiles)
    about = [
        f"seed {figures['seed']}",
        figures["optimizer"],
        f"weights of epoch {figures['best_epoch']} of {figures['epochs']}",
        f"trial {figures['trial']}",
    ]
    return (
        f'<p class="study">{escape(figures["study"])}: a look inside</p>'
        f"<h1>{breakable(figures['model'])} on {breakable(figures['task'])}</h1>"
        f'<p class="protocol">{escape(" · ".join(about))}</p><div class="tiles">{shown}</div>'
    )
