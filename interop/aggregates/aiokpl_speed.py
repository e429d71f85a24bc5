"""CPU per user record of aiokpl against an endpoint: `aiokpl_speed.py ENDPOINT RECORDS BYTES`.

Prints nanoseconds. Limits are off, as far as they go, so that nothing but the work is counted.
"""

import asyncio
import resource
import sys

from aiokpl import Config, Producer

ENDPOINT, RECORDS, BYTES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
KEYS = [f"key-{key:06}" for key in range(10_000)]
DATA = b"x" * BYTES


def spent():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def put(producer, records):
    outcomes = [
        await producer.put_record(stream="s", partition_key=KEYS[at % len(KEYS)], data=DATA)
        for at in range(records)
    ]
    await producer.flush()
    for outcome in outcomes:
        result = await outcome.wait()
        assert result.success, result


async def main():
    config = Config(
        region="eu-central-1",
        endpoint_url=ENDPOINT,
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
        rate_limit_records_per_sec_per_shard=1e9,
        rate_limit_bytes_per_sec_per_shard=1e12,
    )
    async with Producer(config) as producer:
        await put(producer, RECORDS // 10)
        before = spent()
        await put(producer, RECORDS)
        print(round((spent() - before) / RECORDS * 1e9))


asyncio.run(main())
