"""The objects of one kind as a cluster has them now: a list, then its changes, by the watch API.

In:  a KubeApi, a kind, a selector. Out: Watch: the present objects, and an event that is set by each change.
A connection that the server ends is continued at the last version. Where the server does not know that version any
more (410 Gone), and after an error, all objects are listed again. Each wait for data has a limit of time.
Source: kubernetes.io/docs/reference/using-api/api-concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.runtimes.clusterkind import UnreachableError
from heddle_plugins.kubernetes.api import ForbiddenError, GoneError, KubeApi

_FIRST_S: Final = 45.0  # for the first list: more than a request may take
_AGAIN_S: Final = 0.5  # between the starts of two connections
_GONE: Final = 410


class Watch:
    """Follows in a thread, for a with block. selector: of labels. The thread ends some seconds after the block.

    changed: is set by each change, and by an error; several can have one in common. optional: where this user may not
    see objects, there are none.
    """

    def __init__(
        self, api: KubeApi, kind: str, selector: str = "", *, changed: threading.Event | None = None,
        optional: bool = False,
    ) -> None:  # fmt: skip
        self._api, self._kind, self._selector = api, kind, selector
        self._changed, self._optional = changed or threading.Event(), optional
        self._listed, self._ended = threading.Event(), threading.Event()
        self._state: dict[str, dict[str, Any]] | MachineError = {}

    def __enter__(self) -> Watch:
        threading.Thread(target=self._follow, name=f"watch {self._kind}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def now(self) -> list[dict[str, Any]]:
        """All objects, when the first list has come. MachineError while the API refuses, or does not answer."""
        if not self._listed.wait(_FIRST_S):
            why = f"has not listed {self._kind} objects within {_FIRST_S:g} s"
            raise UnreachableError(Problem("kubernetes", self._api.server, why))
        found = self._state
        if isinstance(found, MachineError):
            raise found
        return list(found.values())

    def wait(self, seconds: float) -> None:
        """Until something has changed since the last call, at most so long."""
        self._changed.wait(seconds)
        self._changed.clear()

    def _follow(self) -> None:
        version = ""
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                version = version or self._list()
                for change in self._api.changes(self._kind, version, self._selector):
                    version = self._take(change)
                    if self._ended.is_set():
                        return
            except GoneError:
                version = ""
            except MachineError as error:
                if self._optional and isinstance(error, ForbiddenError):
                    self._set({})
                    return
                version = self._failed(error)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                why = f"sends {self._kind} objects that cannot be read: {str(error)[:200]}"
                version = self._failed(UnreachableError(Problem("kubernetes", self._api.server, why)))
            self._ended.wait(max(0.0, began + _AGAIN_S - time.monotonic()))

    def _list(self) -> str:
        """List all objects; their version."""
        objects, version = self._api.listed(self._kind, self._selector)
        self._set({str(each["metadata"]["name"]): each for each in objects})
        return version

    def _take(self, change: Mapping[str, Any]) -> str:
        """Apply a line of a watch; its version."""
        found = change["object"]
        if change["type"] == "ERROR":
            if found.get("code") == _GONE:
                raise GoneError(Problem("kubernetes", self._kind, "is listed again"))
            why = f"ends a watch: {str(found.get('message'))[:300]}"
            raise UnreachableError(Problem("kubernetes", self._api.server, why))
        metadata = found["metadata"]
        if change["type"] != "BOOKMARK":
            assert isinstance(self._state, dict)  # noqa: S101  (of the list before)
            others = {name: each for name, each in self._state.items() if name != metadata["name"]}
            self._set(others if change["type"] == "DELETED" else {**others, str(metadata["name"]): found})
        return str(metadata["resourceVersion"])

    def _set(self, state: dict[str, dict[str, Any]] | MachineError) -> None:
        self._state = state
        self._listed.set()
        self._changed.set()

    def _failed(self, error: MachineError) -> str:
        """Raise an error where the objects are read, until they are listed again."""
        self._set(error)
        return ""
