import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.model.ChildShard;
import software.amazon.awssdk.services.kinesis.model.GetRecordsResponse;
import software.amazon.awssdk.services.kinesis.model.PutRecordResponse;
import software.amazon.awssdk.services.kinesis.model.Record;
import software.amazon.awssdk.services.kinesis.model.Shard;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.StreamDescriptionSummary;
import software.amazon.awssdk.services.kinesis.model.StreamStatus;

/** A stream of one check. Closing deletes it. */
final class Stream implements AutoCloseable {
    static final String PREFIX = "java-";

    /** All records of a shard up to its tip or its end, and the last reply. */
    record Reading(List<Record> records, GetRecordsResponse last) {}

    final String name = newName();
    private final KinesisAsyncClient kinesis;

    Stream(KinesisAsyncClient kinesis, int shards) {
        this.kinesis = kinesis;
        kinesis.createStream(r -> r.streamName(name).shardCount(shards)).join();
        awaitActive();
    }

    static String newName() {
        return PREFIX + UUID.randomUUID().toString().substring(0, 13);
    }

    @Override
    public void close() {
        kinesis.deleteStream(r -> r.streamName(name).enforceConsumerDeletion(true)).join();
    }

    StreamDescriptionSummary summary() {
        return kinesis.describeStreamSummary(r -> r.streamName(name)).join().streamDescriptionSummary();
    }

    void awaitActive() {
        until(name + " is ACTIVE", () -> summary().streamStatus() == StreamStatus.ACTIVE);
    }

    List<Shard> shards() {
        return kinesis.listShards(r -> r.streamName(name)).join().shards();
    }

    PutRecordResponse put(String key, String data) {
        return kinesis.putRecord(r -> r.streamName(name).partitionKey(key).data(SdkBytes.fromUtf8String(data)))
                .join();
    }

    void split(Shard shard) {
        var low = new BigInteger(shard.hashKeyRange().startingHashKey());
        var high = new BigInteger(shard.hashKeyRange().endingHashKey());
        String middle = low.add(high).shiftRight(1).add(BigInteger.ONE).toString();
        kinesis.splitShard(r -> r.streamName(name).shardToSplit(shard.shardId()).newStartingHashKey(middle))
                .join();
        awaitActive();
    }

    void merge(Shard one, Shard other) {
        kinesis.mergeShards(r ->
                r.streamName(name).shardToMerge(one.shardId()).adjacentShardToMerge(other.shardId())).join();
        awaitActive();
    }

    String iterator(String shard) {
        return kinesis.getShardIterator(r -> r.streamName(name)
                        .shardId(shard)
                        .shardIteratorType(ShardIteratorType.TRIM_HORIZON))
                .join()
                .shardIterator();
    }

    Reading read(String shard) {
        var records = new ArrayList<Record>();
        String at = iterator(shard);
        while (true) {
            String from = at;
            GetRecordsResponse reply = kinesis.getRecords(r -> r.shardIterator(from)).join();
            records.addAll(reply.records());
            at = reply.nextShardIterator();
            if (at == null || (reply.records().isEmpty() && reply.millisBehindLatest() == 0)) {
                return new Reading(records, reply);
            }
        }
    }

    /** The data of all records, parents before children, found through ChildShards alone. */
    List<String> readLineage(List<String> roots) {
        var queue = new ArrayDeque<>(roots);
        Set<String> seen = new HashSet<>(roots);
        Set<String> ended = new HashSet<>();
        var data = new ArrayList<String>();
        while (!queue.isEmpty()) {
            String shard = queue.remove();
            Reading reading = read(shard);
            reading.records().forEach(record -> data.add(text(record)));
            if (reading.last().nextShardIterator() != null) {
                continue;
            }
            ended.add(shard);
            for (ChildShard child : reading.last().childShards()) {
                if (ended.containsAll(child.parentShards()) && seen.add(child.shardId())) {
                    queue.add(child.shardId());
                }
            }
        }
        return data;
    }

    static String text(Record record) {
        return record.data().asString(StandardCharsets.UTF_8);
    }

    /** Asks every 20 ms until the answer is yes, for at most 15 s. */
    static void until(String what, Callable<Boolean> probe) {
        Instant deadline = Instant.now().plus(Duration.ofSeconds(15));
        try {
            while (!probe.call()) {
                if (Instant.now().isAfter(deadline)) {
                    throw new AssertionError("timed out: " + what);
                }
                Thread.sleep(20);
            }
        } catch (RuntimeException failed) {
            throw failed;
        } catch (Exception failed) {
            throw new IllegalStateException(what, failed);
        }
    }
}
