"""list, show, status, report, rerun, doctor, data, completion."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nnarena.cli import doctor
from nnarena.core.components import catalogue
from nnarena.core.options import render
from nnarena.core.protocol import Protocol
from nnarena.core.study import built_in_studies
from nnarena.kernels import toolchain

SMALL = ("-t", "add[length=10]", "-m", "lstm", "--samples", "640", "--batch-size", "32", "--epochs", "2", "--jobs", "1")


@pytest.fixture
def store(arena, own: Path) -> Path:
    assert arena("run", *SMALL, "--seeds", "2", "--out", "R").code == 0
    return own / "R"


def test_list_names_everything(arena) -> None:
    text = arena("list").out
    for kind in ("model", "task", "optimizer"):
        for name, component in catalogue(kind).items():
            assert name in text and component.summary in text
    assert all(name in text for name in built_in_studies())
    listed = json.loads(arena("list", "--json").out)
    assert {item["name"] for item in listed["models"]} == set(catalogue("model"))
    assert {item["name"] for item in json.loads(arena("list", "tasks", "--json").out)} == set(catalogue("task"))
    assert {"digits", "mnist"} <= {item["name"] for item in listed["data"]}


@pytest.mark.parametrize("arguments", [["list"], ["report", "R", "--format", "md"], ["report", "R"], ["status", "R"]])
def test_looking_never_imports_torch(store: Path, arguments: list[str]) -> None:
    code = (
        "import sys; from nnarena.cli import _guarded; code = _guarded(sys.argv[1:], True); "
        "assert 'torch' not in sys.modules, 'torch was imported'; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_show_says_of_all_unfit_tasks_why_and_once(arena) -> None:
    text = " ".join(arena("show", "densenet121").out.split())
    assert text.count("it reads images (channels, height, width).") == 1 and "It does not fit activity, add," in text
    assert "it needs 29×29 pixels with stem=imagenet: set the task's size=32, or stem=cifar." in text
    assert "cifar10 6,964,106" in text


@pytest.mark.parametrize("kind", ["model", "task", "optimizer"])
def test_show_tells_of_every_component_its_options_and_reference(arena, kind: str) -> None:
    for name, component in catalogue(kind).items():
        lines = arena("show", name).out.splitlines()
        text = " ".join(" ".join(lines).split())
        assert component.summary in text and component.reference in text
        assert all(option.name in text and option.doc in text for option in component.options)
        assert all(render(choice) in text for option in component.options for choice in option.choices)
    shown = json.loads(arena("show", "gru", "--json").out)
    assert shown["parameters"]["walker"] == 25_137
    assert json.loads(arena("show", "gru[hidden_size=4]", "--json").out)["parameters"]["add"] == 3 * (4 * 6 + 8) + 5


def test_show_says_what_an_option_can_be_and_gathers_tasks_that_do_not_fit(arena) -> None:
    text = arena("show", "bidirectional").out
    assert "what recurs (lstm, gru, elman, ct_rnn, ct_gru, ode_lstm; default lstm)" in text
    text = arena("show", "encoder_decoder").out
    assert text.count("there is nothing to force") == 1 and "It does not fit activity, add, analogy," in text
    assert max(map(len, text.splitlines())) <= 120
    (cell,) = (
        option for option in json.loads(arena("show", "stacked", "--json").out)["options"] if option["name"] == "cell"
    )
    assert cell["choices"] == ["lstm", "gru", "elman", "ct_rnn", "ct_gru", "ode_lstm"]


def test_an_optimizer_and_a_study_of_one_name_are_both_shown(arena) -> None:
    text = arena("show", "orthadam").out
    assert "orthadam (optimizer)" in text and "orthadam (study)" in text
    assert [item["kind"] for item in json.loads(arena("show", "orthadam", "--json").out)] == ["optimizer", "study"]
    assert json.loads(arena("show", "poster", "--json").out)["kind"] == "study"
    text = arena("show", "initialisation").out
    assert "Protocol, 3 seeds: epochs=12, batch_size=32, stop_patience=12, watch_gradient=true; all else" in text
    assert json.loads(arena("show", "initialisation", "--json").out)["protocol"]["bagging"] is False


def test_show_lists_what_can_be_set(arena) -> None:
    text = " ".join(arena("show", "protocol").out.split())
    for option in Protocol.options():
        assert option.name in text and option.doc in text


def test_show_takes_what_is_ones_own_for_what_it_is(arena) -> None:
    kinds = {
        name: json.loads(arena("show", f"mine.py:{name}", "--json").out)["kind"]
        for name in ("MyCell", "MySGD", "parity")
    }
    assert kinds == {"MyCell": "model", "MySGD": "optimizer", "parity": "task"}


def test_status_counts_what_is_done_and_to_come(arena, store: Path) -> None:
    assert "2 trials: 2 done." in arena("status", store).out
    one = next((store / "trials").glob("*/*/*/*/result.json"))
    one.unlink()
    counts = json.loads(arena("status", store, "--json").out)
    assert counts["counts"] == {"done": 1, "pending": 1} and counts["seconds_left"] > 0
    assert "Nothing is running" in arena("status", store).out


def test_report_writes_every_format(arena, store: Path) -> None:
    assert arena("report", store).out.strip() == str(store / "report.html")
    assert (store / "report.html").read_text().startswith("<!doctype html>")
    assert "| lstm |" in arena("report", store, "--format", "md").out
    assert r"\toprule" in arena("report", store, "--format", "latex").out
    rows = list(csv.DictReader(io.StringIO(arena("report", store, "--format", "csv").out)))
    assert rows[0]["model"] == "lstm"
    assert arena("report", store, "--format", "json", "--output", "here.json").code == 0
    assert json.loads(Path("here.json").read_text())["study"] == "arena"


def test_a_trial_done_again_is_the_same_and_a_changed_one_is_not(arena, store: Path) -> None:
    folder = next((store / "trials").glob("*/*/*/*"))
    assert "agree to the last bit" in arena("rerun", store, folder.name[:8]).out
    result = json.loads((folder / "result.json").read_text())
    result["test"]["mse"] += 1e-12
    (folder / "result.json").write_text(json.dumps(result))
    printed = arena("rerun", store, folder.name)
    assert printed.code == 1 and "test:" in printed.out and "weights" not in printed.out


def test_doctor_tells_what_will_be_used(arena) -> None:
    found = json.loads(arena("doctor", "--json").out)
    assert found["Used"]["device"].startswith(("cpu", "cuda"))
    assert "digits" in found["Data"]["here"] and "mnist" in found["Data"]["not here"]
    assert "torch" in arena("doctor").out


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_doctor_says_what_drives_recurrent_layers(gpu: bool, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: object() if there else None)
    monkeypatch.setattr(toolchain, "compiler", lambda: "/usr/bin/g++" if there else None)
    said = doctor._recurrence(gpu)
    assert ("without" in said) == (not there)
    assert ("Triton" in said) == gpu and ("C++ compiler" in said) == (not gpu and not there)


def test_doctor_says_whether_processes_can_share_a_gpu(arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/pipes")
    assert json.loads(arena("doctor", "--json").out)["Machine"]["NVIDIA MPS"] == "your daemon in /pipes"
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setenv("PATH", "/nowhere")
    assert json.loads(arena("doctor", "--json").out)["Machine"]["NVIDIA MPS"].startswith("none: there is no nvidia-")
    assert doctor._jobs(8, False, None) == "8, one a core"
    assert doctor._jobs(1, True, None).startswith("1: without MPS")
    assert doctor._jobs(4, True, "your daemon in /pipes") == "up to 4 on the GPU at once, through your daemon in /pipes"


def test_doctor_finds_the_compiler_that_is_asked_for(arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++-19")
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: f"/opt/{name}")
    monkeypatch.setattr(toolchain, "compiler", toolchain.compiler.__wrapped__)  # what it found before does not count
    found = json.loads(arena("doctor", "--json").out)
    assert found["Machine"]["C++ compiler"] == "/opt/clang++-19"
    assert "triton" in found["Software"] and found["Used"]["recurrence"]


def test_data_list_tells_what_is_here(arena) -> None:
    sets = {item["name"]: item["present"] for item in json.loads(arena("data", "list", "--json").out)}
    assert sets["digits"] and not sets["mnist"]
    printed = arena("data", "get", "digits")
    assert printed.code == 0 and "digits.npz" in printed.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(arena, shell: str) -> None:
    assert "_NNARENA_COMPLETE" in arena("completion", shell).out


def test_bash_completes_names_after_a_comma(process) -> None:
    def complete(words: str, place: int) -> list[str]:
        printed = process(_NNARENA_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(place))
        return [line.split(",", 1)[1] for line in printed.out.splitlines()]

    assert complete("nnarena run -m lstm,gr", 3) == ["lstm,gru"]
    assert complete("nnarena run quick", 2) == ["quickstart"]
    assert "report" in complete("nnarena rep", 1)
