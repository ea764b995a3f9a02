"""What errors say, in a line."""

from __future__ import annotations

import pytest

from nnarena.core.errors import first_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError("\n  first\n"), "first"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (
            RuntimeError("backend='inductor' raised:\nCppCompileError: no such header\n\nCommand:"),
            "CppCompileError: no such header",
        ),
    ],
)
def test_it_is_one_line_that_tells_something(error, said):
    assert first_line(error) == said
