"""What `anabranch multilang` costs with Python workers: records a second, CPU of the daemon, memory with 100 shards, the first record.

Variables as for run.py. Arguments: records (default 200000), shards of the second part (default 100).
Java's daemon 3.1.3 on the machine where the figures were first taken: 15.5 µs of CPU a record, 251 MiB, first record after
136 s cold and 15.5 s warm.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

import boto3

HERE = os.path.dirname(os.path.abspath(__file__))
ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 180

kinesis = boto3.client("kinesis")


def stream(name, shards, records):
    kinesis.create_stream(StreamName=name, ShardCount=shards)
    while kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
        time.sleep(0.05)
    for first in range(0, records, 500):
        batch = [{"Data": b"x" * 100, "PartitionKey": f"k{first + i}"} for i in range(min(500, records - first))]
        kinesis.put_records(StreamName=name, Records=batch)


class Daemon:
    def __init__(self, folder, name):
        self.counts = os.path.join(folder, "counts")
        os.mkdir(self.counts)
        properties = os.path.join(folder, "bench.properties")
        with open(properties, "w") as out:
            out.write(
                f"executableName = {os.environ['PYTHON']} {HERE}/counter.py\nstreamName = {name}\n"
                f"applicationName = app-{name}\nAwsCredentialsProvider = DefaultCredentialsProvider\n"
                f"initialPositionInStream = TRIM_HORIZON\nregionName = us-east-1\nkinesisEndpoint = {ENDPOINT}\n"
                f"dynamoDBEndpoint = {ENDPOINT}\nretrievalMode = POLLING\nidleTimeBetweenReadsInMillis = 200\n"
                "metricsLevel = NONE\n"
            )
        variables = {"PYTHONPATH": os.environ["KCLPY"], "COUNTS": self.counts}
        self.started = time.time()
        command = [os.environ["ANABRANCH"], "multilang", properties]
        self.log = open(os.path.join(folder, "log"), "w")
        self.process = subprocess.Popen(command, stderr=self.log, env={**os.environ, **variables})

    def counted(self):
        texts = [open(os.path.join(self.counts, name)).read().split() for name in os.listdir(self.counts) if "." not in name]
        return [(int(count), float(at)) for count, at in texts]

    def until(self, what):
        while not what():
            if self.process.poll() is not None or time.time() - self.started > PATIENCE_S:
                sys.exit(f"the daemon did not get there: see its log\n{open(self.log.name).read()[-2000:]}")
            time.sleep(0.05)

    def cpu_s(self):
        words = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def memory_mib(self):
        status = open(f"/proc/{self.process.pid}/status").read()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def throughput(records):
    stream("bench-records", 4, records)
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder, "bench-records")
        total = lambda: sum(count for count, _ in daemon.counted())
        daemon.until(lambda: total() > 0)
        first = min(at for count, at in daemon.counted() if count > 0) - daemon.started
        daemon.until(lambda: total() >= records)
        took = max(at for _, at in daemon.counted()) - daemon.started - first
        cpu = daemon.cpu_s()
        daemon.stop()
    print(f"first record after the start    {first:8.2f} s")
    print(f"records a second, 4 workers     {records / max(took, 1e-3):8.0f}")
    print(f"CPU of the daemon a record      {cpu / records * 1e6:8.2f} µs")


def memory(shards):
    stream("bench-shards", shards, 0)
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder, "bench-shards")
        daemon.until(lambda: len(daemon.counted()) == shards)
        time.sleep(3)
        print(f"memory of the daemon, {shards} shards {daemon.memory_mib():6.1f} MiB")
        daemon.stop()


def main():
    records, shards = (list(map(int, sys.argv[1:])) + [200_000, 100][len(sys.argv) - 1 :])[:2]
    print(f"{records} records of 100 bytes, Python workers, leases in DynamoDB in KCL's layout")
    throughput(records)
    memory(shards)


main()
