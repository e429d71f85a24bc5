package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
)

// Paginators come to an end and give each thing once.
func paginators(ctx context.Context, with clients) error {
	return withStream(ctx, with, 5, func(one stream) error {
		return withStream(ctx, with, 1, func(two stream) error {
			return withStream(ctx, with, 1, func(three stream) error {
				ours := []string{one.name, two.name, three.name}
				slices.Sort(ours)
				return errors.Join(listsStreams(ctx, with, ours), listsShards(ctx, one))
			})
		})
	})
}

func listsStreams(ctx context.Context, with clients, ours []string) error {
	var found []string
	count := 0
	for pages := kinesis.NewListStreamsPaginator(with.kinesis, &kinesis.ListStreamsInput{Limit: aws.Int32(2)}); pages.HasMorePages(); count++ {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		if len(page.StreamNames) > 2 {
			return fmt.Errorf("a page of %d", len(page.StreamNames))
		}
		for _, name := range page.StreamNames {
			if slices.Contains(ours, name) {
				found = append(found, name)
			}
		}
	}
	if count < 2 {
		return fmt.Errorf("%d page", count)
	}
	return equal(fmt.Sprint(ours), fmt.Sprint(found))
}

func listsShards(ctx context.Context, s stream) error {
	found := map[string]bool{}
	asked := &kinesis.ListShardsInput{StreamName: &s.name, MaxResults: aws.Int32(2)}
	for more := true; more; {
		page, err := s.client.ListShards(ctx, asked)
		if err != nil {
			return err
		}
		more = page.NextToken != nil
		asked = &kinesis.ListShardsInput{NextToken: page.NextToken, MaxResults: aws.Int32(2)}
		for _, shard := range page.Shards {
			if found[*shard.ShardId] {
				return fmt.Errorf("%s is listed twice", *shard.ShardId)
			}
			found[*shard.ShardId] = true
		}
	}
	return equal(5, len(found))
}
