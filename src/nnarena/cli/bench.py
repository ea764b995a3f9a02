"""`nnarena bench`: our speed beside the peers', as ratios in one run."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from nnarena.core.errors import BadOption

if TYPE_CHECKING:
    from rich.table import Table

    from nnarena.bench import attention as attention_ways
    from nnarena.bench import kernels as parts
    from nnarena.bench import optimizers as steps
    from nnarena.bench.recurrence import Row

LAST = ("gradient error", "note")  # columns
WORDS = ("path", "plan", "optimizer", "note")  # columns of words
PUBLISHED = "published code, TensorFlow on such a machine"


@click.group()
def bench() -> None:
    """Our speed beside the peers', as ratios in one run on this machine."""


@bench.command()
@click.option(
    "models", "-m", "--model", "--models", default="", metavar="NAMES", help="Which; all and the peers if not said."
)
@click.option("--cpu", is_flag=True, help="On the CPU, even where there is a GPU.")
@click.option("--threads", type=click.IntRange(1), help="Threads on the CPU; one a core if not said.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements of each.")
@click.option(
    "--seeds", type=click.IntRange(0), default=16, show_default=True, help="On a GPU: copies trained at once."
)
@click.option("--length", type=click.IntRange(2), hidden=True, help="Steps of a sequence: for a rehearsal.")
@click.option("--together", is_flag=True, hidden=True, help="All in this process: for a rehearsal.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def recurrence(
    models: str,
    cpu: bool,
    threads: int | None,
    rounds: int,
    seeds: int,
    length: int | None,
    together: bool,
    as_json: bool,
) -> None:
    """A training step of every recurrent model and transformer, in units of torch.nn.LSTM(2, 64).

    Forward, loss, backward and Adam on `add` (128 samples, 100 steps; memory_cell on `cell`, 384 steps), measured in
    turns with the unit. Every gradient is compared with a plain loop in float64 first: no time without a right one.

    \b
    nnarena bench recurrence
    nnarena bench recurrence --cpu -m gru,ct_rnn,"ncps LTC"
    """
    import torch

    from nnarena.bench.compare import compare
    from nnarena.bench.recurrence import choose

    names = choose([name.strip() for name in models.split(",") if name.strip()])
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    if device.type == "cuda" and threads is not None:
        raise BadOption("--threads is for the CPU: add --cpu.")
    threads = (threads or _cores()) if device.type == "cpu" else None
    tell = _teller()
    rows = list(
        compare(
            names, device, rounds=rounds, seeds=seeds, threads=threads, length=length, apart=not together, tell=tell
        )
    )
    tell("")
    if as_json:
        _echo_json(rows, device, unit="torch.nn.LSTM(2, 64)", threads=threads, rounds=rounds)
    else:
        _print(gpu_table(rows) if device.type == "cuda" else cpu_table(rows))


@bench.command()
@click.option(
    "models", "-m", "--model", "--models", default="", metavar="NAMES", help="Which; all recurrent ones if not said."
)
@click.option("--seeds", default="1,16", show_default=True, metavar="NUMBERS", help="Copies trained at once.")
@click.option("plans", "--plan", multiple=True, metavar="OPTION=VALUE,…", help="Another plan; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def kernels(models: str, seeds: str, plans: tuple[str, ...], as_json: bool) -> None:
    """Where the time of a training step goes on a GPU, and what another plan of its kernels is worth.

    Forward, loss and backward on `add` (128 samples, 100 steps): the whole in a CUDA graph, and of it the loop, the
    loop back, the products that make gradients of weights, and the rest. A plan has the options of
    nnarena.kernels.compiler.plan.Plan. No time without a right gradient.

    \b
    nnarena bench kernels -m gru --seeds 1,16
    nnarena bench kernels -m lstm --seeds 1 --plan warps=4 --plan warps=4,save=64
    """
    import torch

    from nnarena.bench.kernels import choose, compare, read_changes, read_seeds

    names = choose([name.strip() for name in models.split(",") if name.strip()])
    counts = read_seeds(seeds)
    for text in plans:
        read_changes(text)
    if not torch.cuda.is_available():
        raise BadOption("There is no GPU whose kernels could be measured: try nnarena bench recurrence --cpu.")
    device = torch.device("cuda")
    tell = _teller()
    rows = list(compare(names, counts, list(plans), device, tell))
    tell("")
    if as_json:
        _echo_json(rows, device, unit="seconds")
    else:
        _print(kernels_table(rows))


@bench.command()
@click.option("networks", "-m", "--model", default="", metavar="NAMES", help="Whose tensors; all if not said.")
@click.option("--cpu", is_flag=True, help="On the CPU, even where there is a GPU.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements of each.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def optimizers(networks: str, cpu: bool, rounds: int, as_json: bool) -> None:
    """A step of our optimizers, in units of torch's fused AdamW.

    On the tensors of torchvision's resnet18, densenet121 and resnext50_32x4d, and of an LSTM cell; beside torch's own,
    and the packages adamp and pytorch-optimizer where they are installed. Ours are compared with float64 first: no time
    without a right step.

    \b
    nnarena bench optimizers
    nnarena bench optimizers --cpu -m cell,resnet18
    """
    import torch

    from nnarena.bench.optimizers import UNIT, choose, compare

    chosen = choose([name.strip() for name in networks.split(",") if name.strip()])
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    tell = _teller()
    rows = list(compare(device, chosen, rounds, tell))
    tell("")
    if as_json:
        _echo_json(rows, device, unit=UNIT, rounds=rounds)
    else:
        _print(steps_table(rows, device.type == "cuda"))


@bench.command()
@click.option("-m", "--model", default="resnet18", show_default=True, help="The network.")
@click.option("--cpu", is_flag=True, help="On the CPU, even where there is a GPU.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Copies trained at once.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def images(model: str, cpu: bool, seeds: int, as_json: bool) -> None:
    """Images a second of our training loop, beside a plain one with torchvision's transforms and a DataLoader.

    Both train the same network with AdamW on random images of 32×32 pixels, cropped and mirrored at random, in batches
    of 128.

    \b
    nnarena bench images
    nnarena bench images -m densenet121 --seeds 4
    """
    import torch

    from nnarena.bench.images import choose, compare

    name = choose(model)
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    tell = _teller()
    rows = list(compare(name, device, seeds, tell))
    tell("")
    if as_json:
        _echo_json(rows, device, unit="a plain loop", model=name)
        return
    table = _table(f"Training {name}", ["way", "seeds", "images a second", "ratio"])
    for row in rows:
        table.add_row(row.way, str(row.seeds), f"{row.images_per_second:,.0f}", f"{row.ratio:.2f}")
    _print(table)


@bench.command()
@click.option("-t", "--task", default="halfcheetah", show_default=True, help="The environment.")
@click.option("--cpu", is_flag=True, help="On the CPU, even where there is a GPU.")
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True, help="Measurements of each.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads on the CPU.")
@click.option("--learn", type=click.IntRange(0), default=0, help="Steps to learn before the returns are compared.")
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Repetitions of that.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def control(task: str, cpu: bool, rounds: int, threads: int, learn: int, seeds: int, as_json: bool) -> None:
    """Steps a second of our soft actor-critic, beside stable-baselines3's with the same hyper-parameters.

    Measured in turns. With --learn, both train for so many steps and are examined in the same episodes.

    \b
    nnarena bench control
    nnarena bench control -t pendulum --learn 10000 --seeds 3
    """
    import torch

    from nnarena.bench.control import choose, compare

    name = choose(task)
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    tell = _teller()
    rows = list(compare(name, device, rounds, learn, seeds, tell, threads))
    tell("")
    if as_json:
        _echo_json(rows, device, unit="stable-baselines3", task=name, learn=learn, threads=threads)
        return
    table = _table(f"Soft actor-critic on {name}", ["way", "steps a second", "ratio", f"return, {learn} steps", "note"])
    for row in rows:
        returns = ", ".join(f"{value:,.0f}" for value in row.returns)
        table.add_row(row.way, _number(row.steps_per_second, ",.0f"), _number(row.ratio, ".2f"), returns, row.note)
    _print(table)


@bench.command()
@click.option("--cpu", is_flag=True, help="On the CPU, even where there is a GPU.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measurements of each.")
@click.option("--seeds", type=click.IntRange(1), default=4, show_default=True, help="Copies trained at once.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def attention(cpu: bool, rounds: int, seeds: int, as_json: bool) -> None:
    """A training step of element-wise attention, in units of a loop over its heads.

    Forward, loss, backward and Adam of the published configuration B on images of 28×28 pixels, in batches of 4096 (64
    on a CPU): ours as the engine trains it, the plain layer by torch.compile, and one head after the other, in turns.
    Every gradient is compared with the loop in float64 first: no time without a right one.

    \b
    nnarena bench attention
    nnarena bench attention --cpu --rounds 3
    """
    import torch

    from nnarena.bench.attention import BATCH, LOOP, MODEL, compare

    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    tell = _teller()
    rows = list(compare(device, rounds, seeds, tell))
    tell("")
    if as_json:
        _echo_json(rows, device, unit=LOOP, model=MODEL, batch=BATCH[device.type], rounds=rounds)
    else:
        _print(attention_table(rows, MODEL))


@bench.command()
@click.option("--cpu", is_flag=True, help="On the CPU, even where there is a GPU.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measurements of each.")
@click.option("--words", type=click.IntRange(1000), default=100_000, show_default=True, help="Words of the text.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def words(cpu: bool, rounds: int, words: int, as_json: bool) -> None:
    """Words a second of our word2vec, beside gensim's with the same settings.

    Skip-gram with 5 negatives, windows of at most 5 words, 100 dimensions and 20,000 words, one thread, measured in
    turns. Our gradient is compared with a loop over pairs in float64 first: no time without a right one.

    \b
    nnarena bench words
    nnarena bench words --cpu --rounds 9
    """
    import torch

    from nnarena.bench.words import PEER, compare

    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    tell = _teller()
    rows = list(compare(device, rounds, words, tell))
    tell("")
    if as_json:
        _echo_json(rows, device, unit=PEER, words=words, rounds=rounds)
        return
    table = _table("Reading a text by skip-gram", ["way", "words a second", "ratio", "gradient error", "note"])
    for row in rows:
        speed, error = _number(row.words_per_second, ",.0f"), _number(row.gradient_error, ".0e")
        table.add_row(row.way, speed, _number(row.ratio, ".2f"), error, row.note)
    _print(table)


def _echo_json(rows: list[Any], device: Any, unit: str, **facts: int | str | None) -> None:
    import torch

    where = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    content = {"device": where, "torch": str(torch.__version__), **facts, "unit": unit}
    click.echo(json.dumps({**content, "rows": [asdict(row) for row in rows]}, indent=1))


def _print(table: Table) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 180).print(table)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _teller() -> Any:
    """Says on stderr what is going on: in one line that changes on a terminal, a line each elsewhere."""

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)
        elif text:
            click.echo(text, err=True)

    return tell


def _table(title: str, columns: list[str]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(
            column, justify="left" if number == 0 or column in ("path", "plan", "optimizer", "note") else "right"
        )
    return table


def cpu_table(rows: list[Row]) -> Table:
    """A line a model: the fastest of our paths, and the plain loop beside it."""
    columns = ["model", PUBLISHED, "ours", "path", "part of it", "plain loop", "compiled in", "gradient error", "note"]
    table = _table("A training step on the CPU, in units of torch.nn.LSTM(2, 64)", columns)
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        best = min(mine, key=lambda row: (row.ratio is None, row.ratio or 0.0))
        loop = next((row for row in mine if row.path == "eager"), None)
        part = best.ratio / best.published if best.ratio and best.published else None
        notes = [f"{row.path}: {row.note}" for row in mine if row.note]
        table.add_row(
            name,
            _number(best.published, ".1f"),
            time_or_failed(best),
            best.path,
            _number(part, ".2f"),
            time_or_failed(loop) if loop else "",
            _number(best.compile_seconds, ".0f", " s"),
            _number(best.gradient_error, ".0e"),
            "; ".join(notes),
        )
    return table


def gpu_table(rows: list[Row]) -> Table:
    """A line for every path."""
    seeds = next((row.seeds for row in rows if row.seeds), None)
    columns = ["model", "path", "ours", "ms", "fwd + bwd", f"ms a seed, {seeds} at once", "fwd + bwd"]
    table = _table("A training step on the GPU, in units of torch.nn.LSTM(2, 64)", [*columns, *LAST])
    for row in rows:
        times = (row.seconds, row.passes, row.per_seed, row.passes_per_seed)
        table.add_row(
            row.model,
            row.path,
            time_or_failed(row),
            *(_number(None if seconds is None else 1e3 * seconds, ".3f") for seconds in times),
            _number(row.gradient_error, ".0e"),
            row.note,
        )
    return table


def kernels_table(rows: list[parts.Row]) -> Table:
    """A line for every model, number of seeds and plan; all times a seed."""
    columns = ["model", "seeds", "plan", "ms a seed", "loop", "loop back", "products", "rest", "kernels", *LAST]
    table = _table("Forward and backward on the GPU, ms a seed", columns)
    for row in rows:
        times = (row.seconds, row.forward, row.backward, row.products, row.rest)
        table.add_row(
            row.model,
            str(row.seeds),
            row.plan or "ours",
            *(_number(None if seconds is None else 1e3 * seconds / row.seeds, ".3f") for seconds in times),
            _number(row.launches, "d"),
            _number(row.gradient_error, ".0e"),
            row.note,
        )
    return table


def steps_table(rows: list[steps.Row], on_gpu: bool) -> Table:
    """A line for every optimizer on every network; on a GPU also as a CUDA graph."""
    graphs = ["in a graph", "ms"] if on_gpu else []
    table = _table(
        "A step, in units of torch's fused AdamW", ["network", "optimizer", "ratio", "ms", *graphs, "error", "note"]
    )
    for row in rows:
        times: list[str] = []
        for ratio, seconds in ((row.ratio, row.seconds), (row.graph, row.graph_seconds)):
            times += [_number(ratio, ".2f"), _number(None if seconds is None else 1e3 * seconds, ".3f")]
        times[0] = time_or_failed(row)
        table.add_row(row.network, row.optimizer, *times[: 4 if on_gpu else 2], _number(row.error, ".0e"), row.note)
    return table


def attention_table(rows: list[attention_ways.Row], model: str) -> Table:
    """A line for every way."""
    columns = ["way", "seeds", "ratio", "ms", "s an epoch", "kB an image", "compiled in", "gradient error", "note"]
    table = _table(f"A training step of {model}, in units of one head after the other", columns)
    for row in rows:
        table.add_row(
            row.way,
            str(row.seeds),
            time_or_failed(row),
            _number(None if row.seconds is None else 1e3 * row.seconds, ".3f"),
            _number(row.epoch, ".3f"),
            _number(None if row.memory is None else row.memory / 1e3, ".0f"),
            _number(row.compile_seconds, ".0f", " s"),
            _number(row.gradient_error, ".0e"),
            row.note,
        )
    return table


def time_or_failed(row: Row | steps.Row | attention_ways.Row) -> str:
    if row.ratio is not None:
        return f"{row.ratio:.2f}"
    return "" if row.note.startswith("skipped") else "failed"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
