package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"
)

// A subscription gives what is there and what comes, and ends with the shard's children.
func subscribeToShard(ctx context.Context, with clients) error {
	return withStream(ctx, with, 1, func(s stream) error {
		shards, err := s.shards(ctx)
		if err != nil {
			return err
		}
		consumer, err := s.register(ctx, "fan")
		if err != nil {
			return err
		}
		if err := s.put(ctx, "k", "0"); err != nil {
			return err
		}
		from := &kinesis.SubscribeToShardInput{
			ConsumerARN: &consumer, ShardId: shards[0].ShardId,
			StartingPosition: &types.StartingPosition{Type: types.ShardIteratorTypeTrimHorizon},
		}
		subscription, err := s.client.SubscribeToShard(ctx, from)
		if err != nil {
			return err
		}
		_, second := s.client.SubscribeToShard(ctx, from)
		if err := refused[*types.ResourceInUseException](second); err != nil {
			return err
		}
		err = follow(ctx, s, shards[0], subscription.GetStream())
		for i := 0; i < 3 && errors.Is(err, net.ErrClosed); i++ {
			err = again(ctx, s, shards[0], from)
		}
		if err != nil {
			return err
		}
		from.ConsumerARN = aws.String(strings.Replace(consumer, "/fan:", "/nobody:", 1))
		_, nobody := s.client.SubscribeToShard(ctx, from)
		return refused[*types.ResourceNotFoundException](nobody)
	})
}

// again subscribes once more. Where a reply comes before the SDK has seen the end of the request's
// body, it closes that body, and net/http closes the connection for it, with the subscription.
func again(
	ctx context.Context, s stream, shard types.Shard, from *kinesis.SubscribeToShardInput,
) error {
	var subscription *kinesis.SubscribeToShardOutput
	err := until(ctx, "the server has seen the connection close", func() (bool, error) {
		var err error
		subscription, err = s.client.SubscribeToShard(ctx, from)
		var inUse *types.ResourceInUseException
		if errors.As(err, &inUse) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return follow(ctx, s, shard, subscription.GetStream())
}

func (s stream) register(ctx context.Context, name string) (string, error) {
	summary, err := s.summary(ctx)
	if err != nil {
		return "", err
	}
	asked := &kinesis.RegisterStreamConsumerInput{StreamARN: summary.StreamARN, ConsumerName: &name}
	made, err := s.client.RegisterStreamConsumer(ctx, asked)
	if err != nil {
		return "", err
	}
	arn := made.Consumer.ConsumerARN
	return *arn, until(ctx, "the consumer is ACTIVE", func() (bool, error) {
		found, err := s.client.DescribeStreamConsumer(ctx, &kinesis.DescribeStreamConsumerInput{ConsumerARN: arn})
		return err == nil && found.ConsumerDescription.ConsumerStatus == types.ConsumerStatusActive, err
	})
}

// follow reads a subscription to its end and puts each record only when the one before has come,
// so each needs its own event.
func follow(ctx context.Context, s stream, shard types.Shard, events *kinesis.SubscribeToShardEventStream) error {
	defer events.Close()
	var seen string
	var last types.SubscribeToShardEvent
	for event := range events.Events() {
		member, ok := event.(*types.SubscribeToShardEventStreamMemberSubscribeToShardEvent)
		if !ok {
			return fmt.Errorf("an event of another kind: %T", event)
		}
		last = member.Value
		for _, record := range last.Records {
			seen += string(record.Data)
			if err := nearNow(record.ApproximateArrivalTimestamp); err != nil {
				return err
			}
		}
		var err error
		if len(last.Records) > 0 && len(seen) < 4 {
			err = s.put(ctx, "k", fmt.Sprint(len(seen)))
		} else if len(last.Records) > 0 {
			err = s.split(ctx, shard)
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(events.Err(), equal("0123", seen), equal(2, len(last.ChildShards))); err != nil {
		return err
	}
	if last.ContinuationSequenceNumber != nil {
		return fmt.Errorf("the end has a continuation %s", *last.ContinuationSequenceNumber)
	}
	return equal(*shard.ShardId, strings.Join(last.ChildShards[0].ParentShards, " "))
}
