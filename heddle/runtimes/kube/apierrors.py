"""Errors of the Kubernetes API in words: not reachable, not allowed, not found, quota used up.

In:  an exception of the official client, and the request as a user would say it. Out: one Problem.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from heddle.base.problems import Problem

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
