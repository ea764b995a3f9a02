"""Downloads from a real server: progress, going on after a cut, mirrors, and every way it can fail."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from nnarena.data.download import Refused, download

BODY = bytes(range(256)) * 2000  # 512,000 bytes: several blocks
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file.part"


def test_a_whole_file_arrives_with_progress(site, part):
    site.files["/a"] = BODY
    seen = []
    assert download([site.url("/a")], part, SHA, lambda here, total: seen.append((here, total))) == (
        site.url("/a"),
        SHA,
    )
    assert part.read_bytes() == BODY
    assert seen[0] == (0, len(BODY)) and seen[-1] == (len(BODY), len(BODY))
    assert [here for here, _ in seen] == sorted(here for here, _ in seen) and len(seen) > 3


def test_a_cut_connection_is_continued_with_range(site, part):
    site.files["/a"] = BODY
    site.cut_after = [100_000, 200_000]
    download([site.url("/a")], part, SHA)
    assert part.read_bytes() == BODY
    assert [asked for _, asked in site.requests] == [None, "bytes=100000-", "bytes=300000-"]


def test_a_part_of_an_earlier_run_is_continued(site, part):
    site.files["/a"] = BODY
    part.parent.mkdir()
    part.write_bytes(BODY[:1234])
    seen = []
    download([site.url("/a")], part, SHA, lambda here, total: seen.append((here, total)))
    assert part.read_bytes() == BODY
    assert site.requests == [("/a", "bytes=1234-")]
    assert seen[0] == (1234, len(BODY))


def test_it_gives_up_after_too_many_cuts_and_keeps_the_part(site, part):
    site.files["/a"] = BODY
    site.cut_after = [1000] * 10
    with pytest.raises(Refused, match="broke off after 3000 of 512000 bytes"):
        download([site.url("/a")], part, SHA)
    assert part.read_bytes() == BODY[:3000]
    site.cut_after = []
    download([site.url("/a")], part, SHA)
    assert part.read_bytes() == BODY


def test_a_server_without_range_starts_anew(site, part):
    site.files["/a"] = BODY
    site.ranges = False
    site.cut_after = [1000]
    download([site.url("/a")], part, SHA)
    assert part.read_bytes() == BODY
    assert site.requests == [("/a", None), ("/a", "bytes=1000-")]


def test_a_part_that_is_whole_already_is_kept(site, part):
    site.files["/a"] = BODY
    part.parent.mkdir()
    part.write_bytes(BODY)
    assert download([site.url("/a")], part, SHA) == (site.url("/a"), SHA)


def test_a_part_that_is_too_long_is_thrown_away(site, part):
    site.files["/a"] = BODY
    part.parent.mkdir()
    part.write_bytes(BODY + b"more")
    assert download([site.url("/a")], part, SHA) == (site.url("/a"), SHA)
    assert part.read_bytes() == BODY


def test_a_wrong_checksum_deletes_the_part(site, part):
    site.files["/a"] = BODY[:-1] + b"?"
    with pytest.raises(Refused, match="wrong checksum"):
        download([site.url("/a")], part, SHA)
    assert not part.exists()


def test_the_next_mirror_is_tried(site, part):
    site.files["/wrong"] = b"something else"
    site.files["/right"] = BODY
    urls = [site.url(path) for path in ("/absent", "/wrong", "/right")]
    assert download(urls, part, SHA) == (urls[2], SHA)
    assert [path for path, _ in site.requests] == ["/absent", "/wrong", "/right"]


def test_every_mirror_says_why(site, part):
    site.files["/wrong"] = b"something else"
    with pytest.raises(
        Refused, match=r"127.0.0.1:\d+ answered 404 Not Found; 127.0.0.1:\d+ sent a file with the wrong"
    ):
        download([site.url("/absent"), site.url("/wrong")], part, SHA)


def test_nobody_there(part):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Refused, match="cannot be reached"):
            download([f"http://127.0.0.1:{taken.getsockname()[1]}/a"], part, SHA)


def test_no_such_host(part):
    with pytest.raises(Refused, match="cannot be reached"):
        download(["http://no-such-host.invalid/a"], part)
