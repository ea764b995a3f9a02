"""What layers and kernels log while they train, on its way to whoever watches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOGGER = "nnarena"


class Passing(logging.Handler):
    """Hands on every record as a line."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log(record.getMessage())


@contextmanager
def passing_on(log: Callable[[str], None]) -> Iterator[None]:
    """Within it, what this package logs from `INFO` on is a line for `log`."""
    logger, handler = logging.getLogger(LOGGER), Passing(log)
    before = logger.level
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
