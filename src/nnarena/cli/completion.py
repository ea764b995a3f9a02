"""Shell completion: the script, and what can be completed."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from nnarena.core.components import Kind, catalogue
from nnarena.core.study import built_in_studies

SHELLS = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/nnarena.fish"}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  nnarena completion bash >> ~/.bashrc
    zsh:   nnarena completion zsh >> ~/.zshrc
    fish:  nnarena completion fish > ~/.config/fish/completions/nnarena.fish
    """
    from nnarena.cli.app import app

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "nnarena", "_NNARENA_COMPLETE").source())


def complete_components(kind: Kind):
    """Completes the last of several names separated by commas; a file of one's own completes as a file."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        items = [
            CompletionItem(before + comma + name, help=component.summary)
            for name, component in catalogue(kind).items()
            if name.startswith(last)
        ]
        return items or [CompletionItem(incomplete, type="file")]

    return complete


def complete_studies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    items = [CompletionItem(name) for name in built_in_studies() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    kinds: tuple[Kind, ...] = ("model", "task", "optimizer", "initialiser")
    names = [name for kind in kinds for name in catalogue(kind)] + list(built_in_studies())
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
