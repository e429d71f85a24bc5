// A round trip through the AWS SDK for JavaScript v3 at its default settings: HTTP/2 to an
// `http://` endpoint, and a GOAWAY as soon as the headers of a reply are in.
//
// One function a promise. Prints `ok NAME` or `not ok NAME: WHY`. The endpoint comes from
// AWS_ENDPOINT_URL. Names given as arguments run only those checks.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import * as dynamo from "@aws-sdk/client-dynamodb";
import * as k from "@aws-sdk/client-kinesis";

const kinesis = new k.Kinesis({});
const dynamodb = new dynamo.DynamoDB({});
const CHECK_SECONDS = 25;
const TOP = 2n ** 128n - 1n;

// ---- helpers of the checks ----------------------------------------------------------------

const bytes = (text) => new TextEncoder().encode(text);
const text = (data) => new TextDecoder().decode(data);
const newName = () => `js-${randomBytes(6).toString("hex")}`;

/** Runs `body` with the name of a new stream, which is gone afterwards. */
async function withStream(shards, body) {
  const name = newName();
  await kinesis.createStream({ StreamName: name, ShardCount: shards });
  try {
    await awaitActive(name);
    await body(name);
  } finally {
    await kinesis.deleteStream({ StreamName: name, EnforceConsumerDeletion: true });
  }
}

async function until(what, probe, seconds = 15) {
  for (const deadline = Date.now() + seconds * 1000; ; await sleep(20)) {
    const found = await probe();
    if (found) return found;
    assert.ok(Date.now() < deadline, `timed out: ${what}`);
  }
}

const summary = async (name) =>
  (await kinesis.describeStreamSummary({ StreamName: name })).StreamDescriptionSummary;

const awaitActive = (name) =>
  until(`${name} is ACTIVE`, async () => (await summary(name)).StreamStatus === "ACTIVE");

const shardsOf = async (name) => (await kinesis.listShards({ StreamName: name })).Shards;

const isOpen = (shard) => shard.SequenceNumberRange.EndingSequenceNumber === undefined;

const iterator = async (name, shard, kind = "TRIM_HORIZON", more = {}) => {
  const of = { StreamName: name, ShardId: shard, ShardIteratorType: kind, ...more };
  return (await kinesis.getShardIterator(of)).ShardIterator;
};

async function split(name, shard) {
  const low = BigInt(shard.HashKeyRange.StartingHashKey);
  const high = BigInt(shard.HashKeyRange.EndingHashKey);
  const middle = String((low + high) / 2n + 1n);
  await kinesis.splitShard({ StreamName: name, ShardToSplit: shard.ShardId, NewStartingHashKey: middle });
  await awaitActive(name);
}

async function merge(name, one, other) {
  const pair = { ShardToMerge: one.ShardId, AdjacentShardToMerge: other.ShardId };
  await kinesis.mergeShards({ StreamName: name, ...pair });
  await awaitActive(name);
}

/** All records of a shard up to its tip or its end, and the last reply. */
async function readShard(name, shard) {
  const records = [];
  for (let at = await iterator(name, shard); ; ) {
    const reply = await kinesis.getRecords({ ShardIterator: at });
    records.push(...reply.Records);
    at = reply.NextShardIterator;
    if (!at || (reply.Records.length === 0 && reply.MillisBehindLatest === 0)) return { records, reply };
  }
}

/** The data of all records, parents before children, found through ChildShards alone. */
async function readLineage(name, roots) {
  const [queue, ended, seen, data] = [[...roots], new Set(), new Set(roots), []];
  while (queue.length > 0) {
    const shard = queue.shift();
    const { records, reply } = await readShard(name, shard);
    data.push(...records.map((record) => text(record.Data)));
    if (reply.NextShardIterator) continue;
    ended.add(shard);
    for (const child of reply.ChildShards) {
      const ready = child.ParentShards.every((parent) => ended.has(parent));
      if (ready && !seen.has(child.ShardId)) queue.push(child.ShardId) && seen.add(child.ShardId);
    }
  }
  return data;
}

/** The call must fail at once, with the SDK's own class for the error, as the client's fault. */
async function refused(type, call) {
  const error = await call().then(
    () => assert.fail(`expected ${type.name}, but the call succeeded`),
    (failure) => failure,
  );
  assert.ok(error instanceof type, `expected ${type.name}, got ${error.name}: ${error.message}`);
  assert.equal(error.$metadata.httpStatusCode, 400);
  assert.equal(error.$metadata.attempts, 1);
  assert.ok(error.$metadata.requestId, "no request id");
  assert.ok(error.message, "no message");
}

function assertNearNow(date) {
  assert.ok(date instanceof Date && Math.abs(date - Date.now()) < 60_000, `${date} is not near now`);
}

// ---- checks -------------------------------------------------------------------------------

const checks = {
  /** Each key is read in order through a split and a merge, by following ChildShards. */
  async put_split_merge_read() {
    await withStream(2, async (name) => {
      const [first, second] = await shardsOf(name);
      const keys = [...Array(20).keys()].map((i) => `key-${i}`);
      const putRound = async (round) => {
        const rows = keys.map((key) => ({ PartitionKey: key, Data: bytes(`${key}:${round}`) }));
        const reply = await kinesis.putRecords({ StreamName: name, Records: rows });
        assert.equal(reply.FailedRecordCount, 0);
      };
      await putRound(0);
      await split(name, first);
      await putRound(1);
      const upper = (await shardsOf(name)).find(
        (shard) => shard.ParentShardId === first.ShardId && shard.HashKeyRange.StartingHashKey !== "0",
      );
      await merge(name, upper, second);
      await putRound(2);
      const data = await readLineage(name, [first.ShardId, second.ShardId]);
      assert.equal(data.length, 60);
      for (const key of keys) {
        const mine = data.filter((value) => value.startsWith(`${key}:`));
        assert.deepEqual(mine, [0, 1, 2].map((round) => `${key}:${round}`));
      }
    });
  },

  /** A record comes back with the bytes, key, number and time of its put; so it does by ARN. */
  async records_come_back_whole() {
    await withStream(1, async (name) => {
      const data = Uint8Array.from({ length: 256 }, (_, i) => i);
      const { StreamARN, StreamCreationTimestamp } = await summary(name);
      assertNearNow(StreamCreationTimestamp);
      const row = { PartitionKey: "ключ", ExplicitHashKey: String(TOP), Data: data };
      const placed = await kinesis.putRecord({ StreamARN, ...row });
      const { records } = await readShard(name, placed.ShardId);
      assert.equal(records.length, 1);
      assert.deepEqual(Uint8Array.from(records[0].Data), data);
      assert.equal(records[0].PartitionKey, "ключ");
      assert.equal(records[0].SequenceNumber, placed.SequenceNumber);
      assertNearNow(records[0].ApproximateArrivalTimestamp);
      const Timestamp = records[0].ApproximateArrivalTimestamp;
      const at = await iterator(name, placed.ShardId, "AT_TIMESTAMP", { Timestamp });
      assert.equal((await kinesis.getRecords({ ShardIterator: at })).Records.length, 1);
    });
  },

  /** A reply of 10 MB arrives whole, although the client says goodbye at its headers. */
  async ten_megabytes_in_one_reply() {
    await withStream(1, async (name) => {
      const sent = [...Array(10)].map(() => randomBytes(1_000_000));
      for (const half of [sent.slice(0, 5), sent.slice(5)]) {
        const rows = half.map((Data) => ({ PartitionKey: "k", Data }));
        await kinesis.putRecords({ StreamName: name, Records: rows });
      }
      const [shard] = await shardsOf(name);
      const started = Date.now();
      const reply = await kinesis.getRecords({ ShardIterator: await iterator(name, shard.ShardId) });
      assert.equal(reply.Records.length, 10);
      assert.ok(reply.Records.every((record, i) => sent[i].equals(record.Data)), "other bytes");
      // Without TCP_NODELAY on the server's sockets this takes about 7 s.
      assert.ok(Date.now() - started < 4000, `took ${Date.now() - started} ms`);
    });
  },

  /** A subscription gives what is there and what comes, and ends with the shard's children. */
  async subscribe_to_shard() {
    await withStream(1, async (name) => {
      const [shard] = await shardsOf(name);
      const { StreamARN } = await summary(name);
      const put = (i) => kinesis.putRecord({ StreamName: name, PartitionKey: "k", Data: bytes(`${i}`) });
      const { Consumer } = await kinesis.registerStreamConsumer({ StreamARN, ConsumerName: "fan" });
      const { ConsumerARN } = Consumer;
      assertNearNow(Consumer.ConsumerCreationTimestamp);
      await until("the consumer is ACTIVE", async () => {
        const found = await kinesis.describeStreamConsumer({ ConsumerARN });
        return found.ConsumerDescription.ConsumerStatus === "ACTIVE";
      });
      await put(0);
      const from = { ConsumerARN, ShardId: shard.ShardId, StartingPosition: { Type: "TRIM_HORIZON" } };
      const { EventStream } = await kinesis.subscribeToShard(from);
      await refused(k.ResourceInUseException, () => kinesis.subscribeToShard(from));
      const seen = [];
      let last;
      for await (const { SubscribeToShardEvent: event } of EventStream) {
        assert.ok(event, "an event of another kind");
        last = event;
        const fresh = event.Records.map((record) => Number(text(record.Data)));
        event.Records.forEach((record) => assertNearNow(record.ApproximateArrivalTimestamp));
        seen.push(...fresh);
        // Each record is put only when the one before has come, so each needs its own event.
        if (fresh.length > 0 && seen.length < 4) await put(seen.length);
        if (fresh.length > 0 && seen.length === 4) await split(name, shard);
      }
      assert.deepEqual(seen, [0, 1, 2, 3]);
      assert.equal(last.ContinuationSequenceNumber, undefined);
      const parents = last.ChildShards.map((child) => child.ParentShards);
      assert.deepEqual(parents, [[shard.ShardId], [shard.ShardId]]);
      const nobody = { ...from, ConsumerARN: ConsumerARN.replace("/fan:", "/nobody:") };
      await refused(k.ResourceNotFoundException, () => kinesis.subscribeToShard(nobody));
    });
  },

  /** A refusal is an instance of the SDK's class for it, on the first attempt. */
  async typed_errors() {
    await withStream(1, async (name) => {
      const row = { PartitionKey: "k", Data: bytes("x") };
      const nowhere = newName();
      await refused(k.ResourceNotFoundException, () => kinesis.putRecord({ StreamName: nowhere, ...row }));
      await refused(k.ResourceInUseException, () => kinesis.createStream({ StreamName: name, ShardCount: 1 }));
      await refused(k.InvalidArgumentException, () => kinesis.getRecords({ ShardIterator: "garbage" }));
      const long = { StreamName: name, PartitionKey: "x".repeat(257), Data: bytes("x") };
      await refused(k.KinesisServiceException, () => kinesis.putRecord(long));
    });
  },

  /** Paginators come to an end and give each thing once. */
  async paginators() {
    const names = [newName(), newName(), newName()].sort();
    try {
      for (const name of names) await kinesis.createStream({ StreamName: name, ShardCount: 5 });
      for (const name of names) await awaitActive(name);
      const [found, sizes] = [[], []];
      for await (const page of k.paginateListStreams({ client: kinesis, pageSize: 2 }, {})) {
        found.push(...page.StreamNames);
        sizes.push(page.StreamNames.length);
      }
      assert.deepEqual(found.filter((name) => names.includes(name)), names);
      assert.ok(sizes.length > 1 && Math.max(...sizes) <= 2, `pages of ${sizes}`);
      const [shards, asked] = [[], { StreamName: names[0], MaxResults: 2 }];
      for (let page = await kinesis.listShards(asked); ; ) {
        shards.push(...page.Shards);
        if (!page.NextToken) break;
        page = await kinesis.listShards({ NextToken: page.NextToken, MaxResults: 2 });
      }
      assert.equal(shards.filter(isOpen).length, 5);
      assert.equal(new Set(shards.map((shard) => shard.ShardId)).size, 5);
    } finally {
      for (const name of names) await kinesis.deleteStream({ StreamName: name });
    }
  },

  /** The SDK's own waiters see a stream come and go. */
  async waiters() {
    const [StreamName, wait] = [newName(), { client: kinesis, maxWaitTime: 15, minDelay: 1, maxDelay: 1 }];
    await kinesis.createStream({ StreamName, ShardCount: 1 });
    await k.waitUntilStreamExists(wait, { StreamName });
    await kinesis.deleteStream({ StreamName });
    await k.waitUntilStreamNotExists(wait, { StreamName });
  },

  /** DynamoDB answers on the same endpoint, and refuses a second conditional put. */
  async dynamodb_conditional_put() {
    const TableName = newName();
    await dynamodb.createTable({
      TableName,
      KeySchema: [{ AttributeName: "leaseKey", KeyType: "HASH" }],
      AttributeDefinitions: [{ AttributeName: "leaseKey", AttributeType: "S" }],
      BillingMode: "PAY_PER_REQUEST",
    });
    try {
      const wait = { client: dynamodb, maxWaitTime: 15, minDelay: 1, maxDelay: 1 };
      await dynamo.waitUntilTableExists(wait, { TableName });
      const Item = { leaseKey: { S: "shardId-000000000000" }, leaseCounter: { N: "0" } };
      const fresh = { TableName, Item, ConditionExpression: "attribute_not_exists(leaseKey)" };
      await dynamodb.putItem(fresh);
      await refused(dynamo.ConditionalCheckFailedException, () => dynamodb.putItem(fresh));
      assert.deepEqual((await dynamodb.scan({ TableName })).Items, [Item]);
    } finally {
      await dynamodb.deleteTable({ TableName });
    }
  },

  /** The checks above leave no stream and no table behind. */
  async nothing_is_left() {
    await until("no stream is left", async () => {
      const { StreamNames } = await kinesis.listStreams({});
      return !StreamNames.some((name) => name.startsWith("js-"));
    });
    const { TableNames } = await dynamodb.listTables({});
    assert.deepEqual(TableNames.filter((name) => name.startsWith("js-")), []);
  },
};

// ---- main ---------------------------------------------------------------------------------

const [wanted, stop] = [process.argv.slice(2), new AbortController()];
let failures = 0;
for (const [name, check] of Object.entries(checks)) {
  if (wanted.length > 0 && !wanted.includes(name)) continue;
  const late = sleep(CHECK_SECONDS * 1000, undefined, { signal: stop.signal }).then(() =>
    assert.fail(`not done within ${CHECK_SECONDS} s`),
  );
  late.catch(() => {});
  try {
    await Promise.race([check(), late]);
    console.log(`ok ${name}`);
  } catch (error) {
    failures += 1;
    const line = /round_trip\.mjs:(\d+)/.exec(error.stack ?? "")?.[1];
    const why = `${error.message ?? error}`.replace(/\s+/g, " ").slice(0, 400);
    console.log(`not ok ${name}: line ${line}: ${why}`);
  }
}
// A subscription of a failed check may still be open; it must not keep the program alive.
process.exit(failures > 0 ? 1 : 0);
