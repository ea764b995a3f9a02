"""Several processes on one GPU at the same time: NVIDIA's Multi-Process Service (MPS).

Left alone, the driver lets one process compute after another, in turns, so that four of them take as long together as
one by one. MPS lets their kernels run side by side. It is a daemon that comes with the driver and needs no rights:
processes find it by a folder that a variable names, and compute through it from then on.

A person's own daemon is used as it is. Where there is none, a private one runs as long as a study does. A small shell
watches over it, which ends it when our process closes a pipe; and the system closes it for us if we are killed, so
that the daemon never outlives us by more than a few seconds.

What processes share they can also lose together: when one of them reads where it must not, MPS ends the work of all,
and takes no new one before they are gone. Hence an error after which the GPU answers no more is no trial's failure
(`engine.members.DeviceLost`): its worker ends, and the one that takes its place computes without our daemon, which is
slower, and on its own. Who is guilty then costs no one else anything.

They share its memory, too: a population that finds too little goes on in halves, and a trial that finds too little
alone is out of memory; `--retry --jobs 1` does it again with all of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 30  # seconds for the daemon to start, and as many for its first client

# Until the pipe is closed; `-t` because a process that hangs on the GPU must not keep the daemon.
WATCH = f'read -r end; echo "quit -t 10" | {CONTROL}; rm -rf "$0"'

# Whether a process comes through to the GPU: what torch would find out as well, in a second instead of ten.
CLIENT = """
import ctypes, sys
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
errors = [
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
]
sys.exit(next((f"CUDA error {error}" for error in errors if error), 0))
"""


def find_mps() -> str | None:
    """The daemon through which processes would share a GPU here, in words. None: they would take turns."""
    return own_daemon() or (
        f"a private daemon while a study runs ({path})" if (path := shutil.which(CONTROL)) else None
    )


def own_daemon() -> str | None:
    """A person's own daemon, in words: they say where it is, or it answers in its usual place."""
    if os.environ.get(PIPES):
        return f"your daemon in {os.environ[PIPES]}"
    return "your daemon in its usual place" if _answers() else None


@contextmanager
def sharing(device: torch.device, processes: int, log: Callable[[str], None]) -> Iterator[dict[str, str] | None]:
    """Within it, so many processes can compute on the device at the same time.

    Gives the variables that must be in their environment, which are none on a CPU, for one process, or with a person's
    own daemon. Gives None, and tells `log` why, where they would have to take turns.
    """
    with ExitStack() as held:
        variables: dict[str, str] | None = {}
        if device.type == "cuda" and processes > 1 and not own_daemon():
            try:
                variables = held.enter_context(_private_daemon(device))
            except OSError as error:
                log(f"Processes take turns on the GPU, because NVIDIA's MPS cannot be used: {error}")
                variables = None
        yield variables


@contextmanager
def _private_daemon(device: torch.device) -> Iterator[dict[str, str]]:
    """A daemon that ends with the block, or with our process. Raises OSError if it is of no use."""
    if shutil.which(CONTROL) is None:
        raise FileNotFoundError(f"there is no {CONTROL} on the PATH")
    folder = Path(tempfile.mkdtemp(prefix="nnarena-mps-", dir="/tmp"))  # a socket's name has at most 107 letters
    variables = {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}
    ours = os.environ | variables
    # A daemon numbers the devices that it sees anew, and clients would choose among those: so it sees all.
    daemons = {name: value for name, value in ours.items() if name != "CUDA_VISIBLE_DEVICES"}
    watch = subprocess.Popen(
        ["sh", "-c", WATCH, str(folder)],
        env=daemons,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert watch.stdin is not None
    try:
        for path in variables.values():
            os.mkdir(path)
        _do([CONTROL, "-d"], daemons)
        _do([sys.executable, "-c", CLIENT, str(device.index or 0)], ours)
        yield variables
    finally:
        watch.stdin.close()
        watch.wait()


def _do(command: list[str], environment: dict[str, str]) -> None:
    """Run it to its end, or raise what it said. Its words go to a file: a daemon would hold a pipe open."""
    with tempfile.TemporaryFile("w+") as said:
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C in the terminal is not for a daemon
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{command[0]} takes longer than {PATIENCE} seconds") from None
        said.seek(0)
        if done.returncode:
            lines = said.read().split("\n")
            words = next((line for line in reversed(lines) if line.strip()), f"exit code {done.returncode}")
            raise OSError(f"{Path(command[0]).name}: {words.strip()}")


def _answers() -> bool:
    """Whether a daemon runs in its usual place: one that does names a percentage when it is asked for it."""
    try:
        asked = subprocess.run(
            [CONTROL], input="get_default_active_thread_percentage\n", capture_output=True, text=True, timeout=PATIENCE
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return re.fullmatch(r"[\d.]+\s*", asked.stdout) is not None
