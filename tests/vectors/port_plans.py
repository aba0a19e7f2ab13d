"""Local plans by a second implementation, from the vectors' README alone; see `port.py`."""

import struct
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import exp, log, prod
from typing import Any

from tests.vectors.port import F16, F32, INT8, encode_blob, f32, order

Tensors = dict[str, tuple[list[int], list[float]]]
"""Shape and elements by name."""
_CODECS = {"CODEC_FLOAT32": F32, "CODEC_FLOAT16": F16, "CODEC_INT8": INT8}
_BATCHES = {"step": 4, "noisy": 4, "distil": 2, "sums": 3}
_FEATURES = 3


def tensors_of(forms: Mapping[str, Any]) -> Tensors:
    """Tensors as the vectors write them, float32 only."""
    return {
        name: (form["shape"], list(struct.unpack(f"<{prod(form['shape'])}f", bytes.fromhex(form["hex"]))))
        for name, form in forms.items()
    }


def uniforms(seed: bytes, training: int, step: int, slot: int, count: int) -> list[float]:
    """Random numbers of a training step."""
    head = b"fedlens/step/v1" + seed + struct.pack("<III", training, step, slot)
    stream = b"".join(sha256(head + struct.pack("<I", block)).digest() for block in range(-(-count // 8)))
    return [(word >> 8) / 2**24 for word in struct.unpack_from(f"<{count}I", stream)]


def is_validation(photo: bytes, percent: int) -> bool:
    """Whether a photo is set apart."""
    return int.from_bytes(sha256(b"fedlens/validation/v1" + photo).digest()[:8], "big") % 100 < percent


@dataclass
class Photos:
    """Rows with their features and labels."""

    entries: list[tuple[bytes, int]]
    features: list[list[float]]
    labels: list[int]

    def at(self, indices: Sequence[int]) -> "Photos":
        """These rows."""
        chosen = [(self.entries[i], self.features[i], self.labels[i]) for i in indices]
        return Photos([c[0] for c in chosen], [c[1] for c in chosen], [c[2] for c in chosen])


def photos_of(form: Mapping[str, Any]) -> Photos:
    """Photos as the vectors write them."""
    (_, values) = tensors_of({"x": form["features"]})["x"]
    rows = [values[i : i + _FEATURES] for i in range(0, len(values), _FEATURES)]
    labels = struct.unpack(f"<{len(rows)}q", bytes.fromhex(form["labels"]["hex"]))
    return Photos([(bytes.fromhex(e["photo"]), e["copy"]) for e in form["photos"]], rows, list(labels))


@dataclass
class Run:
    """One run of a plan; what comes of it is in the fields."""

    vectors: Mapping[str, Any]
    case: Mapping[str, Any]
    batches: list[list[list[int]]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    values: dict[str, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Carry out every instruction."""
        assignment = self.case["assignment"]
        self.plan = assignment["local_plan"]
        self.manifest = self.vectors["manifests"][self.case["manifest"]]
        self.filled = self.manifest["last_batch"] == "LAST_BATCH_FILLED"
        self.seed = b64decode(assignment["seed"])
        self.sets = {
            each["name"]: tensors_of(self.vectors["sets"][each["name"]]) for each in assignment.get("sets", [])
        }
        self.sets["initial"] = {"fc.bias": ([2], [0.0] * 2), "fc.weight": ([2, 3], [0.0] * 6)}
        self.state = {name: tensors_of(forms) for name, forms in self.vectors["state"].items()}
        mine = photos_of(self.vectors["train"]).at(range(self.case["photos"]))
        percent = self.plan.get("validation_percent", 0)
        apart = [i for i, (photo, _) in enumerate(mine.entries) if is_validation(photo, percent)]
        divided = len(mine.labels) >= 5 and 0 < len(apart) < len(mine.labels)
        train = mine.at([i for i in range(len(mine.labels)) if i not in apart]) if divided else mine
        self.rows = {
            "ROWS_TRAIN": train,
            "ROWS_VALIDATION": mine.at(apart) if divided else mine,
            "ROWS_PUBLIC": photos_of(self.vectors["public"]),
        }
        self.counts = [train.labels.count(c) for c in range(2)]
        for instruction in self.plan.get("instructions", []):
            kind = next(key for key in ("assemble", "train", "derive") if key in instruction)
            self.values[instruction["value"]] = getattr(self, kind)(instruction[kind])

    def assemble(self, given: Mapping[str, Any]) -> Tensors:
        """Weights by rules."""
        made: Tensors = {}
        for rule in given["rules"]:
            names = rule.get("tensors", {}).get("names", ["fc.bias", "fc.weight"])
            wanted = {name: self.sets["initial"][name][0] for name in names if name not in made}
            found = self.take(rule["source"], wanted)
            assert found is not None
            made |= {name: found[name] for name in wanted}
        return made

    def take(self, source: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> Tensors | None:
        """The tensors of a source; None: it is not there."""
        state = self.state.get(source.get("state", ""), {})
        if all(name in state and state[name][0] == shape for name, shape in shapes.items()):
            return state
        if "value" in source:
            return self.values[source["value"]]
        if "label_counts" in source:
            return {"label_counts": ([2], [float(count) for count in self.counts])}
        return self.sets.get(source.get("download", ""))

    def bound(self, name: str, bindings: Sequence[Mapping[str, Any]]) -> dict[str, Tensors]:
        """The references of a program that are there."""
        program = next(each for each in self.manifest["programs"] if each["name"] == name)
        shapes: dict[str, dict[str, list[int]]] = {}
        for slot in program["inputs"]:
            if slot["kind"] in ("SLOT_KIND_REFERENCE", "SLOT_KIND_TARGET"):
                reference, _, tensor = slot["name"].partition("/")
                shape = [int(size) for size in slot.get("shape", [])]
                if slot["kind"] == "SLOT_KIND_TARGET":
                    shape[0] = len(self.rows["ROWS_PUBLIC"].labels)
                shapes.setdefault(reference, {})[tensor] = shape
        found = {each["reference"]: self.take(each["source"], shapes[each["reference"]]) for each in bindings}
        return {reference: tensors for reference, tensors in found.items() if tensors is not None}

    def scalar(self, given: Mapping[str, Any], name: str) -> float:
        """A hyper-parameter."""
        for value in given.get("hyper_values", []):
            if value["name"] == name:
                return f32(value.get("value", 0.0))
        known = next(each for each in self.manifest["hyper_parameters"] if each["name"] == name)
        return f32(known.get("default_value", 0.0))

    def steps(self, given: Mapping[str, Any], rows: Photos, number: int) -> Iterator[list[int]]:
        """The rows of each step of a training."""
        batch, count = _BATCHES[given["program"]], len(rows.labels)
        left = given["steps"] if "steps" in given else given["epochs"] * -(-count // batch)
        epoch = 0
        while left:
            placed = order(self.seed, number, epoch, rows.entries)
            for first in range(0, count, batch)[:left]:
                chosen = placed[first : first + batch]
                while self.filled and len(chosen) < batch:
                    chosen = [*chosen, *placed][:batch]
                yield chosen
                left -= 1
            epoch += 1

    def train(self, given: Mapping[str, Any]) -> Tensors:
        """Weights by a training."""
        name, rows = given["program"], self.rows[given["rows"]]
        references = self.bound(name, given.get("bindings", []))
        trained = {key: (shape, list(values)) for key, (shape, values) in self.values[given["start"]].items()}
        bias, weight = trained["fc.bias"][1], trained["fc.weight"][1]
        lr, number = self.scalar(given, "lr"), len(self.batches)
        self.batches.append([])
        for step, batch in enumerate(self.steps(given, rows, number)):
            self.batches[-1].append(batch)
            drawn = uniforms(self.seed, number, step, 0, 8) if name == "noisy" else []
            for place, row in enumerate(batch):
                c, x, by_bias, by = rows.labels[row], rows.features[row], lr, lr
                if name == "noisy":
                    by_bias = f32(f32(lr * drawn[2 * place]) * references["counts"]["label_counts"][1][c])
                    by = f32(lr * drawn[2 * place + 1])
                if name == "distil":
                    c, by = 0, f32(lr * references["teacher"]["score"][1][row])
                    by_bias = by
                bias[c] = f32(bias[c] + by_bias)
                for j in range(_FEATURES):
                    at = c * _FEATURES + j
                    weight[at] = f32(weight[at] + f32(by * x[j]))
            mu = self.scalar(given, "mu") if name == "step" else 0.0
            if mu and "global" in references:
                for key, (_, values) in trained.items():
                    pull = references["global"][key][1]
                    for i, value in enumerate(values):
                        values[i] = f32(value - f32(mu * f32(value - pull[i])))
            self.losses.append(bias[0])
        return trained

    def derive(self, given: Mapping[str, Any]) -> Tensors:
        """A table, or weights, by a program."""
        name = given["program"]
        references = self.bound(name, given.get("bindings", []))
        if name == "sums":
            rows, count, total = self.rows[given["rows"]], 0.0, [0.0] * _FEATURES
            for x, c in zip(rows.features, rows.labels, strict=True):
                count += 1
                factor = references["model"]["fc.bias"][1][c]
                total = [f32(t + f32(v * factor)) for t, v in zip(total, x, strict=True)]
            return {"count": ([], [count]), "sum": ([_FEATURES], total)}
        if name == "mean":
            sums = references["sums"]
            mean = [f32(value / sums["count"][1][0]) for value in sums["sum"][1]]
            if "previous" in references:
                stay, before = self.scalar(given, "stay"), references["previous"]["mean"][1]
                mean = [f32(m + f32(stay * f32(p - m))) for m, p in zip(mean, before, strict=True)]
            return {"mean": ([_FEATURES], mean)}
        if name == "scores":
            rows = self.rows[given["rows"]]
            return {"score": ([len(rows.labels)], [_score(references["model"], x, 0) for x in rows.features])}
        mixed = {key: (shape, [0.0] * len(values)) for key, (shape, values) in self.sets["initial"].items()}
        for candidate in sorted(references):
            for key, (_, values) in mixed.items():
                for i, value in enumerate(references[candidate][key][1]):
                    values[i] = f32(values[i] + f32(0.5 * value))
        return mixed

    def evaluation(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The sums of an evaluation."""
        test = photos_of(self.vectors["test"])
        name, model = given.get("program", "predict"), self.values[given["value"]]
        references = self.bound(name, given.get("bindings", []))
        loss, confusion = 0.0, [0] * 4
        for x, label in zip(test.features, test.labels, strict=True):
            logits = [_score(model, x, c) for c in range(2)]
            if name == "nearest":
                logits = [f32(logit + references["means"]["mean"][1][c]) for c, logit in enumerate(logits)]
            loss += log(sum(exp(logit - max(logits)) for logit in logits)) - (logits[label] - max(logits))
            confusion[2 * label + logits.index(max(logits))] += 1
        return {"label": given["label"], "count": len(test.labels), "loss": loss, "confusion": confusion}

    def blob(self, given: Mapping[str, Any]) -> bytes:
        """The blob of an upload."""
        tensors = self.chosen(given)
        base = b""
        if "base" in given:
            before = self.sets[given["base"]]
            base = sha256(_encoded(before, F32)).digest()
            tensors = {
                name: (shape, [f32(v - b) for v, b in zip(values, before[name][1], strict=True)])
                for name, (shape, values) in tensors.items()
            }
        return _encoded(tensors, _CODECS[given["codec"]], base)

    def chosen(self, given: Mapping[str, Any]) -> Tensors:
        """The tensors of a value that a result takes."""
        value = self.values[given["value"]]
        names = given.get("tensors", {}).get("names", list(value))
        return {name: value[name] for name in names}


def _encoded(tensors: Tensors, codec: int, base: bytes = b"") -> bytes:
    return encode_blob(
        {name: ("float32", shape, struct.pack(f"<{len(v)}f", *v)) for name, (shape, v) in tensors.items()}, codec, base
    )


def _score(model: Tensors, x: Sequence[float], c: int) -> float:
    found = model["fc.bias"][1][c]
    for j in range(_FEATURES):
        found = f32(found + f32(x[j] * model["fc.weight"][1][c * _FEATURES + j]))
    return found
