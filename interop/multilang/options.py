"""The settings of the daemon that change what it does, each through the whole daemon."""

import base64
import http.server
import json
import os
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from stage import ENDPOINT, HERE, KEYS, PATIENCE_S, PYTHON, Daemon, Records, Stream, check, dynamodb, kinesis, recorder, whole_lines


def run():
    for case in (
        exit_on_failure,
        stop_at_once,
        stop_while_stuck,
        old_shutdown_messages,
        raw_standard_error,
        wrapper,
        leases_in_sqlite,
        fan_out,
        metrics,
        role,
    ):
        with tempfile.TemporaryDirectory() as folder:
            case(folder)


class Golden:
    """A worker without any library, and what it heard."""

    def __init__(self, folder):
        self.executable = f"{PYTHON} {os.path.join(HERE, 'golden.py')}"
        self.path = os.path.join(folder, "heard")
        self.variables = {"HEARD": self.path}

    def heard(self):
        return [(int(line.split(" ", 1)[0]), json.loads(line.split(" ", 1)[1])) for line in whole_lines(self.path)]

    def actions(self):
        return [message["action"] for _, message in self.heard()]

    def keys_seen(self):
        batches = [message["records"] for _, message in self.heard() if message["action"] == "processRecords"]
        return {base64.b64decode(record["data"]) for batch in batches for record in batch}

    def alive(self):
        return [pid for pid in {pid for pid, _ in self.heard()} if runs(pid)]


def runs(pid):
    """Whether it runs. One that nobody has reaped yet does not."""
    try:
        return ") Z " not in open(f"/proc/{pid}/stat").read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(what):
    deadline = time.monotonic() + PATIENCE_S
    while not what() and time.monotonic() < deadline:
        time.sleep(0.1)
    return what()


def exit_on_failure(folder):
    stream = Stream("exit-on-failure")
    records = Records(folder, stream)
    executable, variables = recorder()
    variables = {**variables, "RECORDS": records.path, "POISON": "key3.2"}
    stream.round()
    daemon = Daemon(folder, stream, executable, variables, onChildFailure="exit")
    code = daemon.exit_code()
    check("onChildFailure=exit: a worker that dies ends the daemon with 1", code == 1, f"{code}\n{daemon.tail()}")
    check("onChildFailure=exit: it says so", "onChildFailure is exit" in daemon.said(), daemon.tail())
    check("onChildFailure=exit: no worker was started again", records.words().count("initialize") <= 2, records.words())
    deliveries = records.first_deliveries()
    check("onChildFailure=exit: nothing after that batch was given", deliveries["key3"] == stream.put["key3"][:3], deliveries)


def stop_at_once(folder):
    stream, golden = Stream("stop-at-once"), Golden(folder)
    stream.round()
    daemon = Daemon(folder, stream, golden.executable, golden.variables, shutdownGraceMillis=0)
    seen = daemon.until(lambda: len(golden.keys_seen()) == stream.total())
    check("shutdownGraceMillis=0: records come", seen, daemon.tail())
    code = daemon.stop()
    check("shutdownGraceMillis=0: SIGTERM ends it", code == 0, f"{code}\n{daemon.tail()}")
    check("shutdownGraceMillis=0: no worker is left behind", soon(lambda: golden.alive() == []), golden.alive())
    told = [action for action in golden.actions() if action in ("shutdownRequested", "leaseLost", "gone")]
    check("shutdownGraceMillis=0: no worker is told", told == [], told)
    check("shutdownGraceMillis=0: no lease is given back", len(stream.owners()) == 2, stream.rows())


def stop_while_stuck(folder):
    stream, golden = Stream("stuck"), Golden(folder)
    stream.round()
    stuck = {**golden.variables, "STUCK": "1"}
    daemon = Daemon(folder, stream, golden.executable, stuck, shutdownGraceMillis=0)
    at_work = daemon.until(lambda: golden.actions().count("processRecords") == 2)
    daemon.stop()
    gone = soon(lambda: golden.alive() == [])
    check("shutdownGraceMillis=0: a worker in the middle of a batch is killed", at_work and gone, f"{golden.alive()}\n{daemon.tail()}")


def old_shutdown_messages(folder):
    stream, golden = Stream("kcl1", shards=1), Golden(folder)
    stream.round(1)
    daemon = Daemon(folder, stream, golden.executable, golden.variables, shutdownMessages="kcl1")
    daemon.until(lambda: len(golden.keys_seen()) == KEYS)
    stream.split()
    stream.round(1)
    seen = daemon.until(lambda: len(golden.keys_seen()) == 2 * KEYS)
    check("shutdownMessages=kcl1: records come, through a split", seen, daemon.tail())
    code = daemon.stop()
    check("shutdownMessages=kcl1: it stops in order", code == 0, f"{code}\n{daemon.tail()}")
    shutdowns = sorted(message["reason"] for _, message in golden.heard() if message["action"] == "shutdown")
    check("shutdownMessages=kcl1: a shard's end is TERMINATE, a lease that goes is ZOMBIE",
          shutdowns == ["TERMINATE", "ZOMBIE", "ZOMBIE"], shutdowns)
    new = [action for action in golden.actions() if action in ("leaseLost", "shardEnded")]
    check("shutdownMessages=kcl1: no message of KCL 2.x is sent", new == [], new)


def raw_standard_error(folder):
    stream, golden = Stream("stderr", shards=1), Golden(folder)
    for setting, raw in (("log", False), ("inherit", True)):
        own = os.path.join(folder, setting)
        os.mkdir(own)
        daemon = Daemon(own, stream, golden.executable, golden.variables, childStderr=setting)
        printed = daemon.until(lambda: "golden: begins" in daemon.said())
        daemon.stop()
        lines = [line for line in daemon.said().splitlines() if "golden: begins" in line]
        as_is = all(line == "golden: begins" for line in lines)
        named = all("anabranch::child" in line and "pid=" in line for line in lines)
        check(f"childStderr={setting}: standard error is {'raw' if raw else 'logged with shard and pid'}",
              printed and (as_is if raw else named), daemon.tail())


def wrapper(folder):
    stream, golden = Stream("wrapper", shards=1), Golden(folder)
    stream.round(1)
    daemon = Daemon(folder, stream, golden.executable, {**golden.variables, "WRAPPED": "1"}, shutdownGraceMillis=0)
    seen = daemon.until(lambda: len(golden.keys_seen()) == KEYS)
    daemon.stop()
    gone = soon(lambda: golden.alive() == [])
    check("a worker behind a wrapper goes with the daemon", seen and gone, f"{golden.alive()}\n{daemon.tail()}")


def leases_in_sqlite(folder):
    stream = Stream("sqlite")
    records = Records(folder, stream)
    executable, variables = recorder()
    variables = {**variables, "RECORDS": records.path}
    store = f"sqlite:{os.path.join(folder, 'leases.db')}"
    for turn in ("first", "second"):
        stream.round()
        daemon = Daemon(folder, stream, executable, variables, leaseStore=store)
        check(f"leaseStore=sqlite: the {turn} run sees every record", daemon.until(records.all_seen), daemon.tail())
        code = daemon.stop()
        check(f"leaseStore=sqlite: the {turn} run stops in order", code == 0, f"{code}\n{daemon.tail()}")
    check("leaseStore=sqlite: it goes on where it stopped", len(records.deliveries()) == stream.total(), records.words())
    check("leaseStore=sqlite: nothing is lost and each key is in order", records.out_of_order() == [], records.lines())
    tables = dynamodb.list_tables()["TableNames"]
    check("leaseStore=sqlite: DynamoDB has no table of it", stream.application() not in tables, tables)


def fan_out(folder):
    stream = Stream("fan-out")
    records = Records(folder, stream)
    executable, variables = recorder()
    stream.round()
    daemon = Daemon(folder, stream, executable, {**variables, "RECORDS": records.path}, retrievalMode="FANOUT")
    check("retrievalMode=FANOUT: every record reaches the worker", daemon.until(records.all_seen), daemon.tail())
    stream.round()
    stream.split()
    stream.round()
    check("retrievalMode=FANOUT: and through a split", daemon.until(records.all_seen), daemon.tail())
    consumers = kinesis.list_stream_consumers(StreamARN=stream.summary()["StreamARN"])["Consumers"]
    names = [consumer["ConsumerName"] for consumer in consumers]
    check("retrievalMode=FANOUT: the consumer has the application's name", names == [stream.application()], names)
    daemon.stop()
    check("retrievalMode=FANOUT: nothing is lost and each key is in order", records.out_of_order() == [], records.lines())


def metrics(folder):
    stream = Stream("metrics")
    records = Records(folder, stream)
    executable, variables = recorder()
    stream.round()
    settings = {"metricsLevel": "DETAILED", "metricsBufferTimeMillis": 500, "cloudWatchEndpoint": ENDPOINT}
    daemon = Daemon(folder, stream, executable, {**variables, "RECORDS": records.path}, **settings)
    daemon.until(records.all_seen)
    daemon.stop()
    data = json.load(urllib.request.urlopen(f"{ENDPOINT}/_anabranch/metrics"))["data"]
    data = [datum for datum in data if datum["Namespace"] == stream.application()]
    names = {(dict((d["Name"], d["Value"]) for d in datum["Dimensions"]).get("Operation"), datum["MetricName"]) for datum in data}
    expected = {
        ("ProcessTask", "RecordsProcessed"),
        ("ProcessTask", "DataBytesProcessed"),
        ("ProcessTask", "MillisBehindLatest"),
        ("ProcessTask", "RecordProcessor.processRecords.Time"),
        ("ApplicationTracker", "MillisBehindLatest"),
        ("TakeLeases", "TakenLeases"),
        ("RenewAllLeases", "CurrentLeases"),
    }
    check("metricsLevel=DETAILED: KCL's names arrive in the application's namespace", expected <= names, expected - names)
    processed = sum(d["StatisticValues"]["Sum"] for d in data if d["MetricName"] == "RecordsProcessed")
    check("metricsLevel=DETAILED: they count each record", processed == stream.total(), processed)


class Sts(http.server.BaseHTTPRequestHandler):
    """Gives out one role's credentials, and passes everything else on to the stream, with a note of whose it was."""

    asked, signers = [], set()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/" and body.startswith(b"Action=AssumeRole"):
            self.asked.append(dict(urllib.parse.parse_qsl(body.decode())))
            return self.answer(200, "text/xml", ROLE.encode())
        signature = self.headers.get("Authorization", "")
        self.signers.add(signature.partition("Credential=")[2].partition("/")[0])
        passed = {name: self.headers[name] for name in ("Content-Type", "X-Amz-Target", "Authorization") if self.headers[name]}
        request = urllib.request.Request(ENDPOINT + self.path, body, passed)
        try:
            with urllib.request.urlopen(request) as reply:
                self.answer(reply.status, reply.headers["Content-Type"], reply.read())
        except urllib.error.HTTPError as error:
            self.answer(error.code, error.headers["Content-Type"], error.read())

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ROLE = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<AssumedRoleUser><AssumedRoleId>AROA:daemon</AssumedRoleId><Arn>arn:aws:sts::123456789012:assumed-role/r/daemon</Arn></AssumedRoleUser>
<Credentials><AccessKeyId>ASIAOFTHEROLE</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult>
<ResponseMetadata><RequestId>0</RequestId></ResponseMetadata></AssumeRoleResponse>"""


def role(folder):
    stream = Stream("role", shards=1)
    records = Records(folder, stream)
    executable, variables = recorder()
    stream.round()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    provider = "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|daemon"
    settings = {
        "AwsCredentialsProvider": f"{provider}|externalId=the-id|endpoint={address}^us-east-1",
        "kinesisEndpoint": address,
        "dynamoDBEndpoint": address,
    }
    daemon = Daemon(folder, stream, executable, {**variables, "RECORDS": records.path}, **settings)
    check("a role: every record reaches the worker", daemon.until(records.all_seen), daemon.tail())
    daemon.stop()
    server.shutdown()
    asked = [(call.get("RoleArn"), call.get("RoleSessionName"), call.get("ExternalId")) for call in Sts.asked]
    expected = ("arn:aws:iam::123456789012:role/r", "daemon", "the-id")
    check("a role: it is asked for with its session and external id", asked and set(asked) == {expected}, asked)
    check("a role: every call is signed with its key", Sts.signers == {"ASIAOFTHEROLE"}, Sts.signers)
