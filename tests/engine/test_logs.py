"""What layers log while they train reaches whoever watches, and the logger is left as it was."""

from __future__ import annotations

import logging

from nnarena.engine.logs import passing_on


def test_lines_are_passed_on_from_info_on():
    lines, logger = [], logging.getLogger("nnarena.kernels")
    before = logging.getLogger("nnarena").level
    with passing_on(lines.append):
        logger.debug("too small")
        logger.info("%s steps", 3)
        logger.warning("slow")
    logger.warning("afterwards")
    assert lines == ["3 steps", "slow"]
    assert logging.getLogger("nnarena").level == before and not logging.getLogger("nnarena").handlers
