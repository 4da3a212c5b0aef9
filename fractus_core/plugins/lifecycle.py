"""The lifecycle hooks, called so that no plugin can end a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pluggy

from fractus_core.contract import Step
from fractus_core.errors import describe
from fractus_core.plugins.records import Plugin, Problem


class Lifecycle:
    """Calls the lifecycle hooks of every plugin.

    One that raises is reported on stderr the first time, and called again the next: what failed may
    be a network that comes back.
    """

    def __init__(self, manager: pluggy.PluginManager, plugins: Mapping[str, Plugin]) -> None:
        self._manager = manager
        self._plugins = plugins
        self._callers: dict[str, dict[str, pluggy.HookCaller]] = {}
        self._reported: set[tuple[str, str]] = set()

    def fractus_run_start(self, directory: Path, config: Mapping[str, Any]) -> None:
        self._call("fractus_run_start", directory=directory, config=config)

    def fractus_step(self, directory: Path, number: int, step: Step) -> None:
        self._call("fractus_step", directory=directory, number=number, step=step)

    def fractus_run_end(self, directory: Path, summary: Mapping[str, Any]) -> None:
        self._call("fractus_run_end", directory=directory, summary=summary)

    def _call(self, hook: str, **arguments: Any) -> None:
        if hook not in self._callers:
            self._callers[hook] = callers(self._manager, hook)
        for name, caller in self._callers[hook].items():
            try:
                caller(**arguments)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit too: the run is not the plugin's to end
                if (hook, name) not in self._reported:
                    self._reported.add((hook, name))
                    text = f"failed in {hook}, told this once: {describe(error)}"
                    print(f"fractus: {Problem(self._plugins[name], text)}", file=sys.stderr)


def callers(manager: pluggy.PluginManager, hook: str) -> dict[str, pluggy.HookCaller]:
    """For each plugin that implements `hook`, in calling order, a caller of its alone."""
    everyone = manager.get_plugins()
    return {
        implementation.plugin_name: manager.subset_hook_caller(
            hook, [plugin for plugin in everyone if plugin is not implementation.plugin]
        )
        for implementation in reversed(getattr(manager.hook, hook).get_hookimpls())
    }
