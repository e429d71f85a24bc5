"""The official KCL workers, unmodified, through a split, a merge, a crash and a restart; and amazon_kclpy's own sample."""

import collections
import os
import re
import tempfile

from stage import KEYS, PYTHON, Daemon, Records, Stream, check


def through_everything(name, executable, variables):
    """A recording worker through a split, a merge, a child that dies, SIGTERM and a restart."""
    stream = Stream(f"through-{name}")
    with tempfile.TemporaryDirectory() as folder:
        records = Records(folder, stream)
        variables = {**variables, "RECORDS": records.path, "POISON": "key3.12"}
        stream.round()
        daemon = Daemon(folder, stream, executable, variables)
        check(f"{name}: every record reaches the worker", daemon.until(records.all_seen), daemon.tail())
        stream.round()
        stream.split()
        stream.round()
        check(f"{name}: and through a split", daemon.until(records.all_seen), daemon.tail())
        stream.merge()
        stream.round()
        check(f"{name}: and through a merge", daemon.until(records.all_seen), daemon.tail())
        died = os.path.exists(records.path + ".died")
        check(f"{name}: a child that died was started again", died and daemon.process.poll() is None, daemon.tail())
        before = len(records.deliveries())
        code = daemon.stop()
        check(f"{name}: SIGTERM ends it in order", code == 0, f"{code}\n{daemon.tail()}")
        words = records.words()
        check(f"{name}: the worker was told of the stop", "shutdownRequested" in words and "leaseLost" in words, words)
        check(f"{name}: every lease was given back", stream.owners() == [], stream.owners())
        stream.round()
        daemon = Daemon(folder, stream, executable, variables)
        check(f"{name}: it goes on after a restart", daemon.until(records.all_seen), daemon.tail())
        daemon.stop()
        again = len(records.deliveries()) - before - 5 * KEYS
        check(f"{name}: where it stopped, nothing comes twice", again == 0, f"{again} came again")
        wrong = records.out_of_order()
        check(f"{name}: nothing is lost and each key is in order", wrong == [], wrong)
        ended = [key for key, row in stream.rows().items() if row["checkpoint"]["S"] == "SHARD_END"]
        check(f"{name}: ended shards are ended in the table", "shardEnded" in words or ended, stream.rows())


def sample(name):
    """amazon_kclpy's own sample, as it comes. It prints each record to standard error, without a line's end."""
    stream = Stream(f"sample-{name}")
    stream.round()
    with tempfile.TemporaryDirectory() as folder:
        app = os.path.join(os.environ["KCLPY"], "samples", "sample_kclpy_app.py")
        daemon = Daemon(folder, stream, f"{PYTHON} {app}", {"PYTHONPATH": os.environ["KCLPY"]})

        def printed():
            texts = collections.defaultdict(str)
            for line in daemon.said().splitlines():
                found = re.search(r"anabranch::child: (.*) shard=(\S+) pid=(\d+) from=\"stderr\"$", line)
                if found:
                    texts[found[3]] += found[1]
            pattern = r"Partition Key: (\w+), Sequence Number: (\d+), Subsequence Number: \d+"
            return [record for text in texts.values() for record in re.findall(pattern, text)]

        seen = daemon.until(lambda: len(set(printed())) == stream.total())
        check(f"{name}: the sample sees every record", seen, f"{len(set(printed()))}\n{daemon.tail()}")
        code = daemon.stop()
        check(f"{name}: the sample stops in order", code == 0, f"{code}\n{daemon.tail()}")
        places = [row["checkpoint"]["S"] for row in stream.rows().values()]
        check(f"{name}: the sample's checkpoint is in KCL's table", all(place.isdigit() for place in places), places)
