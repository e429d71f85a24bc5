"""What all checks of the daemon share: a stream and what it took, a daemon on it, and what its workers wrote down."""

import collections
import os
import signal
import subprocess
import sys
import time

import boto3

HERE = os.path.dirname(os.path.abspath(__file__))
ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
PYTHON = os.environ.get("PYTHON", sys.executable)
KEYS = 12
PATIENCE_S = 90

kinesis = boto3.client("kinesis")
dynamodb = boto3.client("dynamodb")
failures = []


def check(name, holds, why=""):
    if not holds:
        failures.append(name)
    why = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in str(why))
    print(f"ok {name}" if holds else f"not ok {name}: {why}", flush=True)


class Stream:
    """A stream, and every record that it took, in order."""

    def __init__(self, name, shards=2):
        self.name = name
        self.put = collections.defaultdict(list)
        kinesis.create_stream(StreamName=name, ShardCount=shards)
        self.settled()

    def settled(self):
        kinesis.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})
        while self.summary()["StreamStatus"] != "ACTIVE":
            time.sleep(0.05)

    def summary(self):
        return kinesis.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]

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

    def application(self):
        return f"app-{self.name}"

    def rows(self):
        """The rows of the lease table by their key."""
        items = dynamodb.scan(TableName=self.application(), ConsistentRead=True)["Items"]
        return {item["leaseKey"]["S"]: item for item in items if "leaseCounter" in item}

    def owners(self):
        return [row["leaseOwner"]["S"] for row in self.rows().values() if "leaseOwner" in row]


class Daemon:
    """A daemon on a stream: ours, unless a subclass says otherwise."""

    def __init__(self, folder, stream, executable, variables, **settings):
        self.log = os.path.join(folder, "daemon.log")
        self.stream = stream
        properties = os.path.join(folder, "app.properties")
        with open(properties, "w") as out:
            for key, value in {**self.defaults(stream), "executableName": executable, **settings}.items():
                out.write(f"{key} = {value}\n")
        with open(self.log, "a") as log:
            variables = {**os.environ, **variables}
            self.process = subprocess.Popen(self.command(properties), stdout=log, stderr=log, env=variables)

    def defaults(self, stream):
        return {
            "streamName": stream.name,
            "applicationName": stream.application(),
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "initialPositionInStream": "TRIM_HORIZON",
            "regionName": "us-east-1",
            "kinesisEndpoint": ENDPOINT,
            "dynamoDBEndpoint": ENDPOINT,
            "failoverTimeMillis": 1000,
            "idleTimeBetweenReadsInMillis": 200,
            "metricsLevel": "NONE",
        }

    def command(self, properties):
        return [os.environ["ANABRANCH"], "multilang", "--properties-file", properties]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self):
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "no exit"

    def said(self):
        return open(self.log, errors="replace").read()

    def tail(self):
        return "".join(self.said().splitlines(keepends=True)[-25:])

    def until(self, what, patience_s=PATIENCE_S):
        """Whether it comes true while the daemon runs."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if what():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.1)
        return False


def whole_lines(path):
    """The lines of a file that others still write, without the one that is being written."""
    return open(path).read().rpartition("\n")[0].splitlines() if os.path.exists(path) else []


class Records:
    """What recording workers wrote down, in order."""

    def __init__(self, folder, stream):
        self.path = os.path.join(folder, "records")
        self.stream = stream

    def lines(self):
        return [line.split() for line in whole_lines(self.path)]

    def words(self):
        """What the workers were called with, in order."""
        return [words[1] for words in self.lines()]

    def deliveries(self):
        return [(words[2], words[3]) for words in self.lines() if words[1] == "record"]

    def first_deliveries(self):
        seen = collections.defaultdict(list)
        for key, data in self.deliveries():
            if data not in seen[key]:
                seen[key].append(data)
        return seen

    def all_seen(self):
        return sum(map(len, self.first_deliveries().values())) == self.stream.total()

    def out_of_order(self):
        """The keys of which a record is missing or was first delivered out of turn."""
        seen = self.first_deliveries()
        return [key for key in self.stream.put if seen[key] != self.stream.put[key]]


def recorder():
    """A worker on amazon_kclpy that writes everything down: its command, its variables."""
    return f"{PYTHON} {os.path.join(HERE, 'recorder.py')}", {"PYTHONPATH": os.environ["KCLPY"]}
