"""`nnarena doctor`: what this machine has and what will be used."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import click

import nnarena
from nnarena.kernels import toolchain

PEERS = ["torchvision", "triton", "polars", "pandas", "gymnasium", "mujoco"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def doctor(as_json: bool) -> None:
    """What this machine has, and what will be used."""
    content = examine()
    if as_json:
        click.echo(json.dumps(content, indent=1))
        return
    for title, facts in content.items():
        click.secho(title, bold=True)
        for name, fact in facts.items():
            click.echo(f"  {name:12}  {fact}")


def examine() -> dict[str, dict[str, Any]]:
    import torch

    from nnarena.data import catalogue
    from nnarena.data.folder import data_folder
    from nnarena.engine.device import cores, pick_device
    from nnarena.launch.run import usual_jobs
    from nnarena.launch.sharing import find_mps

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    mps = find_mps()
    here = [entry.name for entry in catalogue() if entry.present]
    absent = [entry.name for entry in catalogue() if not entry.present]
    return {
        "Software": {
            "nnarena": nnarena.__version__,
            "python": f"{platform.python_version()} ({sys.executable})",
            "torch": str(torch.__version__),
            **{name: _version(name) for name in PEERS},
        },
        "Machine": {
            "system": platform.platform(),
            "cores": cores(),
            "memory": _memory(),
            "free disk": f"{shutil.disk_usage('.').free / 1e9:.0f} GB here",
            "gpu": ", ".join(gpus) or "none that torch can use",
            "NVIDIA MPS": mps or "none: there is no nvidia-cuda-mps-control on the PATH",
            "C++ compiler": toolchain.compiler() or "none",
        },
        "Used": {
            "device": f"cuda ({gpus[0]})" if gpus else "cpu",
            "jobs": _jobs(usual_jobs(pick_device("auto"), shared=mps is not None), bool(gpus), mps),
            "population": "all seeds of a cell as one" if gpus else "each seed alone",
            "recurrence": _recurrence(bool(gpus)),
            "precision": "float32 throughout",
        },
        "Data": {
            "folder": f"{data_folder()}" + (" (NNARENA_DATA)" if os.environ.get("NNARENA_DATA") else ""),
            "here": ", ".join(here) or "none",
            "not here": f"{', '.join(absent)}: `nnarena data get NAME`" if absent else "none",
            "offline": "yes (NNARENA_OFFLINE)" if os.environ.get("NNARENA_OFFLINE", "0") not in ("", "0") else "no",
        },
    }


def _jobs(count: int, gpu: bool, mps: str | None) -> str:
    """How many processes compute at once, and why not more."""
    if not gpu:
        return f"{count}, one a core"
    if mps is None:
        return f"{count}: without MPS, processes would take turns on the GPU"
    return f"up to {count} on the GPU at once, through {mps}"


def _recurrence(gpu: bool) -> str:
    """What drives recurrent layers over time, and what is missing for something faster."""
    if gpu:
        if find_spec("triton"):
            return "fused Triton kernels where torch has none of its own; training steps as CUDA graphs"
        return "eager steps as CUDA graphs: without Triton there are no fused kernels"
    if toolchain.compiler():
        return "machine code of this CPU where a run is long enough to repay compiling it; eager steps else"
    return "eager steps: without a C++ compiler (g++ or clang++) none are compiled"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    except (ValueError, OSError, AttributeError):
        return "unknown"
