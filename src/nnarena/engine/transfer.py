"""A model that begins with what another trial has learned, and may keep a part of it as it is.

    start     every tensor takes the numbers of the one that has its name and shape in the other trial. The head, which
              is all that depends on the number of outputs, keeps its own start values where that number is another one.
    freeze    what is not trained: it has no gradient, and the optimizer keeps nothing of it. A norm with running means,
              all of whose parameters are frozen, computes with these means in training too, and leaves them as they
              are. Dropout goes on.

Which tensors are the head is found out: the model is built for one output more, and what then has another shape belongs
to it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nnarena.core.errors import StoreError, Unfit
from nnarena.core.files import replacing
from nnarena.core.options import Value
from nnarena.core.start import digest_of, origin
from nnarena.core.trial import Trial
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL, START, TrialFolder
from nnarena.results.start import weights_at

BODY = "body"


def find_weights(trial: Trial) -> Path | None:
    """Where the weights lie that a trial starts with. None: it has none, or they are gone; its folder may know more."""
    start = trial.common("model").get("start")
    if start is None:
        return None
    place, digest = origin(start)
    try:
        path = weights_at(place)
    except StoreError:
        return None
    return path if digest_of(path) == digest else None


def keep_weights(trial: Trial, folder: TrialFolder) -> Path | None:
    """The same, in the trial's own folder: from here on it needs no other one.

    Where they are gone, another seed of this competitor may still have them.
    """
    start = trial.common("model").get("start")
    if start is None:
        return None
    place, digest = origin(start)
    own = folder.path / START
    found = find_weights(trial)
    known = [own, *([found] if found else []), *sorted(folder.path.parent.glob(f"*/{START}"))]
    path = next((path for path in known if path.is_file() and digest_of(path) == digest), None)
    if path is None:
        raise StoreError(f"start={place}: the weights {digest} are not there any more.")
    if path != own:
        own.unlink(missing_ok=True)
        copy_file(path, own)
    return own


def copy_file(path: Path, to: Path) -> None:
    """The same file under another name where that is possible: it is never written to, only replaced."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, to)
    except OSError:
        with path.open("rb") as source, replacing(to) as target:
            shutil.copyfileobj(source, target)


def begin(
    model: nn.Module, settings: Mapping[str, Value], weights: Path | None, build_wider: Callable[[], nn.Module]
) -> str:
    """Start and freeze as `settings` say. Returns what is worth a line; Unfit if it cannot be.

    `build_wider` makes the model for one output more.
    """
    head = functools.cache(lambda: find_head(model, build_wider()))
    said = ""
    if weights is not None:
        anew = take_weights(model, load(weights)[0], head, f"{origin(settings['start'])[0]}{whose(weights)}")
        said = f"the head starts anew, for another number of outputs: {', '.join(anew)}" if anew else ""
    if "freeze" in settings:
        freeze(model, settings["freeze"], head)
    return said


def whose(weights: Path) -> str:
    """` (resnet18 on digits_image)`: the finished trial in whose folder they lie; nothing for a copy of them."""
    folder = TrialFolder(weights.parent)
    if weights.name != MODEL or not folder.is_done:
        return ""
    result = folder.result()
    return f" ({result['model']} on {result['task']})"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def find_head(model: nn.Module, wider: nn.Module) -> list[str]:
    """The tensors that depend on the number of outputs, by name."""
    shapes = {name: tensor.shape for name, tensor in tensors_of(wider).items()}
    return [name for name, tensor in tensors_of(model).items() if shapes.get(name) != tensor.shape]


@torch.no_grad()
def take_weights(
    model: nn.Module, theirs: Mapping[str, Tensor], head: Callable[[], list[str]], place: str
) -> list[str]:
    """Copy all that fits. Returns the names of a head that does not; Unfit names the first other one that does not."""
    ours = tensors_of(model)
    derived = ours.keys() - model.state_dict().keys()  # the model made them itself
    shapes = {name: (tuple(tensor.shape), _shape(theirs.get(name))) for name, tensor in ours.items()}
    shapes |= {name: (None, _shape(tensor)) for name, tensor in theirs.items() if name not in ours}
    odd = [name for name, (here, there) in shapes.items() if here != there and name not in derived]
    anew = head() if odd else []
    wrong = next((name for name in odd if name not in anew), None)
    if wrong is not None:
        here, there = shapes[wrong]
        if here is None or there is None:
            has, lacks = ("it has", "the weights have") if there is None else ("the weights have", "it has")
            raise Unfit(f"start={place}: {has} {wrong}, and {lacks} not; they are of another model.")
        raise Unfit(f"start={place}: {wrong} has the shape {there} in the weights, and {here} in it.")
    for name, tensor in ours.items():
        if name not in anew and tuple(tensor.shape) == _shape(theirs.get(name)):
            tensor.copy_(theirs[name])
    return anew


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def freeze(model: nn.Module, what: str, head: Callable[[], list[str]]) -> None:
    """Take parameters out of training: all but the head, or those in whose names the pattern is found."""
    names = [name for name, param in model.named_parameters() if param.requires_grad]
    if what == BODY:
        kept = head()
        frozen = [name for name in names if name not in kept]
        if len(frozen) == len(names):
            raise Unfit("freeze=body cannot tell its head: nothing in it depends on the number of outputs.")
        if not frozen:
            raise Unfit("freeze=body freezes nothing: all of it depends on the number of outputs.")
    else:
        frozen = [name for name in names if re.search(what, name)]
        if not frozen:
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise Unfit(f"freeze={what!r} is in no parameter's name; they begin with {parts}.")
        if len(frozen) == len(names):
            raise Unfit(f"freeze={what!r} is in every parameter's name, so that nothing is left to train.")
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    for module_name, module in model.named_modules():
        if getattr(module, "running_mean", None) is None:
            continue
        own = [param.requires_grad for param in module.parameters(recurse=False)]
        alone = what == BODY or re.search(what, f"{module_name}.running_mean")
        if not any(own) if own else alone:
            _keep_still(module)


def _keep_still(module: nn.Module) -> None:
    """Whatever the rest of the model does, this part computes as if it were looked at only."""
    module.eval()
    module.train = lambda mode=True: module  # type: ignore[method-assign]
