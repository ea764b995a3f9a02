"""What `nnarena look` saw of a study's trials, in the study's report: short, and with nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnarena.core.errors import StoreError
from nnarena.core.files import read_json
from nnarena.report.board import breakable, paragraph
from nnarena.report.look import FORMAT
from nnarena.report.look_html import confused_html, confusion_html, followed_html, learned_html, mistakes_html, percent
from nnarena.report.look_page import HONEST, recount
from nnarena.results.folder import LOOK
from nnarena.results.store import TRIALS, Store

if TYPE_CHECKING:
    import polars as pl

SHOWN = 12  # trials whose pictures are in a report
MISTAKES = 16


def looked_html(store: Store, table: pl.DataFrame) -> str:
    """The section of the report; empty if no trial has been looked at."""
    found, notes = read_looks(store, table)
    if not found and not notes:
        return ""
    more = len(found) - SHOWN
    notes += [f"And {more} more, whose pictures lie in their folders."] if more > 0 else []
    return (
        '<section class="looked" id="looked"><h2>Looked at</h2>'
        + paragraph("Trained models and what they do, by `nnarena look`.")
        + paragraph(f"Pictures choose nothing. {HONEST}", "note")
        + "".join(_trial(seen, place == 0) for place, seen in enumerate(found[:SHOWN]))
        + "".join(paragraph(note, "note") for note in notes)
        + "</section>"
    )


def read_looks(store: Store, table: pl.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """What was seen of the trials of a table, in its order, and a sentence for each file that is of no use."""
    found, notes = [], []
    for path in table["path"]:
        file: Path = store.folder / TRIALS / path / LOOK
        if not file.is_file():
            continue
        again = f"`nnarena look` makes the pictures of {file.parent.name} again"
        try:
            seen = read_json(file)
        except StoreError:
            notes.append(f"A {LOOK} is damaged: {again}.")
            continue
        if not isinstance(seen, dict) or seen.get("format") != FORMAT:
            notes.append(f"A {LOOK} is of another version: {again}.")
            continue
        found.append(seen)
    return found, notes


def _trial(seen: Mapping[str, Any], opened: bool) -> str:
    figures, pictures = seen["figures"], seen["pictures"]
    title = f"{figures['model']} on {figures['task']}, {figures['optimizer']}, seed {figures['seed']}"
    about = []
    if figures["classes"]:
        about = [percent(figures["accuracy"]), f"{len(figures['mistakes']):,} mistakes"]
    parts = [paragraph(text)] if (text := recount(figures)) else []
    if figures["classes"]:
        words = confused_html(figures)
        often = f"<div><h3>Most often</h3>{words}</div>" if words else ""
        parts.append(f'<div class="beside">{confusion_html(figures)}{often}</div>')
    if figures["mistakes"]:
        parts.append(f"<h3>The most confident mistakes</h3>{mistakes_html(figures, pictures, MISTAKES)}")
    if pictures["learned"]:
        sample = pictures["followed"][0]
        shapes = [layer["shape"] for layer in sample["layers"]]
        parts.append(f"<h3>A test sample on its way</h3>{followed_html(sample, pictures['kind'], False)}")
        parts.append(
            '<details class="sample"><summary><b class="title">What was learned</b></summary>'
            f"{learned_html(pictures['learned'], shapes, pictures['kind'])}</details>"
        )
    how = " open" if opened else ""
    return (
        f'<details class="sample look"{how}><summary><span class="title"><b>{breakable(title)}</b>'
        f'<span class="std">{escape(" · ".join([*about, "trial " + figures["trial"]]))}</span></span></summary>'
        f"{''.join(parts)}</details>"
    )
