"""A worker that does everything wrong once must not bring the daemon down, and no record may be lost by it."""

import os
import tempfile

import unruly
from stage import HERE, PYTHON, Daemon, Records, Stream, check


def run(seed="1"):
    stream = Stream("unruly")
    with tempfile.TemporaryDirectory() as folder:
        records = Records(folder, stream)
        variables = {"RECORDS": records.path, "SEED": seed}
        settings = {"timeoutInSeconds": 1, "taskBackoffTimeMillis": 20}
        daemon = Daemon(folder, stream, f"{PYTHON} {os.path.join(HERE, 'unruly.py')}", variables, **settings)
        kinds = {f"processRecords.{kind.__name__}" for kind in unruly.HARMLESS + unruly.DEADLY}
        kinds |= {"initialize.end_at_once", "initialize.be_silent"}
        made = lambda: {name.partition(".")[2] for name in os.listdir(folder) if name.startswith("records.")}

        def over():
            # One batch, one trouble: there have to be batches for all of them.
            if made() < kinds:
                stream.round(1)
            return made() == kinds and records.all_seen()

        lives = daemon.until(over)
        check("unruly: the daemon outlives every trouble of a worker", lives, f"{kinds - made()}\n{daemon.tail()}")
        # Two shards, and one more start after each trouble that a worker can't go on after.
        expected = 2 + len(unruly.DEADLY) + 2
        daemon.until(lambda: records.words().count("initialize") >= expected)
        begun = records.words().count("initialize")
        check("unruly: only what is deadly costs a worker", begun == expected, f"{begun} starts, not {expected}\n{daemon.tail()}")
        refused = [words[2] for words in records.lines() if words[1] == "refused"]
        check("unruly: a checkpoint out of place is refused as Java does", refused == ["IllegalArgumentException"] * 3, refused)
        code = daemon.stop()
        check("unruly: and stops in order", code == 0, f"{code}\n{daemon.tail()}")
        wrong = records.out_of_order()
        check("unruly: nothing is lost and each key is in order", wrong == [], wrong)
