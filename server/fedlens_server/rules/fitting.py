"""Methods that rules fit: those whose clients share what a rule looks at or stands for."""

import json

from fedlens_server.planning.method import MethodDefinition, Shared
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

_NEEDED = {
    "dp": (Shared.ONLY_MEAN, "is not one mean of one model that all are sent"),
    "median": (Shared.MEAN, "is not one mean of one model that all are sent"),
    "trimmed_mean": (Shared.MEAN, "is not one mean of one model that all are sent"),
    "krum": (Shared.MODEL, "does not send one model to all, so that no distance between its updates means anything"),
}
_MIDDLES = ("median", "trimmed_mean")


def need_fitting(settings: TaskSettings, method: MethodDefinition) -> None:
    """Require of a task's method what its rules need.

    Raises:
        SettingsError: A rule does not fit the method; the text says why.
    """
    for key, (needed, why) in _NEEDED.items():
        value = getattr(settings, key)
        if value and method.shares < needed and not (method.middles and key in _MIDDLES):
            found = "an object" if key == "dp" else json.dumps(value)
            raise SettingsError(key, f"{found} with method {settings.method!r}, which {why}", "left out")
