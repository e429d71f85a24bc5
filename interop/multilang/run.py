"""The official KCL workers under `anabranch multilang`: unmodified, through a split, a merge, a crash and a restart.

Variables: ANABRANCH (the binary), PYTHON and KCLPY (amazon_kclpy's unpacked source), NODE and NODE_PATH (with aws-kcl).
Prints one line a check: `ok NAME`, or `not ok NAME: WHY`.
"""

import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import boto3

HERE = os.path.dirname(os.path.abspath(__file__))
ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
KEYS = 12
PATIENCE_S = 90

kinesis = boto3.client("kinesis")
dynamodb = boto3.client("dynamodb")
failed = False


def check(name, holds, why=""):
    global failed
    failed |= not holds
    print(f"ok {name}" if holds else f"not ok {name}: {why}", flush=True)


class Stream:
    """A stream, and every record that it took, in order."""

    def __init__(self, name):
        self.name = name
        self.put = collections.defaultdict(list)
        kinesis.create_stream(StreamName=name, ShardCount=2)
        self.settled()

    def settled(self):
        kinesis.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})
        while self.status() != "ACTIVE":
            time.sleep(0.05)

    def status(self):
        return kinesis.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]["StreamStatus"]

    def round(self, count=5):
        for _ in range(count):
            for number in range(KEYS):
                key = f"key{number}"
                data = f"{key}.{len(self.put[key])}"
                kinesis.put_record(StreamName=self.name, PartitionKey=key, Data=data.encode())
                self.put[key].append(data)

    def open_shards(self):
        shards = kinesis.list_shards(StreamName=self.name, ShardFilter={"Type": "AT_LATEST"})["Shards"]
        return sorted(shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))

    def split(self):
        shard = self.open_shards()[0]
        low, high = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
        middle = str((low + high) // 2)
        kinesis.split_shard(StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle)
        self.settled()

    def merge(self):
        first, second = self.open_shards()[:2]
        kinesis.merge_shards(
            StreamName=self.name, ShardToMerge=first["ShardId"], AdjacentShardToMerge=second["ShardId"]
        )
        self.settled()

    def total(self):
        return sum(map(len, self.put.values()))


class Daemon:
    """`anabranch multilang` on a stream."""

    def __init__(self, folder, stream, executable, variables, more=""):
        self.log = os.path.join(folder, "daemon.log")
        properties = os.path.join(folder, "app.properties")
        with open(properties, "w") as out:
            out.write(
                f"executableName = {executable}\nstreamName = {stream.name}\napplicationName = app-{stream.name}\n"
                "AwsCredentialsProvider = DefaultCredentialsProvider\ninitialPositionInStream = TRIM_HORIZON\n"
                f"regionName = us-east-1\nkinesisEndpoint = {ENDPOINT}\ndynamoDBEndpoint = {ENDPOINT}\n"
                f"failoverTimeMillis = 1000\nidleTimeBetweenReadsInMillis = 200\nmetricsLevel = NONE\n{more}"
            )
        command = [os.environ["ANABRANCH"], "multilang", "--properties-file", properties]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "no exit"

    def tail(self):
        return "".join(open(self.log).readlines()[-25:])


def until(what, daemon):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if what():
            return True
        if daemon.process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


def recorded(path):
    """The records of the file in order: key, data."""
    lines = open(path).read().splitlines() if os.path.exists(path) else []
    return [(words[2], words[3]) for words in map(str.split, lines) if words[1] == "record"]


def first_deliveries(records):
    seen = collections.defaultdict(list)
    for key, data in records:
        if data not in seen[key]:
            seen[key].append(data)
    return seen


def rows(stream):
    items = dynamodb.scan(TableName=f"app-{stream.name}", ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def through_everything(name, executable, variables):
    """A recording worker through a split, a merge, a child that dies, SIGTERM and a restart."""
    stream = Stream(f"through-{name}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records")
        variables = {**variables, "RECORDS": path, "POISON": "key3.12"}
        all_seen = lambda: sum(map(len, first_deliveries(recorded(path)).values())) == stream.total()
        stream.round()
        daemon = Daemon(folder, stream, executable, variables)
        check(f"{name}: every record reaches the worker", until(all_seen, daemon), daemon.tail())
        stream.round()
        stream.split()
        stream.round()
        check(f"{name}: and through a split", until(all_seen, daemon), daemon.tail())
        stream.merge()
        stream.round()
        check(f"{name}: and through a merge", until(all_seen, daemon), daemon.tail())
        died = os.path.exists(path + ".died")
        check(f"{name}: a child that died was started again", died and daemon.process.poll() is None, daemon.tail())
        before = len(recorded(path))
        code = daemon.stop()
        check(f"{name}: SIGTERM ends it in order", code == 0, f"{code}\n{daemon.tail()}")
        words = [line.split()[1] for line in open(path).read().splitlines()]
        check(f"{name}: the worker was told of the stop", "shutdownRequested" in words and "leaseLost" in words, words)
        owners = [row["leaseOwner"]["S"] for row in rows(stream).values() if "leaseOwner" in row]
        check(f"{name}: every lease was given back", owners == [], owners)
        stream.round()
        daemon = Daemon(folder, stream, executable, variables)
        check(f"{name}: it goes on after a restart", until(all_seen, daemon), daemon.tail())
        code = daemon.stop()
        again = len(recorded(path)) - before - 5 * KEYS
        check(f"{name}: where it stopped, nothing comes twice", again == 0, f"{again} came again")
        deliveries = first_deliveries(recorded(path))
        wrong = [key for key in stream.put if deliveries[key] != stream.put[key]]
        check(f"{name}: nothing is lost and each key is in order", wrong == [], wrong)
        ended = [key for key, row in rows(stream).items() if row["checkpoint"]["S"] == "SHARD_END"]
        check(f"{name}: ended shards are ended in the table", "shardEnded" in words or ended, rows(stream))


def sample(name):
    """amazon_kclpy's own sample, as it comes. It prints each record to standard error, without a line's end."""
    stream = Stream(f"sample-{name}")
    stream.round()
    with tempfile.TemporaryDirectory() as folder:
        app = os.path.join(os.environ["KCLPY"], "samples", "sample_kclpy_app.py")
        variables = {"PYTHONPATH": os.environ["KCLPY"]}
        daemon = Daemon(folder, stream, f"{os.environ['PYTHON']} {app}", variables)

        def printed():
            texts = collections.defaultdict(str)
            for line in open(daemon.log):
                found = re.search(r"anabranch::child: (.*) shard=(\S+) pid=(\d+) from=\"stderr\"$", line.rstrip("\n"))
                if found:
                    texts[found[3]] += found[1]
            pattern = r"Partition Key: (\w+), Sequence Number: (\d+), Subsequence Number: \d+"
            return [record for text in texts.values() for record in re.findall(pattern, text)]

        seen = until(lambda: len(set(printed())) == stream.total(), daemon)
        check(f"{name}: the sample sees every record", seen, f"{len(set(printed()))}\n{daemon.tail()}")
        code = daemon.stop()
        check(f"{name}: the sample stops in order", code == 0, f"{code}\n{daemon.tail()}")
        places = [row["checkpoint"]["S"] for row in rows(stream).values()]
        check(f"{name}: the sample's checkpoint is in KCL's table", all(place.isdigit() for place in places), places)


def main():
    which = sys.argv[1:]
    if not which or "python" in which:
        recorder = os.path.join(HERE, "recorder.py")
        through_everything("python", f"{os.environ['PYTHON']} {recorder}", {"PYTHONPATH": os.environ["KCLPY"]})
        sample("python")
    if not which or "node" in which:
        through_everything("node", f"{os.environ['NODE']} {os.path.join(HERE, 'recorder.js')}", {})
    sys.exit(1 if failed else 0)


main()
