package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"
)

const prefix = "go-"

// stream is a stream of one check.
type stream struct {
	name   string
	client *kinesis.Client
}

func newName() string {
	id := make([]byte, 6)
	rand.Read(id)
	return fmt.Sprintf("%s%x", prefix, id)
}

// withStream runs body with a new stream, which is gone afterwards.
func withStream(ctx context.Context, with clients, shards int32, body func(stream) error) error {
	s := stream{newName(), with.kinesis}
	_, err := s.client.CreateStream(ctx, &kinesis.CreateStreamInput{StreamName: &s.name, ShardCount: &shards})
	if err != nil {
		return err
	}
	err = s.awaitActive(ctx)
	if err == nil {
		err = body(s)
	}
	if gone := s.remove(); err == nil {
		err = gone
	}
	return err
}

// remove has its own time-out: a check that ran out of time must still clean up.
func (s stream) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	asked := &kinesis.DeleteStreamInput{StreamName: &s.name, EnforceConsumerDeletion: aws.Bool(true)}
	_, err := s.client.DeleteStream(ctx, asked)
	return err
}

func (s stream) summary(ctx context.Context) (*types.StreamDescriptionSummary, error) {
	reply, err := s.client.DescribeStreamSummary(ctx, &kinesis.DescribeStreamSummaryInput{StreamName: &s.name})
	if err != nil {
		return nil, err
	}
	return reply.StreamDescriptionSummary, nil
}

func (s stream) awaitActive(ctx context.Context) error {
	return until(ctx, s.name+" is ACTIVE", func() (bool, error) {
		summary, err := s.summary(ctx)
		return err == nil && summary.StreamStatus == types.StreamStatusActive, err
	})
}

func (s stream) shards(ctx context.Context) ([]types.Shard, error) {
	reply, err := s.client.ListShards(ctx, &kinesis.ListShardsInput{StreamName: &s.name})
	if err != nil {
		return nil, err
	}
	return reply.Shards, nil
}

func (s stream) put(ctx context.Context, key, data string) error {
	row := &kinesis.PutRecordInput{StreamName: &s.name, PartitionKey: &key, Data: []byte(data)}
	_, err := s.client.PutRecord(ctx, row)
	return err
}

func (s stream) split(ctx context.Context, shard types.Shard) error {
	low, _ := new(big.Int).SetString(*shard.HashKeyRange.StartingHashKey, 10)
	high, _ := new(big.Int).SetString(*shard.HashKeyRange.EndingHashKey, 10)
	middle := new(big.Int).Rsh(low.Add(low, high), 1)
	middle.Add(middle, big.NewInt(1))
	_, err := s.client.SplitShard(ctx, &kinesis.SplitShardInput{
		StreamName: &s.name, ShardToSplit: shard.ShardId, NewStartingHashKey: aws.String(middle.String()),
	})
	if err != nil {
		return err
	}
	return s.awaitActive(ctx)
}

func (s stream) merge(ctx context.Context, one, other types.Shard) error {
	_, err := s.client.MergeShards(ctx, &kinesis.MergeShardsInput{
		StreamName: &s.name, ShardToMerge: one.ShardId, AdjacentShardToMerge: other.ShardId,
	})
	if err != nil {
		return err
	}
	return s.awaitActive(ctx)
}

func (s stream) iterator(ctx context.Context, shard string) (*string, error) {
	reply, err := s.client.GetShardIterator(ctx, &kinesis.GetShardIteratorInput{
		StreamName: &s.name, ShardId: &shard, ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
	})
	if err != nil {
		return nil, err
	}
	return reply.ShardIterator, nil
}

// read gives all records of a shard up to its tip or its end, and the last reply.
func (s stream) read(ctx context.Context, shard string) ([]types.Record, *kinesis.GetRecordsOutput, error) {
	var records []types.Record
	at, err := s.iterator(ctx, shard)
	for err == nil {
		var reply *kinesis.GetRecordsOutput
		if reply, err = s.client.GetRecords(ctx, &kinesis.GetRecordsInput{ShardIterator: at}); err != nil {
			break
		}
		records = append(records, reply.Records...)
		at = reply.NextShardIterator
		if at == nil || len(reply.Records) == 0 && *reply.MillisBehindLatest == 0 {
			return records, reply, nil
		}
	}
	return nil, nil, err
}

// readLineage gives the data of all records, parents before children, found through ChildShards alone.
func (s stream) readLineage(ctx context.Context, roots ...string) ([]string, error) {
	var data []string
	queue, seen, ended := slices.Clone(roots), slices.Clone(roots), map[string]bool{}
	for len(queue) > 0 {
		shard := queue[0]
		queue = queue[1:]
		records, last, err := s.read(ctx, shard)
		if err != nil {
			return nil, err
		}
		for _, record := range records {
			data = append(data, string(record.Data))
		}
		ended[shard] = last.NextShardIterator == nil
		for _, child := range last.ChildShards {
			waits := slices.ContainsFunc(child.ParentShards, func(parent string) bool { return !ended[parent] })
			if !waits && !slices.Contains(seen, *child.ShardId) {
				queue, seen = append(queue, *child.ShardId), append(seen, *child.ShardId)
			}
		}
	}
	return data, nil
}

// until asks every 20 ms until the answer is yes or an error, for at most 15 s.
func until(ctx context.Context, what string, probe func() (bool, error)) error {
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if yes, err := probe(); yes || err != nil {
			return err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("timed out: %s", what)
		}
	}
}
