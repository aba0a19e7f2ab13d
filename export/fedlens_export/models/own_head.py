"""Recording the head of a model: a graph of its FC layers and of the operations without weights between them."""

import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer, Proxy, TraceError
from torch.nn import functional

import fedlens_proto
from fedlens_export.errors import NotExportable
from fedlens_export.models.classified import Classified

DROPOUT = (
    "forward calls dropout as a function that is on in training; a step must be a function of its arguments alone, so "
    "leave it out, or make it an nn.Dropout layer, which export leaves out"
)
_DROPOUTS = (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
)
_RELUS = (functional.relu, torch.relu, "relu")
_PACKAGES = (Path(torch.__file__).parent, Path(__file__).parents[1], Path(fedlens_proto.__file__).parent)


@dataclass(frozen=True)
class Recorded:
    """A recorded head.

    Attributes:
        module: From features to logits.
        first: Name of the layer that takes the features.
        left_out: Names of the dropout layers that it lacks.
    """

    module: nn.Module
    first: str
    left_out: tuple[str, ...]


def record(model: nn.Module, layers: Mapping[str, nn.Linear], photos: Tensor) -> Recorded:
    """Record the model from the first of these layers on; the model itself does not change.

    Args:
        model: In evaluation mode.
        layers: The FC layers of the head, by name.
        photos: float32 [N, 3, H, W], an input of the model.

    Raises:
        NotExportable: The head has another input than the features or other weights than its layers', branches on
            values, or does not end in one of the layers.
    """
    tracer = _Tracer(model)
    with _symbols(model, layers, tracer):
        try:
            with torch.no_grad():
                logits = model(photos)
        except NotExportable:
            raise
        except Exception as error:  # a branch on values, a call that leaves torch, ...
            reason = "it branches on values" if isinstance(error, TraceError) else str(error).partition("\n")[0]
            raise NotExportable(
                f"the head cannot be recorded{at(error)}: {reason}; behind the features the model must apply "
                "the same operations of torch to all rows"
            ) from error
    if unused := [name for name in layers if name not in tracer.called]:
        raise NotExportable(f"layer {unused[0]!r} is named for the head, but the model does not call it")
    if not isinstance(logits, Proxy):
        raise NotExportable("the model's output does not depend on the head's layers")
    last = logits.node
    if last.op != "call_module":
        raise NotExportable(
            f"behind its last FC layer {tracer.called[-1]!r} the model applies {_name(last)!r}; it must end in that "
            "layer, because the losses take logits: leave the operation out"
        )
    tracer.graph.output((_before_relu(last), last))
    classifier = str(last.target)
    ordered = {name: layers[name] for name in sorted(layers, key=lambda name: name == classifier)}
    graph = fx.GraphModule(dict(ordered), tracer.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    _put_last(graph, classifier)
    kind = Head if _before_relu(last) is None else ClassifiedHead
    return Recorded(kind(graph), tracer.called[0], tuple(dict.fromkeys(tracer.left_out)))


class _Recording(nn.Module):
    """Layers with the names that they had in the model, and the recorded calls of them."""

    def __init__(self, graph: fx.GraphModule) -> None:
        nn.Module.__init__(self)
        for name, layer in graph.named_children():
            self.add_module(name, layer)
        # In a tuple, because as a module of the head it would give each tensor a second name.
        self.graphs = (graph,)


class Head(_Recording):
    """A recorded head."""

    def forward(self, features: Tensor) -> Tensor:
        """Logits, float32 [N, classes]."""
        logits: Tensor = self.graphs[0](features)[1]
        return logits


class ClassifiedHead(_Recording, Classified):
    """A recorded head whose classifier takes the ReLU of the features before it."""

    def forward(self, inputs: Tensor, *, with_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, float32 [N, classes]; with `with_features` the features, float32 [N, F], and the logits."""
        features, logits = self.graphs[0](inputs)
        return (features, logits) if with_features else logits


def is_dropout(function: Any) -> bool:
    """True if this is one of torch's dropout functions."""
    return any(function is known for known in _DROPOUTS)


def is_on(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if this call of a dropout function changes its input; by default, most do."""
    names = ("input", "p", "train" if function is torch.dropout else "training")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    default = function is not functional.alpha_dropout and function is not functional.feature_alpha_dropout
    return bool(given.get(names[2], default)) and given.get("p", 0.5) != 0


def place_of(error: BaseException) -> str:
    """The innermost line of the user's code in a traceback, as `file, line 7: text`; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(package) for package in _PACKAGES):
            text = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{path.name}, line {frame.lineno}: {text}"
    return ""


def at(error: BaseException) -> str:
    """The place in brackets, for the middle of a sentence; empty if there is none."""
    place = place_of(error)
    return f" (at {place})" if place else ""


class _Tracer(GraphAppendingTracer):
    """Records operations on symbols."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(fx.Graph())
        self.names = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        self.features: Tensor | None = None
        self.symbol: Proxy | None = None
        self.called: list[str] = []
        self.left_out: list[str] = []

    def create_arg(self, a: Any) -> Any:
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        if a is self.features and self.symbol is not None:
            return self.symbol.node
        if name := self.names.get(id(a)):
            raise NotExportable(
                f"the model uses {name!r} behind the features, but only weights of the head's FC layers can train and "
                "travel; use it before the first of these layers"
            )
        raise NotExportable(
            f"two branches meet behind layer {self.called[0]!r}: a tensor of shape {list(a.shape)} enters the head "
            "beside the features. Divide the model where one layer takes all of it, or make it a plain number"
        )

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        if kind == "call_function" and is_dropout(target):
            if is_on(target, args, kwargs):
                raise NotExportable(DROPOUT)
            return args[0]
        if "inplace" in kwargs:
            kwargs = {**kwargs, "inplace": False}  # it could overwrite the features that an objective compares
        return super().create_proxy(kind, target, args, kwargs, *rest, **options)

    def enter(self, name: str, rows: Any) -> Proxy:
        """Record a call of a layer of the head."""
        if isinstance(rows, Tensor):
            if self.features is None:
                self.features = rows
                self.symbol = self.create_proxy("placeholder", "features", (), {})
            elif rows is not self.features:
                raise NotExportable(
                    f"two branches meet in the head: layers {self.called[0]!r} and {name!r} take different tensors of "
                    "the backbone. Name only layers behind the place where the branches meet"
                )
            rows = self.symbol
        self.called.append(name)
        found: Proxy = self.create_proxy("call_module", name, (rows,), {})
        return found


@contextmanager
def _symbols(model: nn.Module, layers: Mapping[str, nn.Linear], tracer: _Tracer) -> Iterator[None]:
    """Inside, the head's layers return symbols, and other layers with weights refuse them."""

    def entering(name: str) -> Callable[[Any], Proxy]:
        return lambda input: tracer.enter(name, input)

    def passing(name: str) -> Callable[..., None]:
        def look(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if any(isinstance(value, Proxy) for value in (*args, *kwargs.values())):
                _pass(tracer, name, layer, layers)

        return look

    hooks = []
    try:
        for name, module in model.named_modules():
            if name in layers:
                module.forward = entering(name)
            elif name:
                hooks.append(module.register_forward_pre_hook(passing(name), with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers.values():
            vars(layer).pop("forward", None)


def _pass(tracer: _Tracer, name: str, layer: nn.Module, layers: Mapping[str, nn.Linear]) -> None:
    """Record or refuse a layer outside of the head whose input is a symbol."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        tracer.left_out.append(name)
        return
    if not [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
        return
    if isinstance(layer, nn.Linear):
        every = ",".join((*layers, name))
        raise NotExportable(f"FC layer {name!r} comes behind {tracer.called[0]!r}; name it too: --head {every}")
    raise NotExportable(
        f"layer {name!r} ({type(layer).__name__}) comes behind FC layer {tracer.called[0]!r} and has weights; of the "
        "layers in a head only FC layers may have weights: divide the model behind this layer, or leave it out"
    )


def _before_relu(last: fx.Node) -> fx.Node | None:
    """The input of the ReLU before the classifier; None if there is no ReLU."""
    given = last.args[0]
    if not isinstance(given, fx.Node) or given.op not in ("call_function", "call_method"):
        return None
    before = given.args[0] if any(given.target is relu or given.target == relu for relu in _RELUS) else None
    return before if isinstance(before, fx.Node) else None


def _put_last(module: nn.Module, name: str) -> None:
    """Move a layer to the end of its module, where a classifier stands."""
    for part in name.split("."):
        module._modules[part] = module._modules.pop(part)
        module = module.get_submodule(part)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
