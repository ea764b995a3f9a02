"""Downloading one file: several mirrors, progress, and going on where a cut connection stopped."""

from __future__ import annotations

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from email.message import Message
from pathlib import Path

Progress = Callable[[int, int | None], None]  # bytes here, bytes in all (None: the server does not say)

CHUNK = 1 << 16
ATTEMPTS = 3
TIMEOUT = 30.0
MD5_DIGITS = 32


class Refused(Exception):
    """Why a mirror did not give the file."""


def download(urls: Sequence[str], part: Path, checksum: str = "", progress: Progress | None = None) -> tuple[str, str]:
    """Bring a file to `part`; returns the mirror that gave it and its SHA-256. Refused says what every mirror answered.

    A `part` that is there already is continued. One whose checksum is wrong is deleted. A checksum of 32 digits is an
    MD5, which is all that some publishers give.
    """
    reasons = []
    for url in urls:
        try:
            _from_mirror(url, part, progress or _silent)
            found = file_hash(part, "md5" if len(checksum) == MD5_DIGITS else "sha256")
            if checksum and found != checksum:
                part.unlink()
                raise Refused(f"sent a file with the wrong checksum ({found[:12]}…, not {checksum[:12]}…)")
            return url, file_sha256(part)
        except Refused as error:
            reasons.append(f"{urllib.parse.urlsplit(url).netloc} {error}")
    raise Refused("; ".join(reasons))


def file_sha256(path: Path) -> str:
    return file_hash(path, "sha256")


def file_hash(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _from_mirror(url: str, part: Path, progress: Progress) -> None:
    """Try a mirror, and try again from where the connection broke as long as that brings us further."""
    for attempt in range(ATTEMPTS):
        before = _size(part)
        total = _once(url, part, progress)
        here = _size(part)
        if total is None or here == total:
            return
        if here > total:
            part.unlink()
            raise Refused(f"sent {here} bytes instead of {total}")
        if here <= before and attempt:
            break
        time.sleep(0.2 * attempt)
    raise Refused(f"broke off after {_size(part)} of {total} bytes; the same command goes on from there")


def _once(url: str, part: Path, progress: Progress) -> int | None:
    """One request. Returns the size that the whole file should have; the connection may break before."""
    here = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "nnarena", "Accept-Encoding": "identity"})
    if here:
        request.add_header("Range", f"bytes={here}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            here, total = _place(response, here)
            whole = _save(response, part, here, total, progress)
            if not whole and total is None:
                raise Refused("broke off; the same command tries to go on from there")
            return total
    except urllib.error.HTTPError as error:
        with error:
            # 416: our part has nothing left to ask for. It is the whole file, or the remains of another.
            if error.code == 416 and here:
                if _content_range(error.headers)[1] == here:
                    return here
                part.unlink()
                return _once(url, part, progress)
            raise Refused(f"answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise Refused(f"cannot be reached ({reason})") from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise Refused(f"does not answer properly ({type(error).__name__})") from error


def _place(response: http.client.HTTPResponse, here: int) -> tuple[int, int | None]:
    """Where in the file the response begins, and how long the file is."""
    if response.status == 206:
        start, total = _content_range(response.headers)
        if start != here:
            raise Refused(f"answered with bytes from {start} when asked for those from {here}")
        return here, total
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """`bytes 5-9/10` as (5, 10); what is not said is None."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
    start, total = match.groups() if match else (None, None)
    return int(start) if start else None, int(total) if total and total != "*" else None


def _save(response: http.client.HTTPResponse, part: Path, here: int, total: int | None, progress: Progress) -> bool:
    """Write what comes to `part`. False: the connection broke, as far as the protocol can tell."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "ab" if here else "wb") as file:
        progress(here, total)
        while True:
            try:
                block = response.read(CHUNK)
            except (http.client.HTTPException, OSError):
                return False
            if not block:
                return True
            file.write(block)
            here += len(block)
            progress(here, total)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _silent(here: int, total: int | None) -> None:
    pass
