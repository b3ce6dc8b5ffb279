"""The API of a cluster: objects as plain data, by the official client, with its errors as Problems.

In:  a KubeTarget. Out: KubeApi. Objects are dicts as in manifests; nothing is cached.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from heddle.base import extras, state
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.untrusted import LINE_BYTES, parsed
from heddle.runtimes.clusterkind import UnreachableError
from heddle_plugins.kubernetes.target import NAMESPACE, KubeTarget, checked

MANAGER: Final = "heddle"  # of the fields that server-side apply sets
_SECONDS: Final = (10.0, 30.0)  # to connect, and to get an answer
_WATCH_S: Final = 30  # then the server ends a watch
_IN_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# Kind -> where its objects are, and its name there.
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
}
_APPLY: Final = "application/apply-patch+yaml"


class KubeApi:
    """One namespace of a cluster. MachineError when it cannot be reached or refuses; InputError for a wrong context."""

    def __init__(self, target: KubeTarget) -> None:
        extras.require(extras.KUBERNETES)
        target = checked(target)
        self.settings, context, namespace = _connected(target.context)
        self.target = replace(target, context=context, namespace=target.namespace or namespace or NAMESPACE)
        self.server = str(self.settings.host)

    @cached_property
    def _connections(self) -> Any:
        return client().connections(self.settings)

    def bearer(self) -> dict[str, str]:
        """The header with the token of this context; none where it has a certificate."""
        found = self.settings.auth_settings().get("BearerToken")
        return {} if found is None else {"authorization": found["value"]}

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object; None when there is none of that name."""
        return self._call("GET", self.path(kind, name), f"read {kind} {name}", absent=True)

    def all(self, kind: str, selector: str = "", *, fields: str = "") -> list[dict[str, Any]]:
        """All objects of a kind. selector: of their labels; fields: of their fields."""
        return self.listed(kind, selector, fields=fields)[0]

    def listed(self, kind: str, selector: str = "", *, fields: str = "") -> tuple[list[dict[str, Any]], str]:
        """The same, and the version of the list, from which `changes` goes on."""
        pairs = {"labelSelector": selector, "fieldSelector": fields}
        query = [(key, value) for key, value in pairs.items() if value]
        answer = self._call("GET", self.path(kind), f"list {KINDS[kind][1]}", query=query) or {}
        return list(answer.get("items") or []), str((answer.get("metadata") or {}).get("resourceVersion") or "")

    def changes(self, kind: str, version: str, selector: str = "") -> Iterator[dict[str, Any]]:
        """The lines of a watch: {"type": ..., "object": ...}, until the connection ends, which is no error.

        GoneError: the server does not know the version any more. ValueError for a line that is no JSON, or too long.
        """
        query = [("watch", "true"), ("resourceVersion", version), ("allowWatchBookmarks", "true")]
        query += [("timeoutSeconds", str(_WATCH_S)), *([("labelSelector", selector)] if selector else [])]
        with self.errors(f"watch {KINDS[kind][1]}"):
            stream = self._connections.request(
                "GET", self.server + self.path(kind), query_params=query, headers=self.bearer(),
                _preload_content=False, _request_timeout=(_SECONDS[0], _WATCH_S + _SECONDS[0]),
            )  # fmt: skip
        rest = b""
        with closing(stream), suppress(UnreachableError), self.errors(f"watch {KINDS[kind][1]}"):
            for piece in stream.stream(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(parsed, lines)
                if len(rest) > LINE_BYTES:
                    raise ValueError(f"a line of more than {LINE_BYTES} bytes")

    def create(self, manifest: Mapping[str, Any], *, trial: bool = False) -> dict[str, Any] | None:
        """Create an object; None when there is one of its name. trial: only ask whether it would be accepted."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        query = [("fieldManager", MANAGER), *([("dryRun", "All")] if trial else [])]
        try:
            return self._call("POST", self.path(kind), f"create {kind} {name}", query=query, body=manifest)
        except ConflictError:
            return None

    def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or change it to what the manifest says (server-side apply).

        ConflictError when the manifest has a `uid`, and the object of that name has another one.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        query = [("fieldManager", MANAGER), ("force", "true")]
        path, what = self.path(kind, name), f"create {kind} {name}"
        return self._call("PATCH", path, what, query=query, body=manifest, content=_APPLY) or {}

    def delete(self, kind: str, name: str, *, grace_s: int | None = None) -> bool:
        """Delete an object; False when there was none. grace_s: until a pod is killed; None: as its manifest says."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        return self._call("DELETE", self.path(kind, name), f"delete {kind} {name}", body=body, absent=True) is not None

    def read(self, path: str, what: str) -> dict[str, Any] | None:
        """What is at a path; None when nothing is there, or this user may not read it."""
        try:
            return self._call("GET", path, what, absent=True)
        except ForbiddenError:
            return None

    def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether this user may do that in the namespace (SelfSubjectAccessReview)."""
        asked = {"namespace": self.target.namespace, "verb": verb, "group": group, "resource": resource}
        spec = {"resourceAttributes": asked | ({"subresource": subresource} if subresource else {})}
        path, kind = "/apis/authorization.k8s.io/v1", "SelfSubjectAccessReview"
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = self._call("POST", f"{path}/selfsubjectaccessreviews", f"create {kind}", body=body)
        return bool((answer or {}).get("status", {}).get("allowed"))

    def rights(self) -> list[dict[str, Any]]:
        """Rules that allow this user something in the namespace, as of a Role. Not all where a webhook decides."""
        path, kind = "/apis/authorization.k8s.io/v1", "SelfSubjectRulesReview"
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"namespace": self.target.namespace}}
        answer = self._call("POST", f"{path}/selfsubjectrulesreviews", f"create {kind}", body=body)
        return list((answer or {}).get("status", {}).get("resourceRules") or [])

    def path(self, kind: str, name: str = "") -> str:
        """Where the objects of a kind are, or one of them."""
        prefix, plural = KINDS[kind]
        return f"{prefix}/namespaces/{self.target.namespace}/{plural}" + (f"/{name}" if name else "")

    def _call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
        absent: bool = False,
    ) -> dict[str, Any] | None:
        with self.errors(what, absent=absent):
            headers = {"Accept": "application/json", "Content-Type": content, **self.bearer()}
            said = self._connections.request(
                method, self.server + path, query_params=query, headers=headers, body=body, _request_timeout=_SECONDS
            )
            answer: dict[str, Any] = json.loads(said.data)
            return answer
        return None

    @contextmanager
    def errors(self, what: str, *, absent: bool = False) -> Iterator[None]:
        """Errors of the client in a with block as ours. absent: an object that does not exist ends it without one."""
        try:
            yield
        except client().error as error:
            problem = refused(error, what, self.server, self.target.namespace)
            if error.status == 404 and absent and not problem.what.startswith("namespace "):
                return
            raise _KINDS_OF_ERROR.get(error.status, MachineError)(problem) from None
        except OSError as error:
            raise UnreachableError(unreachable(error, self.server)) from None
        except Exception as error:  # urllib3's errors have no base outside it: HTTPError
            if type(error).__module__.partition(".")[0] not in ("urllib3", "websocket", "kubernetes"):
                raise
            raise UnreachableError(unreachable(error, self.server)) from None


class ForbiddenError(MachineError):
    """This user may not do that."""


class GoneError(MachineError):
    """The version from which a watch would go on is too old."""


class ConflictError(MachineError):
    """There is another object of that name."""


_KINDS_OF_ERROR: Final[Mapping[int, type[MachineError]]] = {
    401: ForbiddenError, 403: ForbiddenError, 409: ConflictError, 410: GoneError,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """What is used of the official client. connections: makes those of settings; error: a status of HTTP."""

    settings: Any
    config: Any
    connections: Callable[[Any], Any]
    error: type[Any]
    websocket: Callable[..., Any]


@cache
def client() -> Client:
    """The client without its 700 classes of objects: they take a quarter of a second and 32 MB in each command.

    The `__init__` of two of its packages imports them, so both are replaced while the parts are imported.
    """
    extras.require(extras.KUBERNETES)
    with _without_models():
        from kubernetes import config
        from kubernetes.client.configuration import Configuration
        from kubernetes.client.exceptions import ApiException
        from kubernetes.client.rest import RESTClientObject
        from kubernetes.stream.ws_client import create_websocket
    return Client(Configuration, config, RESTClientObject, ApiException, create_websocket)


@contextmanager
def _without_models() -> Iterator[None]:
    if "kubernetes.client" in sys.modules:  # this program uses all of it
        yield
        return
    found = find_spec("kubernetes")
    assert found is not None and found.origin is not None  # noqa: S101  (it is installed)
    root = Path(found.origin).parent
    places = {"kubernetes": root, "kubernetes.client": root / "client"}
    for name, place in places.items():
        package = ModuleType(name)
        package.__path__, package.__spec__ = [str(place)], ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
    try:
        from kubernetes.client.configuration import Configuration

        vars(sys.modules["kubernetes.client"]).update(Configuration=Configuration, ApiClient=object)
        yield
    finally:
        for name in places:
            del sys.modules[name]


def kubeconfig() -> str:
    """The file, or several with colons: $KUBECONFIG, else that of the user who called sudo."""
    return os.environ.get("KUBECONFIG") or str(state.caller_home() / ".kube/config")


def _connected(context: str) -> tuple[Any, str, str]:
    """The client's settings for a context; the context's name and namespace."""
    config = client().config
    settings = type.__call__(client().settings)  # not the shared default
    settings.retries = 1
    files = kubeconfig()
    found_file = any(Path(each).exists() for each in files.split(":"))
    if not found_file and not context and _IN_POD.exists():
        config.load_incluster_config(client_configuration=settings)
        return settings, "", _IN_POD.with_name("namespace").read_text(encoding="utf-8").strip()
    if not found_file:
        raise MachineError(Problem("kubernetes", files, "does not exist", KUBECONFIG))
    known: list[str] = []
    try:
        contexts, current = config.list_kube_config_contexts(files)
        known = [str(each["name"]) for each in contexts]
        chosen = context or str(current["name"])
        config.load_kube_config(files, context=chosen, client_configuration=settings, persist_config=False)
        found: Mapping[str, Any] = next((each["context"] for each in contexts if each["name"] == chosen), {})
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        kind = InputError if context and context not in known else MachineError
        raise kind(bad_config(error, context, known)) from None
    except Exception as error:  # of PyYAML
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise MachineError(bad_config(error, context, known)) from None
    return settings, chosen, str(found.get("namespace") or "")


RIGHTS: Final = "run ./inv setup kubernetes: it prints the rights that are needed, as a manifest"
KUBECONFIG: Final = "kubectl config get-contexts lists the contexts; use --context, or set KUBECONFIG"
_CREDENTIALS: Final = "log in to the cluster again, or use another --context"
# The kinds of urllib3's errors, in the words of its texts: the client passes them on as they are.
_UNREACHABLE: Final = {
    "CERTIFICATE_VERIFY_FAILED": "has a certificate that this context does not trust",
    "Connection refused": "refuses connections",
    "Name or service not known": "has a name that is not known here",
    "Temporary failure in name resolution": "has a name that cannot be resolved now",
    "No route to host": "cannot be reached: no route to host",
    "Network is unreachable": "cannot be reached: the network is unreachable",
    "timed out": "does not answer in time",
    "Connection reset by peer": "has closed the connection",
    "Remote end closed connection": "has closed the connection",
}
_FORBIDDEN: Final = re.compile(r'User "([^"]*)" cannot (\w+) resource "([^"]*)"')


def status_of(error: Any) -> dict[str, Any]:
    """The Status object in an ApiException; an empty dict when its body is none."""
    try:
        body = json.loads(error.body)
    except (AttributeError, TypeError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def refused(error: Any, what: str, server: str, namespace: str) -> Problem:
    """An ApiException (a status of HTTP) as a Problem. what: the request, as `create Service heddle-zone`."""
    code, said = int(error.status or 0), str(status_of(error).get("message") or error.reason or "").strip()
    if code == 401:
        return Problem("kubernetes", server, "does not accept the credentials of this context", _CREDENTIALS)
    if code == 403 and (found := _FORBIDDEN.search(said)):
        user, verb, resource = found.groups()
        why = f"is forbidden: {user} may not {verb} {resource} in namespace {namespace}"
        return Problem("kubernetes", what, why, RIGHTS)
    if code == 404 and f'namespaces "{namespace}"' in said:
        hint = f"./inv setup kubernetes --namespace {namespace} prints its manifest; or use another --namespace"
        return Problem("kubernetes", f"namespace {namespace}", "does not exist", hint)
    if code == 403 and "exceeded quota" in said:
        return Problem("kubernetes", what, quota_words(said), "raise the quota, or use another --namespace")
    if code == 0:
        return unreachable(error, server)
    return Problem("kubernetes", what, f"was refused ({code}): {said}")


def quota_words(said: str) -> str:
    """`exceeds quota q: requested: memory=..., used: ..., limited: ...`, without the names of objects."""
    return "exceeds quota " + said.partition("exceeded quota: ")[2].replace(",", ":", 1)


def unreachable(error: BaseException, server: str) -> Problem:
    """An error of the connection as a Problem."""
    said = str(error)
    for words, why in _UNREACHABLE.items():
        if words in said:
            return Problem("kubernetes", server, why, "check the cluster, the network, and the context (--context)")
    return Problem("kubernetes", server, f"cannot be used: {said.splitlines()[0] if said else type(error).__name__}")


def bad_config(error: BaseException, context: str, known: list[str]) -> Problem:
    """An error of the kubeconfig as a Problem."""
    if context and context not in known and known:
        return Problem("kubernetes", f"--context {context}", "is not in the kubeconfig", f"use {', '.join(known)}")
    said = " ".join(str(error).split()) or type(error).__name__
    return Problem("kubernetes", "the kubeconfig", f"cannot be used: {said}", KUBECONFIG)
