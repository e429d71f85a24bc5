package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
)

// refused tells whether a call failed at once, with the SDK's type E, as the client's fault.
func refused[E smithy.APIError](err error) error {
	var wanted E
	if err == nil {
		return fmt.Errorf("expected %T, but the call succeeded", wanted)
	}
	if !errors.As(err, &wanted) {
		return fmt.Errorf("expected %T, got %w", wanted, err)
	}
	var reply *awshttp.ResponseError
	if !errors.As(err, &reply) || reply.HTTPStatusCode() != 400 || reply.RequestID == "" {
		return fmt.Errorf("no HTTP 400 with a request id: %w", err)
	}
	var repeated *retry.MaxAttemptsError
	if errors.As(err, &repeated) {
		return fmt.Errorf("tried %d times: %w", repeated.Attempt, err)
	}
	if wanted.ErrorMessage() == "" {
		return fmt.Errorf("no message: %w", err)
	}
	return nil
}

func nearNow(at *time.Time) error {
	if at == nil || time.Since(*at).Abs() > time.Minute {
		return fmt.Errorf("%v is not near now", at)
	}
	return nil
}

func equal[T comparable](expected, got T) error {
	if expected != got {
		return fmt.Errorf("expected %v, got %v", expected, got)
	}
	return nil
}
