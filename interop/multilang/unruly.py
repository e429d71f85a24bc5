"""A worker that does everything wrong once, and then works.

Each kind of trouble is made by whichever worker comes first, once in the whole run. Variables: RECORDS (the file of what
was done; beside it `RECORDS.KIND` for each trouble that was made), SEED (of the order of the troubles).
"""

import base64
import json
import os
import random
import sys
import threading
import time


def write(bytes_):
    while bytes_:
        bytes_ = bytes_[os.write(1, bytes_) :]


def say(**message):
    write(b"\n" + json.dumps(message).encode() + b"\n")


def note(shard, what, *words):
    out = os.open(os.environ["RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, (" ".join([shard, what, *map(str, words)]) + "\n").encode())
    os.close(out)


def garbage(_):
    write(random.Random(7).randbytes(20_000))


def half_a_message(_):
    write(b'\n{"action":"status","responseFor":"proc\n{"action":"check')


def long_line(_):
    # What begins as a message is none when it is that long.
    write(b'\n{"action":"status","responseFor":"leaseLost"}' + b"x" * (5 << 20) + b"\n")
    os.write(2, b"y" * 100_000)


def other_json(_):
    for line in (b"{}", b"[]", b"null", b'{"action":7}', b'{"action":"record"}', b'{"level":"info","action":"log"}', b"{" * 5000):
        write(b"\n" + line + b"\n")


def prints_of_two_threads(_):
    threads = [threading.Thread(target=lambda: [write(b"a print\n") for _ in range(500)]) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def message_in_pieces(action):
    for byte in b'\n{"action":"status","responseFor":"%s"}\n' % action.encode():
        write(bytes([byte]))
    return "answered"


def nonsense_checkpoints(_):
    for place in ({"sequenceNumber": "x"}, {"sequenceNumber": "9" * 56}, {"sequenceNumber": "1", "subSequenceNumber": -1}):
        say(action="checkpoint", **place)
        error = json.loads(sys.stdin.readline())["error"]
        note("-", "refused", error)


def answer_twice(action):
    write(2 * (b'\n{"action":"status","responseFor":"%s"}\n' % action.encode()))
    return "answered"


def answer_nothing_asked(_):
    say(action="status", responseFor="somethingElse")


def end_at_once(_):
    os._exit(3)


def end_as_if_done(_):
    os._exit(0)


def end_in_a_message(_):
    write(b'\n{"action":"status","respon')
    os._exit(1)


def be_killed(_):
    os.kill(os.getpid(), 9)


def be_silent(_):
    time.sleep(600)


def print_for_ever(_):
    while True:
        write(b"still here\n")
        time.sleep(0.05)


def close_the_output(_):
    os.close(1)
    time.sleep(600)


HARMLESS = [garbage, half_a_message, long_line, other_json, prints_of_two_threads, message_in_pieces, nonsense_checkpoints, answer_twice]
DEADLY = [
    answer_nothing_asked,
    end_at_once,
    end_as_if_done,
    end_in_a_message,
    be_killed,
    be_silent,
    print_for_ever,
    close_the_output,
]


def mine(mark):
    """Whether nobody has made this trouble yet."""
    try:
        os.close(os.open(f"{os.environ['RECORDS']}.{mark}", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def trouble(action):
    """Makes the next trouble, if there is any left for this action."""
    kinds = HARMLESS + DEADLY
    random.Random(os.environ["SEED"]).shuffle(kinds)
    if action == "initialize":
        kinds = [end_at_once, be_silent]
    for kind in kinds:
        if mine(f"{action}.{kind.__name__}"):
            return kind(action)


def main():
    shard = "-"
    for line in sys.stdin:
        message = json.loads(line)
        action = message["action"]
        if action == "initialize":
            shard = message["shardId"]
            note(shard, "initialize")
        for record in message.get("records", []):
            note(shard, "record", record["partitionKey"], base64.b64decode(record["data"]).decode())
        if action in ("initialize", "processRecords") and trouble(action) == "answered":
            continue
        if action in ("processRecords", "shardEnded", "shutdownRequested"):
            say(action="checkpoint")
            sys.stdin.readline()
        say(action="status", responseFor=action)


if __name__ == "__main__":
    main()
