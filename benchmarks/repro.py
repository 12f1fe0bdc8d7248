"""Of how many of the zoo's faults does ``ddparity repro`` make a script that shows the same finding.

    python benchmarks/repro.py [NAME...] [--layer numerics] [--parallelism ddp fsdp ...]

Each row is recorded as control and with its fault; the script is made of these two trials and run, with every file of
data treated as missing. It counts if it shows the finding of the recorded verdict: layer, phase, name and cause.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from ddparity._errors import DdparityError, ExitCode
from ddparity.repro import ReproOptions, make_repro
from ddparity.trials import RecordSpec, Store, record
from ddparity.trials._zoo import find_zoo, read_manifest, select

DATA_PARALLEL = ("ddp", "ddp+accum", "fsdp", "dtensor-dp", "dp+sp", "manual-dp")


def one(row: object, folder: Path, zoo: Path) -> dict:
    started = time.monotonic()
    store = Store(folder / row.name)
    script = str(zoo / row.file)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(row.nproc)]
    made = []
    for name, words, more in (("control", [], []), ("faulty", launcher, ["--bug", row.name])):
        command = ["env", "OMP_NUM_THREADS=1", sys.executable, *words, script, *more, "--steps", "8"]
        spec = RecordSpec(
            command=command, store=store, name=name, control=name == "control", prove=False, timeout_s=120, quiet=True
        )
        made.append(store.path(record(spec).id))
    output = folder / f"{row.name}.repro.py"
    try:
        product = make_repro(ReproOptions(control=made[0], candidate=made[1], output=output, timeout_s=120))
    except DdparityError as error:
        return {"name": row.name, "shows": False, "said": str(error)}
    return {
        "name": row.name,
        "shows": product.code == ExitCode.DEVIATES,
        "made_up": product.case.is_made_up,
        "finding": str(product.case.expected),
        "said": product.said,
        "notes": product.notes,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--layer", default="numerics")
    parser.add_argument("--parallelism", nargs="*", default=DATA_PARALLEL)
    given = parser.parse_args()
    zoo = find_zoo()
    rows = [
        row
        for row in select(read_manifest(zoo), given.names)
        if given.names or (row.layer == given.layer and row.parallelism in given.parallelism and not row.benign)
    ]
    shown = 0
    with tempfile.TemporaryDirectory(prefix="ddparity-") as folder:
        for row in rows:
            found = one(row, Path(folder), zoo)
            shown += found["shows"]
            print(json.dumps(found), flush=True)
    print(f"{shown}/{len(rows)} show the finding")


if __name__ == "__main__":
    main()
