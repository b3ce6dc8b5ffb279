"""The API of Kubernetes over HTTPS with a token: what tests do beside Heddle, without a client that Heddle uses."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ANSWER_S: Final = 30.0
_MERGE: Final = "application/merge-patch+json"


@dataclass(frozen=True)
class Api:
    """Access of one user. authority: the file of the server's certificates."""

    server: str
    authority: Path
    token: str

    def ask(self, method: str, path: str, body: object = None, content: str = "application/json") -> str:
        """One request; its answer as text. urllib.error.HTTPError for a refusal."""
        request = urllib.request.Request(
            f"{self.server}{path}", method=method, data=None if body is None else json.dumps(body).encode()
        )
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", content)
        context = ssl.create_default_context(cafile=str(self.authority))
        with urllib.request.urlopen(request, timeout=_ANSWER_S, context=context) as answer:
            return str(answer.read().decode(errors="replace"))

    def get(self, path: str) -> Any:
        return json.loads(self.ask("GET", path))

    def post(self, path: str, body: object) -> Any:
        return json.loads(self.ask("POST", path, body))

    def delete(self, path: str) -> None:
        """Delete an object; nothing if there is none."""
        try:
            self.ask("DELETE", path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def patch(self, path: str, body: object) -> Any:
        return json.loads(self.ask("PATCH", path, body, _MERGE))

    def pods(self, namespace: str = "default") -> dict[str, Any]:
        """Name -> pod."""
        return {
            each["metadata"]["name"]: each for each in self.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        }  # fmt: skip

    def ready_nodes(self) -> list[str]:
        """The names of the nodes whose kubelet says that it can run pods, and is heard of."""
        found = []
        for node in self.get("/api/v1/nodes")["items"]:
            conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
            found += [node["metadata"]["name"]] if conditions.get("Ready") == "True" else []
        return found

    def drain(self, node: str) -> list[str]:
        """Let no new pod start on a node, and evict all that run there, as `kubectl drain`; the names of the pods."""
        self.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        evicted = []
        for pod in self.get(f"/api/v1/pods?fieldSelector=spec.nodeName={node}")["items"]:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            self.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)
            evicted.append(name)
        return evicted

    def uncordon(self, node: str) -> None:
        """Let pods start on a node again."""
        self.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})


def eventually(what: str, done: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true result of `done`; AssertionError after `seconds`. A server that does not answer is asked again."""
    end = time.monotonic() + seconds
    while True:
        found: Any = None
        with suppress(urllib.error.URLError, OSError):
            found = done()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
