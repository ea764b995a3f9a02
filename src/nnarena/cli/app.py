"""All commands in one group."""

from __future__ import annotations

import click

import nnarena
from nnarena.cli.bench import bench
from nnarena.cli.completion import completion
from nnarena.cli.data import data
from nnarena.cli.diagnose import diagnose
from nnarena.cli.doctor import doctor
from nnarena.cli.ensemble import ensemble
from nnarena.cli.listing import list_
from nnarena.cli.look import look
from nnarena.cli.report import report
from nnarena.cli.rerun import rerun
from nnarena.cli.run import run
from nnarena.cli.show import show
from nnarena.cli.status import status
from nnarena.core.errors import suggestion


class Commands(click.Group):
    """A group that says which command was probably meant."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"There is no command {args[0]!r}{suggestion(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(nnarena.__version__, prog_name="nnarena")
def app() -> None:
    """An arena in which neural networks meet under equal, honest conditions.

    \b
    nnarena run quickstart                    a first meeting, under a minute
    nnarena run -t add -m lstm,gru --seeds 5  your own
    nnarena list                              what there is
    """


for command in (run, list_, show, status, report, ensemble, rerun, look, diagnose, data, bench, doctor, completion):
    app.add_command(command)
