"""Conformance of a Kinesis endpoint, seen through boto3 at its default settings.

One function a promise; its docstring is the promise. Prints `ok NAME` or `not ok NAME: WHY`.
The endpoint comes from AWS_ENDPOINT_URL. Names given as arguments run only those checks.
"""

import hashlib
import sys
import threading
import time
import traceback
import uuid

import boto3
import botocore.exceptions

MIB = 1024 * 1024
TOP = 2**128 - 1
kinesis = boto3.client("kinesis")
dynamodb = boto3.client("dynamodb")
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


# ---- helpers of the checks ----------------------------------------------------------------


def new_stream(shards=2, **more):
    name = "c-" + uuid.uuid4().hex[:12]
    kinesis.create_stream(StreamName=name, ShardCount=shards, **more)
    await_active(name)
    return name


def await_active(name):
    deadline = time.time() + 30
    while summary(name)["StreamStatus"] != "ACTIVE":
        assert time.time() < deadline, f"{name} does not become ACTIVE"
        time.sleep(0.02)


def summary(name):
    return kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]


def shards(name, **more):
    return kinesis.list_shards(StreamName=name, **more)["Shards"]


def open_shards(name):
    return [s for s in shards(name) if "EndingSequenceNumber" not in s["SequenceNumberRange"]]


def ids(listed):
    return [s["ShardId"] for s in listed]


def hash_range(shard):
    r = shard["HashKeyRange"]
    return int(r["StartingHashKey"]), int(r["EndingHashKey"])


def put(name, key, data=b"x", **more):
    return kinesis.put_record(StreamName=name, PartitionKey=key, Data=data, **more)


def iterator(name, shard, kind="TRIM_HORIZON", **more):
    return kinesis.get_shard_iterator(
        StreamName=name, ShardId=shard, ShardIteratorType=kind, **more
    )["ShardIterator"]


def read_all(name, shard):
    """All records of a shard, and its last reply."""
    at, records, reply = iterator(name, shard), [], {}
    while at:
        reply = kinesis.get_records(ShardIterator=at)
        records += reply["Records"]
        at = reply.get("NextShardIterator")
        if not reply["Records"] and reply["MillisBehindLatest"] == 0:
            break
    return records, reply


def split(name, shard):
    low, high = hash_range(shard)
    kinesis.split_shard(
        StreamName=name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2 + 1)
    )
    await_active(name)


def merge(name, one, other):
    kinesis.merge_shards(
        StreamName=name, ShardToMerge=one["ShardId"], AdjacentShardToMerge=other["ShardId"]
    )
    await_active(name)


def refused(code, call, **arguments):
    """The call must fail with the error type `code`, on the first try, as the client's fault."""
    try:
        call(**arguments)
    except botocore.exceptions.ClientError as error:
        got = error.response["Error"]["Code"]
        assert got == code, f"expected {code}, got {got}: {error}"
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert status == 400, f"HTTP {status}"
        assert error.response["Error"].get("Message"), "no message"
        return error
    raise AssertionError(f"expected {code}, but the call succeeded")


# ---- streams ------------------------------------------------------------------------------


@check
def create_and_describe():
    """CreateStream, DescribeStream (with Limit), DescribeStreamSummary, ListStreams, limits."""
    name = new_stream(5)
    page = kinesis.describe_stream(StreamName=name, Limit=2)["StreamDescription"]
    assert len(page["Shards"]) == 2 and page["HasMoreShards"], page
    rest = kinesis.describe_stream(StreamName=name, ExclusiveStartShardId=ids(page["Shards"])[-1])
    assert len(rest["StreamDescription"]["Shards"]) == 3
    s = summary(name)
    assert s["OpenShardCount"] == 5 and s["ConsumerCount"] == 0 and s["RetentionPeriodHours"] == 24
    assert s["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}, s
    assert s["StreamARN"].endswith(f":stream/{name}")
    assert abs(s["StreamCreationTimestamp"].timestamp() - time.time()) < 60
    assert name in [n for p in kinesis.get_paginator("list_streams").paginate() for n in p["StreamNames"]]
    limits = kinesis.describe_limits()
    assert limits["OpenShardCount"] >= 5 and limits["ShardLimit"] >= limits["OpenShardCount"]
    refused("ResourceInUseException", kinesis.create_stream, StreamName=name, ShardCount=1)
    refused("ResourceNotFoundException", kinesis.describe_stream_summary, StreamName="nowhere")


@check
def list_streams_pages():
    """ListStreams gives NextToken beside HasMoreStreams, and the paginator ends."""
    made = {new_stream(1) for _ in range(3)}
    page = kinesis.list_streams(Limit=1)
    assert page["HasMoreStreams"] and page["NextToken"], page
    pages = kinesis.get_paginator("list_streams").paginate(PaginationConfig={"PageSize": 1})
    assert made <= {n for p in pages for n in p["StreamNames"]}


@check
def arn_instead_of_name():
    """Every call takes the stream's ARN in place of its name."""
    name = new_stream(1)
    arn = summary(name)["StreamARN"]
    kinesis.describe_stream(StreamARN=arn)
    kinesis.describe_stream_summary(StreamARN=arn)
    shard = kinesis.list_shards(StreamARN=arn)["Shards"][0]["ShardId"]
    kinesis.put_record(StreamARN=arn, PartitionKey="a", Data=b"1")
    kinesis.put_records(StreamARN=arn, Records=[{"PartitionKey": "a", "Data": b"2"}])
    at = kinesis.get_shard_iterator(StreamARN=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    got = kinesis.get_records(StreamARN=arn, ShardIterator=at["ShardIterator"])["Records"]
    assert [r["Data"] for r in got] == [b"1", b"2"], got
    kinesis.add_tags_to_stream(StreamARN=arn, Tags={"team": "a"})
    assert kinesis.list_tags_for_stream(StreamARN=arn)["Tags"] == [{"Key": "team", "Value": "a"}]
    kinesis.increase_stream_retention_period(StreamARN=arn, RetentionPeriodHours=48)
    kinesis.delete_stream(StreamARN=arn)


@check
def on_demand_streams():
    """An ON_DEMAND stream needs no shard count and begins with four shards."""
    name = "c-" + uuid.uuid4().hex[:12]
    kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    await_active(name)
    assert len(open_shards(name)) == 4
    assert summary(name)["StreamModeDetails"]["StreamMode"] == "ON_DEMAND"
    kinesis.update_stream_mode(
        StreamARN=summary(name)["StreamARN"], StreamModeDetails={"StreamMode": "PROVISIONED"}
    )
    await_active(name)
    assert summary(name)["StreamModeDetails"]["StreamMode"] == "PROVISIONED"


@check
def states_of_a_stream():
    """CREATING, UPDATING and DELETING are seen, and data calls are refused while CREATING."""
    name = "c-" + uuid.uuid4().hex[:12]
    kinesis.create_stream(StreamName=name, ShardCount=1)
    assert summary(name)["StreamStatus"] == "CREATING"
    refused("ResourceNotFoundException", kinesis.put_record, StreamName=name, PartitionKey="a", Data=b"")
    await_active(name)
    shard = shards(name)[0]
    kinesis.split_shard(StreamName=name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    assert summary(name)["StreamStatus"] == "UPDATING"
    refused(
        "ResourceInUseException",
        kinesis.split_shard,
        StreamName=name,
        ShardToSplit=shard["ShardId"],
        NewStartingHashKey=str(2**126),
    )
    put(name, "a")
    await_active(name)
    kinesis.delete_stream(StreamName=name)
    assert summary(name)["StreamStatus"] == "DELETING"
    kinesis.get_waiter("stream_not_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    refused("ResourceNotFoundException", put, name=name, key="a")


@check
def settings_of_a_stream():
    """Retention, tags, encryption, monitoring and the record maximum can be changed and read."""
    name = new_stream(1)
    arn = summary(name)["StreamARN"]
    kinesis.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=72)
    await_active(name)
    assert summary(name)["RetentionPeriodHours"] == 72
    kinesis.decrease_stream_retention_period(StreamName=name, RetentionPeriodHours=24)
    await_active(name)
    refused(
        "InvalidArgumentException",
        kinesis.decrease_stream_retention_period,
        StreamName=name,
        RetentionPeriodHours=23,
    )
    kinesis.add_tags_to_stream(StreamName=name, Tags={"a": "1", "b": "2"})
    kinesis.remove_tags_from_stream(StreamName=name, TagKeys=["a"])
    assert kinesis.list_tags_for_stream(StreamName=name)["Tags"] == [{"Key": "b", "Value": "2"}]
    kinesis.tag_resource(ResourceARN=arn, Tags={"c": "3"})
    assert len(kinesis.list_tags_for_resource(ResourceARN=arn)["Tags"]) == 2
    kinesis.untag_resource(ResourceARN=arn, TagKeys=["c"])
    kinesis.start_stream_encryption(StreamName=name, EncryptionType="KMS", KeyId="alias/aws/kinesis")
    await_active(name)
    assert put(name, "a")["EncryptionType"] == "KMS"
    kinesis.stop_stream_encryption(StreamName=name, EncryptionType="KMS", KeyId="alias/aws/kinesis")
    await_active(name)
    on = kinesis.enable_enhanced_monitoring(StreamName=name, ShardLevelMetrics=["IncomingBytes"])
    assert on["DesiredShardLevelMetrics"] == ["IncomingBytes"], on
    off = kinesis.disable_enhanced_monitoring(StreamName=name, ShardLevelMetrics=["ALL"])
    assert off["CurrentShardLevelMetrics"] == ["IncomingBytes"], off


# ---- shards -------------------------------------------------------------------------------


@check
def list_shards_pages():
    """ListShards pages by NextToken; the token stands alone."""
    name = new_stream(7)
    page = kinesis.list_shards(StreamName=name, MaxResults=3)
    seen = page["Shards"]
    while "NextToken" in page:
        page = kinesis.list_shards(NextToken=page["NextToken"], MaxResults=3)
        seen += page["Shards"]
    assert ids(seen) == ids(shards(name)) and len(seen) == 7
    token = kinesis.list_shards(StreamName=name, MaxResults=3)["NextToken"]
    refused("InvalidArgumentException", kinesis.list_shards, StreamName=name, NextToken=token)
    assert len(kinesis.list_shards(StreamName=name, ExclusiveStartShardId=ids(seen)[4])["Shards"]) == 2


@check
def shard_filters():
    """All six ShardFilter types tell the shards of their time apart."""
    name = new_stream(2)
    first = shards(name)
    time.sleep(0.05)
    between = time.time()
    time.sleep(0.05)
    split(name, first[0])
    children = [s for s in shards(name) if s.get("ParentShardId") == first[0]["ShardId"]]
    every = sorted(ids(first) + ids(children))
    open_now = sorted([first[1]["ShardId"]] + ids(children))
    now = time.time() + 5
    cases = [
        ({"Type": "AT_LATEST"}, open_now),
        ({"Type": "AT_TRIM_HORIZON"}, sorted(ids(first))),
        ({"Type": "FROM_TRIM_HORIZON"}, every),
        ({"Type": "AT_TIMESTAMP", "Timestamp": between}, sorted(ids(first))),
        ({"Type": "AT_TIMESTAMP", "Timestamp": now}, open_now),
        ({"Type": "FROM_TIMESTAMP", "Timestamp": between}, every),
        ({"Type": "FROM_TIMESTAMP", "Timestamp": now}, open_now),
        ({"Type": "AFTER_SHARD_ID", "ShardId": first[0]["ShardId"]}, [s for s in every if s > first[0]["ShardId"]]),
    ]
    for shard_filter, expected in cases:
        got = sorted(ids(shards(name, ShardFilter=shard_filter)))
        assert got == expected, f"{shard_filter}: expected {expected}, got {got}"


@check
def splits():
    """A split closes the parent and opens two children that name it; a closed shard can't be split."""
    name = new_stream(1)
    parent = shards(name)[0]
    last = put(name, "a")["SequenceNumber"]
    split(name, parent)
    closed, low, high = sorted(shards(name), key=lambda s: s["ShardId"])
    assert closed["ShardId"] == parent["ShardId"]
    assert int(closed["SequenceNumberRange"]["EndingSequenceNumber"]) > int(last)
    assert low["ParentShardId"] == high["ParentShardId"] == parent["ShardId"]
    assert hash_range(low)[0] == 0 and hash_range(low)[1] + 1 == hash_range(high)[0]
    assert hash_range(high)[1] == TOP
    for child in (low, high):
        start = int(child["SequenceNumberRange"]["StartingSequenceNumber"])
        assert start > int(closed["SequenceNumberRange"]["EndingSequenceNumber"]), child
    more = dict(StreamName=name, ShardToSplit=parent["ShardId"], NewStartingHashKey=str(2**126))
    refused("InvalidArgumentException", kinesis.split_shard, **more)
    edge = dict(StreamName=name, ShardToSplit=low["ShardId"], NewStartingHashKey="0")
    refused("InvalidArgumentException", kinesis.split_shard, **edge)
    gone = dict(StreamName=name, ShardToSplit="shardId-000000000099", NewStartingHashKey="5")
    refused("ResourceNotFoundException", kinesis.split_shard, **gone)


@check
def merges():
    """A merge names both parents; only open neighbours can be merged."""
    name = new_stream(3)
    one, two, three = shards(name)
    refused(
        "InvalidArgumentException",
        kinesis.merge_shards,
        StreamName=name,
        ShardToMerge=one["ShardId"],
        AdjacentShardToMerge=three["ShardId"],
    )
    merge(name, one, two)
    child = [s for s in shards(name) if s.get("AdjacentParentShardId")]
    assert len(child) == 1 and {child[0]["ParentShardId"], child[0]["AdjacentParentShardId"]} == {
        one["ShardId"],
        two["ShardId"],
    }
    assert hash_range(child[0]) == (hash_range(one)[0], hash_range(two)[1])
    refused(
        "InvalidArgumentException",
        kinesis.merge_shards,
        StreamName=name,
        ShardToMerge=one["ShardId"],
        AdjacentShardToMerge=two["ShardId"],
    )


@check
def update_shard_count():
    """UpdateShardCount 2 → 4 → 2 leaves eight shards, each new one with its parents."""
    name = new_stream(2)
    for count in (4, 2):
        kinesis.update_shard_count(StreamName=name, TargetShardCount=count, ScalingType="UNIFORM_SCALING")
        await_active(name)
        now = sorted(hash_range(s) for s in open_shards(name))
        assert len(now) == count, now
        assert now[0][0] == 0 and now[-1][1] == TOP
        assert all(a[1] + 1 == b[0] for a, b in zip(now, now[1:]))
    every = shards(name)
    assert len(every) == 8, len(every)
    assert len([s for s in every if "ParentShardId" in s]) == 6
    assert len([s for s in every if "AdjacentParentShardId" in s]) == 2


@check
def sequence_numbers_ascend_over_reshards():
    """Over three reshards, a key's sequence numbers ascend as integers, at least 56 digits long."""
    name, seen = new_stream(1), []
    for step in range(4):
        seen += [int(put(name, "key")["SequenceNumber"]) for _ in range(3)]
        now = sorted(open_shards(name), key=hash_range)
        if step < 2:
            split(name, now[0])
        elif step == 2:
            merge(name, now[0], now[1])
    assert seen == sorted(set(seen)), seen
    assert len(str(seen[0])) == 56, len(str(seen[0]))


# ---- writing ------------------------------------------------------------------------------


@check
def put_record_with_ordering():
    """SequenceNumberForOrdering is taken, numbers ascend, a bad one is the client's fault."""
    name = new_stream(1)
    first = put(name, "a", b"1")["SequenceNumber"]
    second = put(name, "a", b"2", SequenceNumberForOrdering=first)["SequenceNumber"]
    assert int(second) > int(first)
    bad = dict(StreamName=name, PartitionKey="a", Data=b"", SequenceNumberForOrdering="12")
    refused("InvalidArgumentException", kinesis.put_record, **bad)
    got = read_all(name, "shardId-000000000000")[0]
    arrived = got[0]["ApproximateArrivalTimestamp"].timestamp()
    assert abs(arrived - time.time()) < 60
    fractions = []
    for _ in range(3):
        put(name, "a")
        time.sleep(0.007)
    for record in read_all(name, "shardId-000000000000")[0]:
        fractions.append(record["ApproximateArrivalTimestamp"].microsecond)
    assert any(fractions), "arrival times are whole seconds"


@check
def routing_by_hash():
    """Keys go by MD5, explicit hash keys by value, up to 2^128 - 1 and not beyond."""
    name = new_stream(4)
    listed = shards(name)

    def owner(value):
        return next(s["ShardId"] for s in listed if hash_range(s)[0] <= value <= hash_range(s)[1])

    for key in ["a", "b", "ключ", "鍵", "x" * 256]:
        value = int.from_bytes(hashlib.md5(key.encode()).digest(), "big")
        assert put(name, key)["ShardId"] == owner(value), key
    for value in [0, 1, 2**126, 2**127 - 1, 2**127, TOP]:
        assert put(name, "a", ExplicitHashKey=str(value))["ShardId"] == owner(value), value
    for bad in [str(TOP + 1), "-1", "x"]:
        try:
            put(name, "a", ExplicitHashKey=bad)
            raise AssertionError(f"explicit hash key {bad} was accepted")
        except botocore.exceptions.ClientError as error:
            code = error.response["Error"]["Code"]
            assert code in ("InvalidArgumentException", "ValidationException"), code


@check
def put_records_keeps_order():
    """500 records keep their order in each shard; 501, none, or empty keys are refused."""
    name = new_stream(2)
    rows = [{"PartitionKey": f"k{i}", "Data": str(i).encode()} for i in range(500)]
    reply = kinesis.put_records(StreamName=name, Records=rows)
    assert reply["FailedRecordCount"] == 0 and len(reply["Records"]) == 500
    total = 0
    for shard in shards(name):
        records = read_all(name, shard["ShardId"])[0]
        numbers = [int(r["Data"]) for r in records]
        assert numbers == sorted(numbers)
        for record in records:
            placed = reply["Records"][int(record["Data"])]
            assert placed["ShardId"] == shard["ShardId"]
            assert placed["SequenceNumber"] == record["SequenceNumber"]
        total += len(numbers)
    assert total == 500
    one_more = rows + [{"PartitionKey": "k", "Data": b""}]
    unchecked = boto3.client("kinesis", config=boto3.session.Config(parameter_validation=False))
    for bad in (one_more, []):
        refused("ValidationException", unchecked.put_records, StreamName=name, Records=bad)


@check
def write_limits_of_a_shard_can_be_enforced():
    """With limits on, a shard takes 1,000 records a second, and the rest fail one by one."""
    name = new_stream(1)
    control("POST", "/_anabranch/limits", {"enforce": True})
    try:
        rows = [{"PartitionKey": "k", "Data": b"x"}] * 500
        replies = [kinesis.put_records(StreamName=name, Records=rows) for _ in range(4)]
        codes = [r.get("ErrorCode") for reply in replies for r in reply["Records"]]
        assert codes.count(None) >= 1000, codes.count(None)
        assert "ProvisionedThroughputExceededException" in codes, set(codes)
        failed = [r for reply in replies for r in reply["Records"] if "ErrorCode" in r]
        assert "Rate exceeded for shard shardId-000000000000" in failed[0]["ErrorMessage"]
        # One call a second more than allowed; the client tries again by itself, so watch its log.
        at, throttled = iterator(name, "shardId-000000000000"), 0
        once = boto3.client("kinesis", config=boto3.session.Config(retries={"total_max_attempts": 1}))
        for _ in range(8):
            try:
                once.get_records(ShardIterator=at, Limit=1)
            except once.exceptions.ProvisionedThroughputExceededException:
                throttled += 1
        assert throttled >= 2, throttled
    finally:
        control("POST", "/_anabranch/limits", {"enforce": False})


@check
def record_and_request_sizes():
    """1 MiB with its key passes, one byte more is refused, and so is a request of over 5 MiB."""
    name = new_stream(1)
    put(name, "k", b"x" * (MIB - 1))
    refused("InvalidArgumentException", kinesis.put_record, StreamName=name, PartitionKey="k", Data=b"x" * MIB)
    refused("ValidationException", kinesis.put_record, StreamName=name, PartitionKey="k", Data=b"x" * (MIB + 1))
    rows = [{"PartitionKey": "k", "Data": b"x" * (MIB - 1)}] * 6
    refused("InvalidArgumentException", kinesis.put_records, StreamName=name, Records=rows)


@check
def large_records():
    """After UpdateMaxRecordSize, a record of 9 MiB goes in and comes out."""
    name = new_stream(1)
    kinesis.update_max_record_size(StreamARN=summary(name)["StreamARN"], MaxRecordSizeInKiB=10240)
    await_active(name)
    data = bytes(range(256)) * (9 * 4096)
    put(name, "k", data)
    assert read_all(name, "shardId-000000000000")[0][0]["Data"] == data


# ---- reading ------------------------------------------------------------------------------


@check
def five_iterator_types():
    """All five iterator types, Limit, and a garbage iterator that is the client's fault."""
    name, shard = new_stream(1), "shardId-000000000000"
    numbers = []
    for i in range(5):
        numbers.append(put(name, "a", str(i).encode())["SequenceNumber"])
        time.sleep(0.03)
    arrived = [r["ApproximateArrivalTimestamp"] for r in read_all(name, shard)[0]]
    cases = [
        ("TRIM_HORIZON", {}, 0),
        ("AT_SEQUENCE_NUMBER", {"StartingSequenceNumber": numbers[2]}, 2),
        ("AFTER_SEQUENCE_NUMBER", {"StartingSequenceNumber": numbers[2]}, 3),
        ("AT_TIMESTAMP", {"Timestamp": arrived[3]}, 3),
        ("LATEST", {}, 5),
    ]
    for kind, more, first in cases:
        got = kinesis.get_records(ShardIterator=iterator(name, shard, kind, **more))["Records"]
        assert [int(r["Data"]) for r in got] == list(range(first, 5)), (kind, got)
    page = kinesis.get_records(ShardIterator=iterator(name, shard), Limit=2)
    rest = kinesis.get_records(ShardIterator=page["NextShardIterator"])
    assert len(page["Records"]) == 2 and len(rest["Records"]) == 3
    refused("InvalidArgumentException", kinesis.get_records, ShardIterator="garbage")
    nowhere = dict(StreamName=name, ShardId="shardId-000000000009", ShardIteratorType="LATEST")
    refused("ResourceNotFoundException", kinesis.get_shard_iterator, **nowhere)


@check
def iterators_expire():
    """An expired iterator is refused as such."""
    name = new_stream(1)
    at = iterator(name, "shardId-000000000000")
    control("POST", "/_anabranch/expire-iterators", {})
    refused("ExpiredIteratorException", kinesis.get_records, ShardIterator=at)
    kinesis.get_records(ShardIterator=iterator(name, "shardId-000000000000"))


@check
def millis_behind_latest():
    """MillisBehindLatest is the age of what is still unread, and 0 at the tip."""
    name, shard = new_stream(1), "shardId-000000000000"
    put(name, "a")
    put(name, "a")
    time.sleep(1.2)
    page = kinesis.get_records(ShardIterator=iterator(name, shard), Limit=1)
    assert 1000 <= page["MillisBehindLatest"] < 60_000, page["MillisBehindLatest"]
    rest = kinesis.get_records(ShardIterator=page["NextShardIterator"])
    assert rest["MillisBehindLatest"] == 0, rest["MillisBehindLatest"]


@check
def end_of_a_shard():
    """The last records of a closed shard come with its children and without an iterator."""
    name = new_stream(2)
    one, two = shards(name)
    for i in range(20):
        put(name, f"k{i}")
    split(name, one)
    records, reply = read_all(name, one["ShardId"])
    assert records and reply.get("NextShardIterator") is None, reply
    children = reply["ChildShards"]
    assert len(children) == 2 and all(c["ParentShards"] == [one["ShardId"]] for c in children)
    assert sorted(hash_range(c) for c in children)[0][0] == 0
    low = [s for s in shards(name) if s["ShardId"] == sorted(ids(children))[-1]][0]
    merge(name, low, two)
    reply = read_all(name, two["ShardId"])[1]
    assert reply.get("NextShardIterator") is None
    merged = reply["ChildShards"]
    assert len(merged) == 1 and set(merged[0]["ParentShards"]) == {low["ShardId"], two["ShardId"]}


@check
def replies_of_at_most_ten_mib():
    """A GetRecords reply holds at most 10 MiB and 10,000 records."""
    name, shard = new_stream(1), "shardId-000000000000"
    for _ in range(3):
        rows = [{"PartitionKey": "k", "Data": b"x" * (MIB - 1)}] * 4
        kinesis.put_records(StreamName=name, Records=rows)
    at, sizes = iterator(name, shard), []
    while sum(sizes) < 12:
        reply = kinesis.get_records(ShardIterator=at)
        assert sum(len(r["Data"]) for r in reply["Records"]) <= 10 * MIB
        sizes.append(len(reply["Records"]))
        at = reply["NextShardIterator"]
    assert sum(sizes) == 12 and max(sizes) >= 8, sizes


@check
def tailing_reader_misses_nothing():
    """A reader that tails four writers sees every record once, in one order."""
    name, shard = new_stream(1), "shardId-000000000000"
    written, done = [], threading.Event()

    def write(writer):
        client = boto3.session.Session().client("kinesis")
        for batch in range(30):
            rows = [{"PartitionKey": "k", "Data": f"{writer}.{batch}.{i}".encode()} for i in range(20)]
            reply = client.put_records(StreamName=name, Records=rows)
            written.extend(r["SequenceNumber"] for r in reply["Records"])

    writers = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    at, seen = iterator(name, shard), []
    for writer in writers:
        writer.start()
    while True:
        finished = not any(w.is_alive() for w in writers)
        reply = kinesis.get_records(ShardIterator=at)
        seen += [r["SequenceNumber"] for r in reply["Records"]]
        at = reply["NextShardIterator"]
        if finished and not reply["Records"]:
            break
    done.set()
    assert len(seen) == len(written) == 2400, (len(seen), len(written))
    assert seen == sorted(seen, key=int) and set(seen) == set(written)


# ---- fan-out ------------------------------------------------------------------------------


@check
def stream_consumers():
    """Consumers are registered once, described, listed and removed."""
    name = new_stream(1)
    arn = summary(name)["StreamARN"]
    made = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="one")["Consumer"]
    assert made["ConsumerStatus"] == "CREATING", made
    refused("ResourceInUseException", kinesis.register_stream_consumer, StreamARN=arn, ConsumerName="one")
    consumer = await_consumer(arn, "one")
    assert consumer["ConsumerARN"] == made["ConsumerARN"]
    assert [c["ConsumerName"] for c in kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]] == ["one"]
    assert summary(name)["ConsumerCount"] == 1
    kinesis.deregister_stream_consumer(StreamARN=arn, ConsumerName="one")
    deadline = time.time() + 20
    while kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]:
        assert time.time() < deadline
        time.sleep(0.05)


def await_consumer(arn, name):
    deadline = time.time() + 20
    while True:
        found = kinesis.describe_stream_consumer(StreamARN=arn, ConsumerName=name)["ConsumerDescription"]
        if found["ConsumerStatus"] == "ACTIVE":
            return found
        assert time.time() < deadline
        time.sleep(0.02)


@check
def subscribe_to_shard():
    """A subscription gives what is there and what comes, and ends with the shard and its children."""
    name = new_stream(1)
    arn, shard = summary(name)["StreamARN"], shards(name)[0]
    kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="fan")
    consumer = await_consumer(arn, "fan")["ConsumerARN"]
    for i in range(3):
        put(name, "a", str(i).encode())
    more = dict(ConsumerARN=consumer, ShardId=shard["ShardId"], StartingPosition={"Type": "TRIM_HORIZON"})
    events = kinesis.subscribe_to_shard(**more)["EventStream"]
    refused("ResourceInUseException", kinesis.subscribe_to_shard, **more)

    def go_on():
        for i in range(3, 6):
            put(name, "a", str(i).encode())
        split(name, shard)

    writer = threading.Timer(0.3, go_on)
    writer.start()
    seen, last = [], None
    for event in events:
        last = event["SubscribeToShardEvent"]
        seen += [int(r["Data"]) for r in last["Records"]]
    writer.join()
    assert seen == list(range(6)), seen
    assert len(last["ChildShards"]) == 2 and not last.get("ContinuationSequenceNumber"), last
    wrong = dict(more, ConsumerARN=consumer.replace("fan", "nobody"))
    refused("ResourceNotFoundException", kinesis.subscribe_to_shard, **wrong)


# ---- beside the stream --------------------------------------------------------------------


@check
def errors_are_the_clients_fault():
    """Bad input gets a typed 400 with a message, never a 500."""
    name = new_stream(1)
    refused("ValidationException", kinesis.put_record, StreamName=name, PartitionKey="x" * 257, Data=b"")
    refused("ValidationException", kinesis.create_stream, StreamName="no spaces", ShardCount=1)
    refused("ResourceNotFoundException", kinesis.put_record, StreamName="nowhere", PartitionKey="a", Data=b"")
    client = boto3.client("kinesis", config=boto3.session.Config(parameter_validation=False))
    refused("ValidationException", client.put_record, StreamName=name, PartitionKey="", Data=b"")
    refused("ValidationException", client.put_record, StreamName=name, Data=b"")
    refused("LimitExceededException", kinesis.create_stream, StreamName="too-many", ShardCount=100_000)


@check
def faults_on_request():
    """A fault strikes as often as asked, then the stream is well again."""
    name = new_stream(1)
    once = boto3.client("kinesis", config=boto3.session.Config(retries={"total_max_attempts": 1}))
    fault = {"operation": "PutRecord", "stream": name, "effect": "Throttle", "count": 1}
    control("POST", "/_anabranch/faults", fault)
    try:
        once.put_record(StreamName=name, PartitionKey="a", Data=b"1")
        raise AssertionError("no fault")
    except once.exceptions.ProvisionedThroughputExceededException:
        pass
    once.put_record(StreamName=name, PartitionKey="a", Data=b"2")
    control("POST", "/_anabranch/faults", {**fault, "effect": "DropReply"})
    try:
        once.put_record(StreamName=name, PartitionKey="a", Data=b"3")
        raise AssertionError("a reply came")
    except botocore.exceptions.HTTPClientError:
        pass
    got = [r["Data"] for r in read_all(name, "shardId-000000000000")[0]]
    assert got == [b"2", b"3"], got


@check
def dynamodb_on_the_same_port():
    """DynamoDB answers on the same endpoint: tables, conditional writes, scans."""
    table = "t-" + uuid.uuid4().hex[:12]
    dynamodb.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    dynamodb.get_waiter("table_exists").wait(TableName=table)
    row = {"leaseKey": {"S": "shardId-000000000000"}, "leaseCounter": {"N": "0"}}
    fresh = dict(TableName=table, Item=row, ConditionExpression="attribute_not_exists(leaseKey)")
    dynamodb.put_item(**fresh)
    refused("ConditionalCheckFailedException", dynamodb.put_item, **fresh)
    assert dynamodb.scan(TableName=table)["Count"] == 1
    refused("ResourceNotFoundException", dynamodb.describe_table, TableName="nowhere")


@check
def metrics_are_accepted():
    """CloudWatch's PutMetricData is accepted, so that a client with metrics on doesn't fail."""
    boto3.client("cloudwatch").put_metric_data(
        Namespace="n", MetricData=[{"MetricName": "m", "Value": 1.0, "Unit": "Count"}]
    )


def control(method, path, body):
    """A call to the control endpoint of `anabranch local`."""
    import json
    import os
    import ssl
    import urllib.request

    url = kinesis.meta.endpoint_url.rstrip("/") + path
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    with urllib.request.urlopen(request, timeout=10, context=trusted) as reply:
        return reply.read()


def main():
    wanted, failures = sys.argv[1:], 0
    for function in CHECKS:
        if wanted and function.__name__ not in wanted:
            continue
        try:
            function()
            print(f"ok {function.__name__}", flush=True)
        except Exception as error:  # noqa: BLE001 - a check may fail in any way
            failures += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:400] or type(error).__name__
            print(f"not ok {function.__name__}: line {where.lineno}: {text}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
