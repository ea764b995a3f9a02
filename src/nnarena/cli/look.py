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
@click.option(
    "--near",
    multiple=True,
    metavar="WORDS",
    help="Of a model of words: what is nearest to a word, or to a sum of some.",
)
@click.option("--device", default="auto", metavar="auto|cpu|cuda", help="Where to compute.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures: confusions and every mistake, or the words.")
def look(
    folder: Path,
    trial: str,
    output: Path | None,
    images: int,
    seed: int,
    near: tuple[str, ...],
    device: str,
    as_json: bool,
) -> None:
    """Pictures of a trained model: what it takes for what, its mistakes, and what its layers do.

    TRIAL is an id or the beginning of one, as the report shows it when a row is unfolded. Any model on images has a
    confusion matrix and its most confident mistakes; of attention_wise and attention_wise_1d one sees the weights of
    every head, and test samples on their way through both softmaxes, relevance, convolution, norm and ReLU. A model of
    words says which are nearest to those one names.

    The weights are those that validation selected, and nothing is chosen by these pictures. `nnarena report DIR` shows
    what has been looked at.

    \b
    nnarena look runs/arena 3f2a                       a page, look.html in the trial's folder
    nnarena look runs/arena 3f2a --images 8 --seed 1   eight other test samples
    nnarena look runs/arena 3f2a --output digits.html  somewhere else
    nnarena look runs/arena 3f2a --json                the figures, for scripts
    nnarena look runs/words 8c1b --near oslo --near "paris - france + italy"
    """
    from nnarena.core.files import write_json, write_text
    from nnarena.launch.look import ask_trial, look_at_trial
    from nnarena.report.look import seen
    from nnarena.report.look_page import build_look_page
    from nnarena.results.folder import LOOK, LOOK_PAGE
    from nnarena.results.store import Store

    kept = Store.open(folder).find(trial)
    if near:
        answers = ask_trial(kept, near, device)
        click.echo(json.dumps(answers, indent=1) if as_json else "\n\n".join(map(_told, answers.items())))
        return
    request, found = look_at_trial(kept, device, images, seed)
    content = seen(found, request, kept.path.name, kept.result())
    page = output or kept.path / LOOK_PAGE
    write_text(page, build_look_page(content))
    write_json(kept.path / LOOK, content)
    click.echo(json.dumps(content["figures"], indent=1) if as_json else page)


def _told(answer: tuple[str, list[tuple[str, float]]]) -> str:
    """A question, and what is nearest to it, with the cosines."""
    question, words = answer
    longest = max((len(word) for word, _ in words), default=0)
    return "\n".join([question, *(f"  {word:<{longest}}  {cosine:.3f}" for word, cosine in words)])
