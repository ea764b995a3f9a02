"""`nnarena look DIR TRIAL`: pictures of what a trained model does."""

from __future__ import annotations

import json
from pathlib import Path

import click

MOST_IMAGES = 32


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("trial")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; look.html beside the trial.")
@click.option(
    "--images",
    type=click.IntRange(1, MOST_IMAGES),
    default=4,
    show_default=True,
    help="Test samples to follow through the layers.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which samples these are.")
@click.option("--device", default="auto", metavar="auto|cpu|cuda", help="Where to compute.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print confusion matrix, accuracy by class and every mistake.")
def look(folder: Path, trial: str, output: Path | None, images: int, seed: int, device: str, as_json: bool) -> None:
    """Pictures of a trained model: what it takes for what, its mistakes, and what its layers do.

    TRIAL is an id or the beginning of one, as the report shows it when a row is unfolded. Any model on images has a
    confusion matrix and its most confident mistakes; of attention_wise and attention_wise_1d one sees the weights of
    every head, and test samples on their way through both softmaxes, relevance, convolution, norm and ReLU.

    The weights are those that validation selected, and nothing is chosen by these pictures. `nnarena report DIR` shows
    what has been looked at.

    \b
    nnarena look runs/arena 3f2a                       a page, look.html in the trial's folder
    nnarena look runs/arena 3f2a --images 8 --seed 1   eight other test samples
    nnarena look runs/arena 3f2a --output digits.html  somewhere else
    nnarena look runs/arena 3f2a --json                the figures, for scripts
    """
    from nnarena.core.files import write_json, write_text
    from nnarena.launch.look import look_at_trial
    from nnarena.report.look import seen
    from nnarena.report.look_page import build_look_page
    from nnarena.results.folder import LOOK, LOOK_PAGE
    from nnarena.results.store import Store

    kept = Store.open(folder).find(trial)
    request, found = look_at_trial(kept, device, images, seed)
    content = seen(found, request, kept.path.name, kept.result())
    page = output or kept.path / LOOK_PAGE
    write_text(page, build_look_page(content))
    write_json(kept.path / LOOK, content)
    click.echo(json.dumps(content["figures"], indent=1) if as_json else page)
