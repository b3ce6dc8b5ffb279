"""Results of labs, checks, images and setup as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import place_flag
from heddle.base.tables import table

if TYPE_CHECKING:
    from heddle.checks.validate import CheckResult
    from heddle.host.engine.images import Image
    from heddle.host.engine.setup import SetupStep
    from heddle.lab.lifecycle import UpResult
    from heddle.lab.status import LabStatus

_SESSIONS: Final = 12  # missing BGP sessions that `status LAB` shows


def up_json(done: UpResult) -> dict[str, Any]:
    """`lab`, `converged`, `created`, `seconds`; with --repair `repaired` and `left` (down or drained on purpose)."""
    fixed = done.repaired
    return {
        "lab": done.lab.name,
        "created": done.created,
        "converged": done.converged,
        "topology": str(done.lab.topology),
        "seconds": dict(done.seconds),
        **({} if fixed is None else {"repaired": list(fixed.done), "left": list(fixed.left)}),
    }


def up_text(done: UpResult) -> str:
    """Two lines: the lab that is up, and the next commands."""
    name, fabric = done.lab.name, done.lab.fabric
    size = f"{len(fabric.switches)} switches, {len(fabric.hosts)} hosts, {len(fabric.links)} links"
    if not done.created and done.repaired is None:
        return f"{name} is already up: {size}"
    if not done.created:
        return "\n".join(_repaired_lines(done, size))
    # An imported topology may have no switch.
    looked_at = f"{fabric.switches[0].name} vtysh" if fabric.switches else f"{fabric.hosts[0].name} ip route"
    up = f"{name} is up: {size}, converged in {done.seconds['total']:.1f} s\n"
    if place := place_flag():  # it is long and every command needs it, so fewer commands are shown
        return f"{up}next: ./inv run --lab {name}{place}; ./inv down {name}{place}"
    return (
        f"{up}next: ./inv run --lab {name}; ./inv status {name}; ./inv exec --lab {name} {looked_at}; ./inv down {name}"
    )


def _repaired_lines(done: UpResult, size: str) -> Iterator[str]:
    """Each repair, each fault that stays because a user set it, and whether the lab forwards."""
    assert done.repaired is not None  # noqa: S101  (the caller has looked)
    for line in done.repaired.done:
        yield f"repaired  {line}"
    for line in done.repaired.left:
        yield f"left      {line}"
    count = len(done.repaired.done)
    what = f"{count} repair{'' if count == 1 else 's'}" if count else "nothing to repair"
    routes = "all routes are in the kernels" if done.converged else "routes avoid what is down or drained on purpose"
    yield f"{done.lab.name} is up: {size}; {what}; {routes}"


def status_text(labs: Sequence[LabStatus], *, detail: bool) -> str:
    """A table of labs, or one lab line by line."""
    if not labs:
        return "no lab is running; run ./inv up zone to start one"
    if detail:
        rows = [(k, _value_text(v)) for k, v in labs[0].to_json().items() if k not in ("bgp", "missing_sessions")]
        bgp = labs[0].bgp
        rows.append(("bgp", f"{bgp.established} of {bgp.expected} established"))
        return table(("lab", labs[0].lab), [*rows[1:], *_missing(labs[0])])
    header = ("lab", "runtime", "state", "converged", "switches", "hosts", "links", "bgp", "from")
    return table(
        header,
        [
            (
                *(s.lab, s.runtime, s.state, _value_text(s.converged), str(s.switches), str(s.hosts)),
                *(str(s.links), f"{s.bgp.established}/{s.bgp.expected}", s.source),
            )
            for s in labs
        ],
    )


def _missing(lab: LabStatus) -> list[tuple[str, str]]:
    """Rows of BGP sessions that are not established: the first ones when there are many."""
    found = lab.missing_sessions
    rows = [("missing" if not at else "", each.text()) for at, each in enumerate(found[:_SESSIONS])]
    more = len(found) - len(rows)
    return [*rows, ("", f"and {more} more: ./inv status {lab.lab} --format json lists all")] if more else rows


def _value_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value_text(each) for each in value) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def checks_text(checks: Sequence[CheckResult]) -> str:
    """A table of checks, and the verdict."""
    rows = [(c.name, "skipped" if c.skipped else "ok" if c.ok else "FAILED", c.detail) for c in checks]
    failed = [c.name for c in checks if not c.ok]
    verdict = f"failed: {', '.join(failed)}" if failed else "all checks passed"
    return table(("check", "result", "details"), rows) + "\n\n" + verdict


def images_text(found: Sequence[Image], removed: Sequence[str]) -> str:
    """A table of images, and what was removed."""
    rows = [(i.role, i.name, "built" if i.built else "already there", f"{i.bytes / 1e6:.0f} MB") for i in found]
    lines = [table(("for", "image", "", "size"), rows)]
    return "\n".join([*lines, *(f"removed {name}" for name in removed)])


def steps_text(steps: Sequence[SetupStep]) -> str:
    """A table of the steps of `setup`: done now, or already done."""
    return table(("step", "", "details"), [(s.name, "done" if s.done else "already done", s.detail) for s in steps])
