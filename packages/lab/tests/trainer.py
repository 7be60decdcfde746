"""Replaces `python -m megatron_sspo train` by a fast program that fails as the sweep's file `behaviour` says.

`behaviour` has lines "NAME WORD...": the first attempt at the run follows the first word, and so on; an attempt without
a word finishes the run.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    sets = dict(text.partition("=")[::2] for flag, text in itertools.pairwise(arguments) if flag == "--set")
    sweep, name = Path(sets["output"]), sets["name"]
    run = sweep / name
    attempt = len(list(sweep.glob(f"attempts/{name}.*")))
    (sweep / "attempts").mkdir(exist_ok=True)
    resumed = "--resume" in arguments
    slot = os.environ.get("SLOT")
    record = {"pid": os.getpid(), "group": os.getpgid(0), "resumed": resumed, "slot": slot}
    (sweep / "attempts" / f"{name}.{attempt}").write_text(json.dumps(record))
    words = {line.split()[0]: line.split()[1:] for line in (sweep / "behaviour").read_text().splitlines()}
    word = words.get(name, [])[attempt : attempt + 1]
    run.mkdir(exist_ok=True)
    config = {"num_updates": 2, "evaluation": None}
    (run / "config.json").write_text(json.dumps(config))
    if word == ["refused"]:
        print("megatron-sspo: the moon is in the \x1b[2Jwrong place" + "." * 2000)
        return 2
    if word == ["further"]:
        (run / "checkpoints" / f"update-{attempt + 1:06d}").mkdir(parents=True)
        return 1
    if word == ["killed"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if word == ["by_file"]:
        return 86
    if word == ["waits"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
        (run / "waits").touch()
        time.sleep(60)
    if word == ["deaf"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (run / "waits").touch()
        time.sleep(60)
    (run / "metrics.jsonl").write_text('{"update": 1}\n{"update": 2}\n')
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
