package main

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	rows "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// DynamoDB answers on the same endpoint, and refuses a second conditional put.
func dynamodbConditionalPut(ctx context.Context, with clients) (err error) {
	table := newName()
	_, err = with.dynamodb.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &table,
		KeySchema: []rows.KeySchemaElement{{AttributeName: aws.String("leaseKey"), KeyType: rows.KeyTypeHash}},
		AttributeDefinitions: []rows.AttributeDefinition{
			{AttributeName: aws.String("leaseKey"), AttributeType: rows.ScalarAttributeTypeS},
		},
		BillingMode: rows.BillingModePayPerRequest,
	})
	if err != nil {
		return err
	}
	defer func() {
		_, gone := with.dynamodb.DeleteTable(context.WithoutCancel(ctx), &dynamodb.DeleteTableInput{TableName: &table})
		err = errors.Join(err, gone)
	}()
	waiter := dynamodb.NewTableExistsWaiter(with.dynamodb)
	if err := waiter.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &table}, 15*time.Second); err != nil {
		return err
	}
	fresh := &dynamodb.PutItemInput{
		TableName: &table,
		Item: map[string]rows.AttributeValue{
			"leaseKey":     &rows.AttributeValueMemberS{Value: "shardId-000000000000"},
			"leaseCounter": &rows.AttributeValueMemberN{Value: "0"},
		},
		ConditionExpression: aws.String("attribute_not_exists(leaseKey)"),
	}
	if _, err := with.dynamodb.PutItem(ctx, fresh); err != nil {
		return err
	}
	_, again := with.dynamodb.PutItem(ctx, fresh)
	if err := refused[*rows.ConditionalCheckFailedException](again); err != nil {
		return err
	}
	found, err := with.dynamodb.Scan(ctx, &dynamodb.ScanInput{TableName: &table})
	if err != nil {
		return err
	}
	return equal(int32(1), found.Count)
}
