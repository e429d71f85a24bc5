"""From Java's daemon 3.1.3 to ours and back, on one lease table, without reading again.

KCL_DAEMON is the folder of Java's daemon, with its jars in `lib`. Its fleet protocol is that of KCL 3.x: a leader assigns the
leases, so ours keeps off until nothing moves any more. With SLOW set, Java's daemon is also killed: it leaves its leader's lock
behind, which is good for two minutes.
"""

import os
import tempfile
import time

from stage import KEYS, Daemon, Records, Stream, check, dynamodb, recorder

# Java makes three tables and an index, waits for up to 30 s at random before it makes the leases, and assigns them later.
PATIENCE_S = 240
FAILOVER_MS = 3000


class Java(Daemon):
    """Java's MultiLangDaemon, at its defaults but for what makes it quick."""

    def defaults(self, stream):
        return {
            **super().defaults(stream),
            "failoverTimeMillis": FAILOVER_MS,
            "shutdownGraceMillis": 20000,
            "workerId": "java",
            "workerMetricsReporterFreqInMillis": 1000,
        }

    def command(self, properties):
        jars = os.path.join(os.environ["KCL_DAEMON"], "lib", "*")
        quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return ["java", *quick, "-cp", jars, "software.amazon.kinesis.multilang.MultiLangDaemon", "--properties-file", properties]


class Turn:
    """One daemon's turn: what it is given to do, and what it must not do again."""

    def __init__(self, name, folder, records, daemon):
        self.name, self.folder, self.records, self.stream = name, folder, records, records.stream
        self.before, self.put_before = len(records.deliveries()), records.first_deliveries()
        self.began = time.monotonic()
        executable, variables = recorder()
        self.daemon = daemon(folder, self.stream, executable, {**variables, "RECORDS": records.path}, failoverTimeMillis=FAILOVER_MS)

    def sees_all(self, what):
        seen = self.daemon.until(self.records.all_seen, PATIENCE_S)
        took = time.monotonic() - self.began
        print(f"# {self.name}: {what}, {took:.1f} s after its start", flush=True)
        check(f"{self.name}: {what}", seen, self.daemon.tail())

    def ends(self, codes):
        code = self.daemon.stop()
        check(f"{self.name}: it stops in order", code in codes, f"{code}\n{self.daemon.tail()}")

    def nothing_again(self):
        known = sum(map(len, self.put_before.values()))
        again = len(self.records.deliveries()) - self.before - (self.stream.total() - known)
        check(f"{self.name}: nothing is read again", again == 0, f"{again} came again")


def run():
    stream = Stream("java")
    with tempfile.TemporaryDirectory() as folder:
        records = Records(folder, stream)
        stream.round()
        java = Turn("java", folder, records, Java)
        java.sees_all("it begins on an empty table")
        kept_off(folder, stream, records)
        stream.round()
        java.sees_all("it goes on beside the one that was refused")
        java.ends({143})
        java.nothing_again()

        stream.round()
        places = checkpoints(stream)
        ours = Turn("java, then ours", folder, records, Daemon)
        ours.sees_all("it takes over and goes on")
        check("java, then ours: it begins exactly at Java's checkpoints", begun_at(records, places), (places, records.lines()))
        stream.split()
        stream.round()
        ours.sees_all("through a split")
        ours.ends({0})
        ours.nothing_again()

        stream.round()
        places = checkpoints(stream)
        back = Turn("java, ours, then java", folder, records, Java)
        back.sees_all("it goes on")
        check("java, ours, then java: it begins exactly at our checkpoints", begun_at(records, places), (places, records.lines()))
        stream.merge()
        stream.round()
        back.sees_all("through a merge")
        if os.environ.get("SLOW"):
            killed(folder, stream, records, back)
        else:
            back.ends({143})
            back.nothing_again()
        check("java and ours: nothing is lost and each key is in order", records.out_of_order() == [], records.out_of_order())


def kept_off(folder, stream, records):
    """Ours, started beside a Java worker at work."""
    own = os.path.join(folder, "refused")
    os.mkdir(own)
    before = owners(stream)
    daemon = Daemon(own, stream, *recorder(), failoverTimeMillis=FAILOVER_MS)
    code = daemon.exit_code()
    check("beside java: ours refuses to start", code == 2, f"{code}\n{daemon.tail()}")
    check("beside java: it says that KCL 3.x is at work", "a KCL 3.x fleet is active" in daemon.said(), daemon.tail())
    check("beside java: no lease changed hands", owners(stream) == before, (before, owners(stream)))


def killed(folder, stream, records, java):
    """Java's daemon is killed, and ours waits for the leader's lock that it left behind."""
    java.daemon.process.kill()
    java.daemon.process.wait()
    java.nothing_again()
    stream.round()
    ours = Turn("java killed, then ours", folder, records, Daemon)
    lock = leader_lock(stream)
    waits = ours.daemon.until(lambda: "KCL 3.x was the last to use the lease table" in ours.daemon.said())
    check("java killed, then ours: it says that it waits", waits, ours.daemon.tail())
    check("java killed, then ours: the lock is still there", lock is not None, lock)
    ours.sees_all("it takes over once the lock is old")
    took = time.monotonic() - ours.began
    check("java killed, then ours: not before", took * 1000 >= int(lock["leaseDuration"]["S"]) if lock else False, f"{took:.0f} s")
    ours.ends({0})
    ours.nothing_again()


def leader_lock(stream):
    table = f"{stream.application()}-CoordinatorState"
    return dynamodb.get_item(TableName=table, Key={"key": {"S": "Leader"}}, ConsistentRead=True).get("Item")


def owners(stream):
    return {key: row.get("leaseOwner", {}).get("S") for key, row in stream.rows().items()}


def checkpoints(stream):
    """Where each shard stands that has not ended."""
    places = {key: row["checkpoint"]["S"] for key, row in stream.rows().items()}
    return {key: place for key, place in places.items() if place != "SHARD_END"}


def begun_at(records, places):
    """Whether the workers that were started last, one a shard, began where the rows stood."""
    begun = {words[0]: words[2] for words in records.lines() if words[1] == "initialize"}
    return all(begun.get(shard) == place for shard, place in places.items())
