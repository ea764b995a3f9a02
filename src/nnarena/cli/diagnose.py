"""`nnarena diagnose MODEL`: how gradients and activations flow through it, before and after training."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nnarena.cli.completion import complete_components
from nnarena.core.components import find
from nnarena.core.errors import BadOption
from nnarena.core.options import parse_choices, parse_setting

if TYPE_CHECKING:
    from nnarena.core.trial import Trial

# Tasks if none is named: the first that the model fits.
USUAL = {
    "sequences": ("add", "cell"),
    "images": ("digits_image", "digits_image[size=32]"),
    "tokens": ("copy",),
}
# Who is never shown samples has nothing that could be followed through it.
NO_SAMPLES = {"words": "it learns from a text", "nothing": "it is a place on a surface"}
WIDE = 140  # columns where there is no terminal


@click.command()
@click.argument("model", required=False, shell_complete=complete_components("model"))
@click.option(
    "-t",
    "--task",
    metavar="NAME",
    shell_complete=complete_components("task"),
    help="What it is fed with; add if it reads sequences, digits_image if images, copy if tokens.",
)
@click.option("--epochs", type=int, help="Train it, for so many epochs at most, and look again.")
@click.option(
    "-o",
    "--optimizer",
    metavar="NAME",
    shell_complete=complete_components("optimizer"),
    help="Who trains it.  [default: adam]",
)
@click.option("--seed", type=int, help="Of data, split and start values.  [default: 0]")
@click.option("--samples", type=int, help="Samples at most of the task.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in `nnarena run`.")
@click.option("--trial", type=(click.Path(path_type=Path), str), metavar="DIR ID", help="A trained trial of a store.")
@click.option("--look", type=int, default=32, help="Samples that are looked at.", show_default=True)
@click.option("--device", metavar="auto|cpu|cuda", help="Where it is trained.  [default: auto]")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="A page with pictures, FILE.html.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, every number in full.")
def diagnose(
    model: str | None,
    task: str | None,
    trial: tuple[Path, str] | None,
    look: int,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """How gradients and activations flow through a model: through time, through a step, through its layers.

    \b
    nnarena diagnose lstm                               as it starts, on `add`
    nnarena diagnose unitary_rnn -t memory --epochs 3   before and after three epochs
    nnarena diagnose "ct_rnn[hidden_size=32]" -t "add[length=400]" --output ct_rnn.html
    nnarena diagnose resnet18 -t digits_image --json
    nnarena diagnose encoder_decoder -t reverse         as it is taught: told the tokens before each
    nnarena diagnose --trial runs/quickstart 3f9a       a trial that is done: as it started, as it ended

    What a network can learn of something T steps ago is what comes back of the gradient: at each step it is
    multiplied by the step's Jacobian. Factors below 1 on average make it vanish, factors above 1 make it explode.
    """
    if output is not None and output.suffix != ".html":
        raise BadOption(f"--output writes a page: name it {output.stem}.html, not {output.name}.")
    said = {"MODEL": model, "--task": task} | {f"--{name}": value for name, value in options.items()}
    said["--set"] = said.pop("--settings") or None
    extra = [name for name, value in said.items() if value is not None]
    if trial is not None and extra:
        raise BadOption(f"--trial says what is looked at, so {extra[0]} cannot be said besides.")
    idle = [name for name in ("--optimizer", "--device") if name in extra and "--epochs" not in extra]
    if idle:
        raise BadOption(f"{idle[0]} says how it is trained, and it is not: say --epochs too.")
    found = _of_new(model, task, look, as_json, **options) if trial is None else _of_trial(*trial, look)
    from nnarena.core.files import finite
    from nnarena.report.diagnosis import terminal

    if output is not None:
        from nnarena.report.diagnosis_page import write_diagnosis

        write_diagnosis(found, output)
    if as_json:
        click.echo(json.dumps(finite(found), indent=1, allow_nan=False))
        return
    width, _ = shutil.get_terminal_size((WIDE, 0))
    color = sys.stdout.isatty()
    click.echo(terminal(found, width if color else WIDE, color).rstrip())
    if output is not None:
        click.echo(f"\nPictures: {output}")


def _of_new(model: str | None, task: str | None, look: int, quiet: bool, **options: Any) -> dict[str, Any]:
    """A model as it would enter a task, trained if `epochs` says so."""
    if model is None:
        raise BadOption("Name a model, or a trained one by --trial DIR ID: nnarena diagnose lstm -t add.")
    reads = find("model", parse_choices([model])[0].ref).reads
    if reads in NO_SAMPLES:
        raise BadOption(f"{model} has no diagnosis: {NO_SAMPLES[reads]}, so there are no samples to follow through it.")
    tasks = (task,) if task else USUAL[reads]
    trials = [_request(model, name, options) for name in tasks]
    from nnarena.diagnose.trial import diagnose_new, fitting
    from nnarena.engine.device import check_precision, pick_device
    from nnarena.launch.progress import progress

    device, trial = pick_device(options["device"] or "auto"), fitting(trials)
    check_precision(trial.protocol.precision, device)
    if not options["epochs"]:
        return diagnose_new(trial, look=look)
    watcher = progress(quiet)
    watcher.begin([trial], 0, 1)
    watcher.start(trial)
    try:
        return diagnose_new(
            trial,
            train=True,
            look=look,
            device=device,
            on_epoch=lambda line: watcher.epoch(trial, line),
            log=watcher.log,
        )
    finally:
        watcher.end()


def _of_trial(folder: Path, name: str, look: int) -> dict[str, Any]:
    from nnarena.results.store import Store

    found = Store.open(folder).find(name)
    from nnarena.diagnose.trial import diagnose_done

    return diagnose_done(found, look=look)


def _request(model: str, task: str, options: dict[str, Any]) -> Trial:
    """One trial, as `nnarena run` would make it; whatever is mistyped is told here."""
    from nnarena.api import make_study

    parts = {"model": model, "task": task, "optimizer": options["optimizer"] or "adam"}
    for kind, text in parts.items():
        if len(parse_choices([text])) != 1:
            raise BadOption(f"One {kind} at a time can be looked at, and {text!r} stands for several.")
    seed = options["seed"] or 0
    if seed < 0:
        raise BadOption(f"--seed must not be negative, not {seed}.")
    settings = dict(map(parse_setting, options["settings"]))
    for key in ("epochs", "samples"):
        if key in settings:
            raise BadOption(f"Say --{key} {settings[key]} and not --set {key}={settings[key]}.")
        settings |= {key: options[key]} if options[key] is not None else {}
    study = make_study(None, parts["task"], parts["model"], parts["optimizer"], seed + 1, False, settings)
    return study.trials()[-1]
