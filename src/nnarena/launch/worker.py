"""The worker's side: `python -m nnarena.launch.worker`, started by `launch.workers` and by nobody else."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from nnarena.core.errors import ArenaError
from nnarena.core.files import disk_is_full, finite


def main() -> None:
    # What a model prints must not get between our lines: they have a pipe of their own, and prints go to stderr.
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the driver alone answers it
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    def say(event: str, **content: Any) -> None:
        channel.write(json.dumps(finite({"event": event, **content})) + "\n")

    while True:
        _work(requests.get(), say)


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Requests come in; when the driver is gone, so are we, in the middle of whatever it is."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def _work(request: dict[str, Any], say: Any) -> None:
    from nnarena.core.trial import trial_from_dict
    from nnarena.engine.device import free_memory, keep_memory, pick_device
    from nnarena.engine.members import DeviceLost
    from nnarena.engine.trial import run_population
    from nnarena.results.folder import TrialFolder

    try:
        trials, device = [], pick_device(request["device"])
        if device.type == "cpu":
            keep_memory()
        for asked in request["trials"]:
            trial = trial_from_dict(asked["trial"])
            if trial.id != asked["id"]:
                raise ArenaError(f"The source of {trial.model.ref} or its task changed while the study ran.")
            trials.append((trial, TrialFolder(Path(asked["folder"]))))
        for trial, _ in trials:
            say("start", id=trial.id)
        run_population(
            trials,
            device,
            exclusive=False,
            on_epoch=lambda trial, line: say("epoch", id=trial.id, line=line),
            on_finish=lambda trial, result: say("finish", id=trial.id, result=result),
            log=lambda text: say("log", text=text),
        )
        free_memory(device)
    except DeviceLost as error:
        say("log", text=str(error))
        os._exit(1)  # the driver starts another worker, for which the device is new
    except OSError as error:
        if not disk_is_full(error):
            raise
        say("full", errno=error.errno, text=str(error))
    except ArenaError as error:
        say("refused", text=str(error))


if __name__ == "__main__":
    main()
