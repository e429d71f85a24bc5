"""Aggregates of others: reads a stream with the decoders of aws_kinesis_agg and aiokpl, or fills one
with their encoders. Run by the producer's tests, with the usual AWS variables for the endpoint.

    exchange.py read STREAM          prints one line a user record: who, key, explicit hash key, data
    exchange.py write STREAM WHO     puts the records that it is given as such lines, without "who"

Keys and data are in hexadecimal; "-" is no explicit hash key.
"""

import asyncio
import base64
import os
import sys

import botocore.session
from aiokpl import Config, Producer
from aiokpl.aggregation import decode_aggregated, is_aggregated
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import iter_deaggregate_records

ENDPOINT = os.environ["AWS_ENDPOINT_URL_KINESIS"]
REGION = os.environ["AWS_REGION"]
CLIENT = botocore.session.get_session().create_client(
    "kinesis", region_name=REGION, endpoint_url=ENDPOINT
)


def stored(stream):
    """Every record of the stream as it is stored, shard by shard."""
    for shard in CLIENT.list_shards(StreamName=stream)["Shards"]:
        iterator = CLIENT.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            reply = CLIENT.get_records(ShardIterator=iterator, Limit=10000)
            yield from reply["Records"]
            if not reply["Records"]:
                break
            iterator = reply.get("NextShardIterator")


def show(who, key, explicit, data):
    print(who, key.encode().hex(), explicit or "-", data.hex() or "-")


def read(stream):
    for record in stored(stream):
        for user in iter_deaggregate_records([record], data_format="Boto3"):
            user = user["kinesis"]
            # What it took apart is in base64, what it left alone is not.
            data = base64.b64decode(user["data"]) if user.get("aggregated") else user["data"]
            show("aws_kinesis_agg", user["partitionKey"], user.get("explicitHashKey"), data)
        if is_aggregated(record["Data"]):
            for user in decode_aggregated(record["Data"]):
                show("aiokpl", user.partition_key, user.explicit_hash_key, user.data)
        else:
            show("aiokpl", record["PartitionKey"], None, record["Data"])


def given():
    for line in sys.stdin:
        key, explicit, data = line.split()
        explicit = None if explicit == "-" else explicit
        data = b"" if data == "-" else bytes.fromhex(data)
        yield bytes.fromhex(key).decode(), explicit, data


def write_with_aws_kinesis_agg(stream):
    aggregator = RecordAggregator()

    def put(full):
        key, explicit, data = full.get_contents()
        place = {"ExplicitHashKey": explicit} if explicit else {}
        CLIENT.put_record(StreamName=stream, PartitionKey=key, Data=bytes(data), **place)

    aggregator.on_record_complete(put, execute_on_new_thread=False)
    for key, explicit, data in given():
        aggregator.add_user_record(key, data, explicit)
    put(aggregator.clear_and_get())


async def write_with_aiokpl(stream):
    config = Config(
        region=REGION,
        endpoint_url=ENDPOINT,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    async with Producer(config) as producer:
        outcomes = [
            await producer.put_record(
                stream=stream, partition_key=key, data=data, explicit_hash_key=explicit
            )
            for key, explicit, data in given()
        ]
        await producer.flush()
        for outcome in outcomes:
            result = await outcome.wait()
            assert result.success, result


match sys.argv[1:]:
    case ["read", stream]:
        read(stream)
    case ["write", stream, "aws_kinesis_agg"]:
        write_with_aws_kinesis_agg(stream)
    case ["write", stream, "aiokpl"]:
        asyncio.run(write_with_aiokpl(stream))
    case _:
        sys.exit(__doc__)
