"""A worker without any library: it writes down each line that it hears, checkpoints where that is allowed, and answers.

Variables: HEARD (the file of the lines, each after the pid), WRAPPED (run as a child of this process, which only waits),
STUCK (never ends a batch, and so does not notice that the daemon is gone).
"""

import json
import os
import subprocess
import sys
import time


def note(line):
    out = os.open(os.environ["HEARD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, f"{os.getpid()} {line}\n".encode())
    os.close(out)


def say(**message):
    sys.stdout.write("\n" + json.dumps(message) + "\n")
    sys.stdout.flush()


def main():
    print("golden: begins", file=sys.stderr, flush=True)
    for line in sys.stdin:
        note(line.rstrip("\n"))
        message = json.loads(line)
        action = message["action"]
        if action == "processRecords" and "STUCK" in os.environ:
            time.sleep(600)
        may_checkpoint = action in ("processRecords", "shardEnded", "shutdownRequested")
        if may_checkpoint or message.get("reason") == "TERMINATE":
            say(action="checkpoint")
            answer = sys.stdin.readline()
            if not answer:
                note('{"action": "gone"}')  # the daemon is
                return
            note(answer.rstrip("\n"))
        say(action="status", responseFor=action)


if os.environ.pop("WRAPPED", None):
    sys.exit(subprocess.call([sys.executable, __file__]))
main()
