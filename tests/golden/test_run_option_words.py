"""The error of each mistake in the options of `./inv run` for transports, congestion control and admission.

runs/options.log has the texts. `./inv test golden -- --regen-goldens` rewrites it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.proof.collect import refusal
from heddle.runs.run import job_plan, plan_run
from heddle.traffic.inflight import shortfall

WRONG: Final[tuple[dict[str, Any], ...]] = (
    {"qps": 129, "iters": 0, "warmup": -1, "ranks": 1, "window": 0, "local_ack_timeout": 3, "entropy": 0},
    {"window": 20_000, "local_ack_timeout": 32, "entropy": 257, "transport": "srd"},
    {"transport": "srb"},
    {"transport": "srb", "entropy": 4, "recovery": "go-back-0"},
    {"transport": "uc", "entropy": 4, "recovery": "selective-repeat"},
    {"recovery": "go-back"},
    {"recovery": "go-back-0", "fastpath": "on"},
    {"sport": "own"},
    {"sport": "fixed:0"},
    {"sport": "list:50000,"},
    {"cc": "swfit"},
    {"cc": "swift", "fastpath": "on"},
    {"cc_set": ["rpg_gd=11"]},
    {"cc": "dcqcn", "cc_profile": "nvida"},
    {"cc": "swift", "cc_profile": "nvidia"},
    {"cc_profile": "meta"},
    {"cc": "dcqcn", "cc_set": ["rpg_gd"]},
    {"cc": "dcqcn", "cc_set": ["rpg_tine_reset=1"]},
    {"cc": "dcqcn", "cc_set": ["rpg_threshold=1.5"]},
    {
        "cc": "dcqcn",
        "cc_set": [
            "dce_tcp_g=1024", "dce_tcp_rtt=0", "initial_alpha_value=0", "rate_to_set_on_first_cnp=400001",
            "rpg_min_dec_fac=101", "rpg_min_rate=0", "rpg_gd=9", "rate_reduce_monitor_period=0", "clamp_tgt_rate=2",
            "clamp_tgt_rate_after_time_inc=-1", "rpg_time_reset=131072", "rpg_byte_reset=32768", "rpg_threshold=32",
            "rpg_ai_rate=0", "rpg_hai_rate=400001", "min_time_between_cnps=4096", "cnp_dscp=64",
        ],
    },
    {"cc": "swift", "cc_set": ["beta=2", "fs_max_cwnd=1"]},
    {"transport": "uc", "cc": "swift"},
    {"transport": "rxe", "cc": "dcqcn", "admission": "on"},
    {"admission": "on", "fastpath": "on"},
    {"admission": "on", "cts_class": "contrl"},
    {"admission_set": ["channels=2"], "cts_class": "data"},
    {"admission": "on", "admission_set": ["bufsize=3"]},
    {"admission": "on", "admission_set": ["channels=65"]},
    {"slow": ["host9=25%"]},
    {"slow": ["host1=0%"]},
    {"slow": ["host3"]},
    {"admission": "onn"},
    {"admission": "on", "admission_set": ["steps"]},
    {"admission": "on", "admission_set": ["buffsize=8K"]},
    {
        "collective": "all_reduce", "size": "2", "qps": 0, "qp_mode": "splitt", "sport": "fixed:99999", "chunk": "100",
        "fastpath": "of", "split": "XOR 2", "bucket": "1us",
    },
    {"chunk": "32M", "size": "4M:64K"},
    {"ranks": 17},
    {"placement": "host1,hostx"},
    {"placement": "cylcic"},
    {"placement": "host1,host1"},
    {"placement": "host1"},
    {"placement": "rtsw1,host1"},
    {"algorithm": "rnig"},
    {"collective": "all-to-all", "algorithm": "ring"},
    {"algorithm": "halving-doubling", "ranks": 3},
    {"collective": "all-to-all", "size": "15"},
    {"collective": "incast", "size": "4"},
    {"ranks": 2, "size": "65536K", "chunk": "4K"},
)  # fmt: skip


def test_wrong_options_are_explained_in_exactly_these_words(golden: Callable[[str, str], None]) -> None:
    fabric = load_fabric("tiny").fabric
    said = []
    for options in WRONG:
        with pytest.raises(InputError) as caught:
            plan_run(fabric, run_options(**options))
        said.append(f"{options}\n{caught.value}\n")
    plan = job_plan(fabric, run_options(qps=128, transport="srd", entropy=256))
    said.append(f"rows of counters\n{refusal(fabric, plan, holds=1 << 16, spread=False)}\n")
    said.append(f"a window that cannot cover the path\n{shortfall(1, 2, 1926)}\n")
    golden("runs/options.log", "\n".join(said))
