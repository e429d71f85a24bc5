import java.net.URI;
import java.util.List;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.kinesis.common.HashKeyRangeForLease;
import software.amazon.kinesis.leases.Lease;
import software.amazon.kinesis.leases.MultiStreamLease;
import software.amazon.kinesis.leases.dynamodb.DynamoDBLeaseRefresher;
import software.amazon.kinesis.leases.dynamodb.DynamoDBLeaseSerializer;
import software.amazon.kinesis.leases.dynamodb.DynamoDBMultiStreamLeaseSerializer;
import software.amazon.kinesis.leases.dynamodb.TableCreatorCallback;
import software.amazon.kinesis.retrieval.kpl.ExtendedSequenceNumber;

/**
 * KCL's own reading and writing of a lease table, on rows that another client made.
 *
 * Arguments: endpoint, table, stream id (or "-" for a table of one stream), shard to work on.
 * Prints each lease as KCL reads it, then one line for each write: its name and whether KCL calls it done.
 */
public final class Leases {
    private static final String SEQUENCE = "49590338271490256608559692538361571095921575989136588898";

    public static void main(String[] args) throws Exception {
        boolean multi = !args[2].equals("-");
        DynamoDbAsyncClient client = DynamoDbAsyncClient.builder()
            .endpointOverride(URI.create(args[0]))
            .region(Region.US_EAST_1)
            .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("local", "local")))
            .build();
        DynamoDBLeaseRefresher table = new DynamoDBLeaseRefresher(
            args[1], client, multi ? new DynamoDBMultiStreamLeaseSerializer() : new DynamoDBLeaseSerializer(),
            true, TableCreatorCallback.NOOP_TABLE_CREATOR_CALLBACK);
        for (Lease lease : table.listLeases()) {
            System.out.println("lease " + lease);
        }
        String prefix = multi ? args[2] + ":" : "";
        Lease lease = table.getLease(prefix + args[3]);
        System.out.println("renew " + table.renewLease(lease));
        System.out.println("take " + table.takeLease(lease, "java"));
        lease.checkpoint(new ExtendedSequenceNumber(SEQUENCE, 5L));
        lease.pendingCheckpoint(null);
        lease.pendingCheckpointState(null);
        lease.ownerSwitchesSinceCheckpoint(0L);
        System.out.println("checkpoint " + table.updateLease(lease));

        Lease made = multi ? new MultiStreamLease() : new Lease();
        made.leaseKey(prefix + "shardId-000000000009");
        if (made instanceof MultiStreamLease of) {
            of.streamIdentifier(args[2]);
            of.shardId("shardId-000000000009");
        }
        made.checkpoint(ExtendedSequenceNumber.TRIM_HORIZON);
        made.leaseCounter(0L);
        made.ownerSwitchesSinceCheckpoint(0L);
        made.parentShardIds(List.of(args[3]));
        made.hashKeyRange(HashKeyRangeForLease.deserialize("5", "99"));
        System.out.println("create " + table.createLeaseIfNotExists(made));
        client.close();
        System.exit(0);
    }
}
