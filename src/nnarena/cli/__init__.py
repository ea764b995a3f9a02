"""The command `nnarena`: parsing and printing only."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command. Errors are one sentence on stderr; `--debug`, anywhere, shows the traceback."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    sys.exit(_guarded(arguments, debug))


def _guarded(arguments: list[str], debug: bool) -> int:
    import click

    from nnarena.cli.app import app
    from nnarena.core.errors import ArenaError

    try:
        return app.main(arguments, prog_name="nnarena", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        print("\nStopped. What is done is kept: repeat the command to go on.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ArenaError as error:
        if debug:
            raise
        print(f"nnarena: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if debug:
            raise
        print(f"nnarena: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return 70
