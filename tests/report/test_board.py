"""Paragraphs of the page."""

from __future__ import annotations

from nnarena.report.board import paragraph


def test_what_is_typed_looks_like_it_and_nothing_else_is_markup() -> None:
    assert paragraph("Say `run -m <x>` & wait", "note") == (
        '<p class="note">Say <code>run -m &lt;x&gt;</code> &amp; wait</p>'
    )
    assert paragraph("one ` alone") == '<p class="meta">one ` alone</p>'
