package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"
	"github.com/aws/smithy-go"
)

// checks are the promises, in the order in which they run.
var checks = []check{
	{"put_split_merge_read", putSplitMergeRead},
	{"records_come_back_whole", recordsComeBackWhole},
	{"ten_megabytes_in_one_reply", tenMegabytesInOneReply},
	{"subscribe_to_shard", subscribeToShard},
	{"typed_errors", typedErrors},
	{"paginators", paginators},
	{"waiters", waiters},
	{"dynamodb_conditional_put", dynamodbConditionalPut},
	{"nothing_is_left", nothingIsLeft},
	{"the_sdk_complains_of_nothing", theSDKComplainsOfNothing},
}

// Each key is read in order through a split and a merge, by following ChildShards.
func putSplitMergeRead(ctx context.Context, with clients) error {
	return withStream(ctx, with, 2, func(s stream) error {
		shards, err := s.shards(ctx)
		if err != nil {
			return err
		}
		first, second := shards[0], shards[1]
		if err := putRound(ctx, s, 0); err != nil {
			return err
		}
		if err := s.split(ctx, first); err != nil {
			return err
		}
		if err := putRound(ctx, s, 1); err != nil {
			return err
		}
		if shards, err = s.shards(ctx); err != nil {
			return err
		}
		upper := slices.IndexFunc(shards, func(shard types.Shard) bool {
			return aws.ToString(shard.ParentShardId) == *first.ShardId && *shard.HashKeyRange.StartingHashKey != "0"
		})
		if upper < 0 {
			return errors.New("the split shard has no upper child")
		}
		if err := s.merge(ctx, shards[upper], second); err != nil {
			return err
		}
		if err := putRound(ctx, s, 2); err != nil {
			return err
		}
		data, err := s.readLineage(ctx, *first.ShardId, *second.ShardId)
		if err != nil {
			return err
		}
		return eachKeyInOrder(data)
	})
}

func putRound(ctx context.Context, s stream, round int) error {
	var batch []types.PutRecordsRequestEntry
	for i := range 20 {
		key := fmt.Sprintf("key-%d", i)
		data := fmt.Appendf(nil, "%s:%d", key, round)
		batch = append(batch, types.PutRecordsRequestEntry{PartitionKey: &key, Data: data})
	}
	reply, err := s.client.PutRecords(ctx, &kinesis.PutRecordsInput{StreamName: &s.name, Records: batch})
	if err != nil {
		return err
	}
	return equal(int32(0), *reply.FailedRecordCount)
}

func eachKeyInOrder(data []string) error {
	if len(data) != 60 {
		return fmt.Errorf("expected 60 records, got %d", len(data))
	}
	for i := range 20 {
		prefix := fmt.Sprintf("key-%d:", i)
		var mine string
		for _, value := range data {
			if round, ok := strings.CutPrefix(value, prefix); ok {
				mine += round
			}
		}
		if mine != "012" {
			return fmt.Errorf("%s expected rounds 012, got %s", prefix, mine)
		}
	}
	return nil
}

// A record comes back with the bytes, key, number and time of its put; so it does by ARN.
func recordsComeBackWhole(ctx context.Context, with clients) error {
	return withStream(ctx, with, 1, func(s stream) error {
		summary, err := s.summary(ctx)
		if err != nil {
			return err
		}
		if err := nearNow(summary.StreamCreationTimestamp); err != nil {
			return err
		}
		data := make([]byte, 256)
		for i := range data {
			data[i] = byte(i)
		}
		top := new(big.Int).Lsh(big.NewInt(1), 128)
		placed, err := s.client.PutRecord(ctx, &kinesis.PutRecordInput{
			StreamARN: summary.StreamARN, PartitionKey: aws.String("ключ"), Data: data,
			ExplicitHashKey: aws.String(top.Sub(top, big.NewInt(1)).String()),
		})
		if err != nil {
			return err
		}
		records, _, err := s.read(ctx, *placed.ShardId)
		if err != nil {
			return err
		}
		if len(records) != 1 || !bytes.Equal(records[0].Data, data) {
			return fmt.Errorf("got %v", records)
		}
		at, err := s.client.GetShardIterator(ctx, &kinesis.GetShardIteratorInput{
			StreamName: &s.name, ShardId: placed.ShardId, ShardIteratorType: types.ShardIteratorTypeAtTimestamp,
			Timestamp: records[0].ApproximateArrivalTimestamp,
		})
		if err != nil {
			return err
		}
		again, err := s.client.GetRecords(ctx, &kinesis.GetRecordsInput{ShardIterator: at.ShardIterator})
		if err != nil {
			return err
		}
		return errors.Join(
			equal("ключ", *records[0].PartitionKey),
			equal(*placed.SequenceNumber, *records[0].SequenceNumber),
			nearNow(records[0].ApproximateArrivalTimestamp),
			equal(1, len(again.Records)),
		)
	})
}

// A reply of 10 MB arrives whole.
func tenMegabytesInOneReply(ctx context.Context, with clients) error {
	return withStream(ctx, with, 1, func(s stream) error {
		var sent []types.PutRecordsRequestEntry
		for range 10 {
			data := make([]byte, 1_000_000)
			rand.Read(data)
			sent = append(sent, types.PutRecordsRequestEntry{PartitionKey: aws.String("k"), Data: data})
		}
		for half := range slices.Chunk(sent, 5) {
			_, err := s.client.PutRecords(ctx, &kinesis.PutRecordsInput{StreamName: &s.name, Records: half})
			if err != nil {
				return err
			}
		}
		at, err := s.iterator(ctx, "shardId-000000000000")
		if err != nil {
			return err
		}
		reply, err := s.client.GetRecords(ctx, &kinesis.GetRecordsInput{ShardIterator: at})
		if err != nil {
			return err
		}
		if len(reply.Records) != 10 {
			return fmt.Errorf("expected 10 records, got %d", len(reply.Records))
		}
		for i, record := range reply.Records {
			if !bytes.Equal(record.Data, sent[i].Data) {
				return fmt.Errorf("other bytes in record %d", i)
			}
		}
		return nil
	})
}

// A refusal is the SDK's type for it, on the first attempt.
func typedErrors(ctx context.Context, with clients) error {
	return withStream(ctx, with, 1, func(s stream) error {
		nowhere := stream{newName(), s.client}
		_, taken := s.client.CreateStream(ctx, &kinesis.CreateStreamInput{StreamName: &s.name, ShardCount: aws.Int32(1)})
		_, garbage := s.client.GetRecords(ctx, &kinesis.GetRecordsInput{ShardIterator: aws.String("garbage")})
		return errors.Join(
			refused[*types.ResourceNotFoundException](nowhere.put(ctx, "k", "x")),
			refused[*types.ResourceInUseException](taken),
			refused[*types.InvalidArgumentException](garbage),
			refused[smithy.APIError](s.put(ctx, strings.Repeat("x", 257), "x")),
		)
	})
}

// The SDK's own waiters see a stream come and go.
func waiters(ctx context.Context, with clients) error {
	name := newName()
	_, err := with.kinesis.CreateStream(ctx, &kinesis.CreateStreamInput{StreamName: &name, ShardCount: aws.Int32(1)})
	if err != nil {
		return err
	}
	quick := func(o *kinesis.StreamExistsWaiterOptions) { o.MinDelay, o.MaxDelay = time.Second, time.Second }
	asked := &kinesis.DescribeStreamInput{StreamName: &name}
	came := kinesis.NewStreamExistsWaiter(with.kinesis, quick).Wait(ctx, asked, 15*time.Second)
	if err := errors.Join(came, stream{name, with.kinesis}.remove()); err != nil {
		return err
	}
	gone := kinesis.NewStreamNotExistsWaiter(with.kinesis, func(o *kinesis.StreamNotExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = time.Second, time.Second
	})
	return gone.Wait(ctx, asked, 15*time.Second)
}

// The checks above leave no stream and no table behind.
func nothingIsLeft(ctx context.Context, with clients) error {
	ours := func(name string) bool { return strings.HasPrefix(name, prefix) }
	err := until(ctx, "no stream is left", func() (bool, error) {
		listed, err := with.kinesis.ListStreams(ctx, &kinesis.ListStreamsInput{})
		return err == nil && !slices.ContainsFunc(listed.StreamNames, ours), err
	})
	if err != nil {
		return err
	}
	tables, err := with.dynamodb.ListTables(ctx, &dynamodb.ListTablesInput{})
	if err != nil {
		return err
	}
	return equal(false, slices.ContainsFunc(tables.TableNames, ours))
}

// No reply above made the SDK log a warning.
func theSDKComplainsOfNothing(context.Context, clients) error {
	complaints.guard.Lock()
	defer complaints.guard.Unlock()
	if len(complaints.lines) > 0 {
		return fmt.Errorf("%d complaints, first %s", len(complaints.lines), complaints.lines[0])
	}
	return nil
}
