"""`python -m nnarena` is the command `nnarena`."""

from nnarena.cli import main

main()
