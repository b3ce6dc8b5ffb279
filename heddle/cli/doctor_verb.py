"""The verb `doctor`: what this machine can run."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb()
def doctor(out: Console) -> None:
    """Check what this machine can run and how to fix what is missing.

    Exit code 3 when something that a fabric needs is missing. Nothing on the machine is changed.
    """
    from heddle.endpoints.rdma.verbscheck import rxe_check, verbs_check
    from heddle.host.doctor import examine
    from heddle.places.vm.guest import vm_check
    from heddle.predict.selftest import doctor_check

    found = examine({"prediction": doctor_check, "rxe": rxe_check, "verbs": verbs_check, "vm": vm_check})
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3
