import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.dynamodb.model.AttributeValue;
import software.amazon.awssdk.services.dynamodb.model.BillingMode;
import software.amazon.awssdk.services.dynamodb.model.ConditionalCheckFailedException;
import software.amazon.awssdk.services.dynamodb.model.KeyType;
import software.amazon.awssdk.services.dynamodb.model.PutItemRequest;
import software.amazon.awssdk.services.dynamodb.model.ScalarAttributeType;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisClient;
import software.amazon.awssdk.services.kinesis.model.ConsumerStatus;
import software.amazon.awssdk.services.kinesis.model.InvalidArgumentException;
import software.amazon.awssdk.services.kinesis.model.KinesisException;
import software.amazon.awssdk.services.kinesis.model.PutRecordsRequestEntry;
import software.amazon.awssdk.services.kinesis.model.ResourceInUseException;
import software.amazon.awssdk.services.kinesis.model.ResourceNotFoundException;
import software.amazon.awssdk.services.kinesis.model.Shard;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardEvent;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardRequest;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardResponseHandler;

/** One method a promise; its comment is the promise. */
final class Checks {
    private static final KinesisAsyncClient kinesis = KinesisAsyncClient.create();
    private static final DynamoDbAsyncClient dynamodb = DynamoDbAsyncClient.create();

    /** Each key is read in order through a split and a merge, by following ChildShards. */
    @Check(1)
    static void put_split_merge_read() {
        try (var stream = new Stream(kinesis, 2)) {
            Shard first = stream.shards().get(0);
            Shard second = stream.shards().get(1);
            putRound(stream, 0);
            stream.split(first);
            putRound(stream, 1);
            Shard upper = stream.shards().stream()
                    .filter(shard -> first.shardId().equals(shard.parentShardId()))
                    .filter(shard -> !shard.hashKeyRange().startingHashKey().equals("0"))
                    .findFirst()
                    .orElseThrow();
            stream.merge(upper, second);
            putRound(stream, 2);
            List<String> data = stream.readLineage(List.of(first.shardId(), second.shardId()));
            equal(60, data.size());
            for (int key = 0; key < 20; key++) {
                String prefix = "key-" + key + ":";
                List<String> mine = data.stream().filter(value -> value.startsWith(prefix)).toList();
                equal(List.of(prefix + 0, prefix + 1, prefix + 2), mine);
            }
        }
    }

    private static void putRound(Stream stream, int round) {
        List<PutRecordsRequestEntry> rows = IntStream.range(0, 20)
                .mapToObj(i -> entry("key-" + i, SdkBytes.fromUtf8String("key-" + i + ":" + round)))
                .toList();
        var reply = kinesis.putRecords(r -> r.streamName(stream.name).records(rows)).join();
        equal(0, reply.failedRecordCount());
    }

    /** A record comes back with the bytes, key, number and time of its put; so it does by ARN. */
    @Check(2)
    static void records_come_back_whole() {
        try (var stream = new Stream(kinesis, 1)) {
            nearNow(stream.summary().streamCreationTimestamp());
            byte[] bytes = new byte[256];
            IntStream.range(0, 256).forEach(i -> bytes[i] = (byte) i);
            SdkBytes data = SdkBytes.fromByteArray(bytes);
            String top = BigInteger.ONE.shiftLeft(128).subtract(BigInteger.ONE).toString();
            String arn = stream.summary().streamARN();
            var placed = kinesis.putRecord(r ->
                    r.streamARN(arn).partitionKey("ключ").explicitHashKey(top).data(data)).join();
            var records = stream.read(placed.shardId()).records();
            equal(1, records.size());
            equal(data, records.get(0).data());
            equal("ключ", records.get(0).partitionKey());
            equal(placed.sequenceNumber(), records.get(0).sequenceNumber());
            Instant arrived = records.get(0).approximateArrivalTimestamp();
            nearNow(arrived);
            var at = kinesis.getShardIterator(r -> r.streamName(stream.name)
                    .shardId(placed.shardId())
                    .shardIteratorType(ShardIteratorType.AT_TIMESTAMP)
                    .timestamp(arrived)).join();
            equal(1, kinesis.getRecords(r -> r.shardIterator(at.shardIterator())).join().records().size());
        }
    }

    /** A reply of 10 MB arrives whole. */
    @Check(3)
    static void ten_megabytes_in_one_reply() {
        try (var stream = new Stream(kinesis, 1)) {
            var random = new Random(7);
            var sent = new ArrayList<SdkBytes>();
            for (int i = 0; i < 10; i++) {
                byte[] bytes = new byte[1_000_000];
                random.nextBytes(bytes);
                sent.add(SdkBytes.fromByteArray(bytes));
            }
            for (List<SdkBytes> half : List.of(sent.subList(0, 5), sent.subList(5, 10))) {
                List<PutRecordsRequestEntry> rows = half.stream().map(data -> entry("k", data)).toList();
                kinesis.putRecords(r -> r.streamName(stream.name).records(rows)).join();
            }
            String at = stream.iterator(stream.shards().get(0).shardId());
            var reply = kinesis.getRecords(r -> r.shardIterator(at)).join();
            equal(10, reply.records().size());
            for (int i = 0; i < 10; i++) {
                yes(sent.get(i).equals(reply.records().get(i).data()), "other bytes in record " + i);
            }
        }
    }

    /** The synchronous client (HTTP/1.1, CBOR) puts and reads as well. */
    @Check(4)
    static void synchronous_client() {
        try (var stream = new Stream(kinesis, 1); var client = KinesisClient.create()) {
            client.putRecord(r ->
                    r.streamName(stream.name).partitionKey("k").data(SdkBytes.fromUtf8String("one")));
            String at = stream.iterator(stream.shards().get(0).shardId());
            var reply = client.getRecords(r -> r.shardIterator(at));
            equal(List.of("one"), reply.records().stream().map(Stream::text).toList());
            nearNow(reply.records().get(0).approximateArrivalTimestamp());
        }
    }

    /** A subscription gives what is there and what comes, and ends with the shard's children. */
    @Check(5)
    static void subscribe_to_shard() throws Exception {
        try (var stream = new Stream(kinesis, 1)) {
            Shard shard = stream.shards().get(0);
            String arn = stream.summary().streamARN();
            var made = kinesis.registerStreamConsumer(r -> r.streamARN(arn).consumerName("fan")).join().consumer();
            nearNow(made.consumerCreationTimestamp());
            String consumer = made.consumerARN();
            Stream.until("the consumer is ACTIVE", () -> kinesis
                    .describeStreamConsumer(r -> r.consumerARN(consumer)).join()
                    .consumerDescription().consumerStatus() == ConsumerStatus.ACTIVE);
            stream.put("k", "0");
            SubscribeToShardRequest from = subscription(consumer, shard.shardId());
            var events = new CopyOnWriteArrayList<SubscribeToShardEvent>();
            var seen = new CopyOnWriteArrayList<String>();
            var ended = kinesis.subscribeToShard(from, handler(event -> {
                events.add(event);
                event.records().forEach(record -> seen.add(Stream.text(record)));
                event.records().forEach(record -> nearNow(record.approximateArrivalTimestamp()));
                if (event.records().isEmpty()) {
                    return;
                }
                // Each record is put only when the one before has come, so each needs its own
                // event. Not on this thread: it is the client's, and a wait would block it.
                int next = seen.size();
                CompletableFuture.runAsync(() -> {
                    if (next < 4) {
                        stream.put("k", "" + next);
                    } else {
                        stream.split(shard);
                    }
                });
            }));
            Stream.until("the first event", () -> !events.isEmpty());
            refused(ResourceInUseException.class, () -> kinesis.subscribeToShard(from, handler(e -> {})).join());
            ended.get(15, TimeUnit.SECONDS);
            equal(List.of("0", "1", "2", "3"), seen);
            SubscribeToShardEvent last = events.get(events.size() - 1);
            equal(null, last.continuationSequenceNumber());
            equal(List.of(List.of(shard.shardId()), List.of(shard.shardId())),
                    last.childShards().stream().map(child -> child.parentShards()).toList());
            SubscribeToShardRequest nobody =
                    subscription(consumer.replace("/fan:", "/nobody:"), shard.shardId());
            refused(ResourceNotFoundException.class,
                    () -> kinesis.subscribeToShard(nobody, handler(e -> {})).join());
        }
    }

    private static SubscribeToShardRequest subscription(String consumer, String shard) {
        return SubscribeToShardRequest.builder()
                .consumerARN(consumer)
                .shardId(shard)
                .startingPosition(p -> p.type(ShardIteratorType.TRIM_HORIZON))
                .build();
    }

    private static SubscribeToShardResponseHandler handler(Consumer<SubscribeToShardEvent> onEvent) {
        return SubscribeToShardResponseHandler.builder()
                .subscriber(SubscribeToShardResponseHandler.Visitor.builder()
                        .onSubscribeToShardEvent(onEvent)
                        .build())
                .build();
    }

    /** A refusal is an instance of the SDK's class for it, on the first attempt. */
    @Check(6)
    static void typed_errors() {
        try (var stream = new Stream(kinesis, 1)) {
            SdkBytes data = SdkBytes.fromUtf8String("x");
            refused(ResourceNotFoundException.class, () -> kinesis
                    .putRecord(r -> r.streamName(Stream.newName()).partitionKey("k").data(data)).join());
            refused(ResourceInUseException.class, () -> kinesis
                    .createStream(r -> r.streamName(stream.name).shardCount(1)).join());
            refused(InvalidArgumentException.class, () -> kinesis
                    .getRecords(r -> r.shardIterator("garbage")).join());
            refused(KinesisException.class, () -> kinesis
                    .putRecord(r -> r.streamName(stream.name).partitionKey("x".repeat(257)).data(data)).join());
        }
    }

    /** Paginators come to an end and give each thing once. */
    @Check(7)
    static void paginators() {
        try (var one = new Stream(kinesis, 5); var two = new Stream(kinesis, 1); var three = new Stream(kinesis, 1)) {
            var found = new ArrayList<String>();
            var sizes = new ArrayList<Integer>();
            kinesis.listStreamsPaginator(r -> r.limit(2)).subscribe(page -> {
                found.addAll(page.streamNames());
                sizes.add(page.streamNames().size());
                // A paginator that never ends must not fill the memory before the time-out.
                yes(sizes.size() < 1000, "the paginator does not end");
            }).join();
            List<String> ours = List.of(one.name, two.name, three.name).stream().sorted().toList();
            equal(ours, found.stream().filter(ours::contains).toList());
            yes(sizes.size() > 1 && sizes.stream().allMatch(size -> size <= 2), "pages of " + sizes);
            var shards = new ArrayList<String>();
            var page = kinesis.listShards(r -> r.streamName(one.name).maxResults(2)).join();
            page.shards().forEach(shard -> shards.add(shard.shardId()));
            while (page.nextToken() != null) {
                String token = page.nextToken();
                page = kinesis.listShards(r -> r.nextToken(token).maxResults(2)).join();
                page.shards().forEach(shard -> shards.add(shard.shardId()));
            }
            equal(5, shards.size());
            equal(5L, shards.stream().distinct().count());
        }
    }

    /** DynamoDB answers on the same endpoint, and refuses a second conditional put. */
    @Check(8)
    static void dynamodb_conditional_put() {
        String table = Stream.newName();
        dynamodb.createTable(r -> r.tableName(table)
                .keySchema(k -> k.attributeName("leaseKey").keyType(KeyType.HASH))
                .attributeDefinitions(a -> a.attributeName("leaseKey").attributeType(ScalarAttributeType.S))
                .billingMode(BillingMode.PAY_PER_REQUEST)).join();
        try {
            dynamodb.waiter().waitUntilTableExists(r -> r.tableName(table)).join();
            var item = Map.of(
                    "leaseKey", AttributeValue.fromS("shardId-000000000000"),
                    "leaseCounter", AttributeValue.fromN("0"));
            PutItemRequest fresh = PutItemRequest.builder()
                    .tableName(table)
                    .item(item)
                    .conditionExpression("attribute_not_exists(leaseKey)")
                    .build();
            dynamodb.putItem(fresh).join();
            refused(ConditionalCheckFailedException.class, () -> dynamodb.putItem(fresh).join());
            equal(List.of(item), dynamodb.scan(r -> r.tableName(table)).join().items());
        } finally {
            dynamodb.deleteTable(r -> r.tableName(table)).join();
        }
    }

    /** The checks above leave no stream and no table behind. */
    @Check(9)
    static void nothing_is_left() {
        Stream.until("no stream is left", () -> kinesis.listStreams().join().streamNames().stream()
                .noneMatch(name -> name.startsWith(Stream.PREFIX)));
        equal(List.of(), dynamodb.listTables().join().tableNames().stream()
                .filter(name -> name.startsWith(Stream.PREFIX)).toList());
    }

    // ---- helpers of the checks ----------------------------------------------------------------

    private static PutRecordsRequestEntry entry(String key, SdkBytes data) {
        return PutRecordsRequestEntry.builder().partitionKey(key).data(data).build();
    }

    /** The call must fail at once, with the SDK's own class for the error, as the client's fault. */
    private static void refused(Class<? extends AwsServiceException> type, Runnable call) {
        try {
            call.run();
        } catch (CompletionException failed) {
            Throwable error = failed.getCause();
            if (!type.isInstance(error)) {
                throw new AssertionError("expected " + type.getSimpleName() + ", got " + error);
            }
            var refusal = (AwsServiceException) error;
            equal(400, refusal.statusCode());
            equal(1, refusal.numAttempts());
            yes(refusal.requestId() != null, "no request id");
            yes(refusal.awsErrorDetails().errorMessage() != null, "no message");
            return;
        }
        throw new AssertionError("expected " + type.getSimpleName() + ", but the call succeeded");
    }

    private static void nearNow(Instant time) {
        boolean near = Duration.between(time, Instant.now()).abs().compareTo(Duration.ofMinutes(1)) < 0;
        yes(near, time + " is not near now");
    }

    private static void equal(Object expected, Object got) {
        boolean same = expected == null ? got == null : expected.equals(got);
        yes(same, "expected " + expected + ", got " + got);
    }

    private static void yes(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
