// A round trip through the AWS SDK for Go v2 at its default settings.
//
// Runs every check, or those named as arguments. Prints `ok NAME` or `not ok NAME: WHY`. The
// endpoint comes from AWS_ENDPOINT_URL.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/smithy-go/logging"
)

const checkTime = 25 * time.Second

// clients are what a check talks to the server with.
type clients struct {
	kinesis  *kinesis.Client
	dynamodb *dynamodb.Client
}

// complaints is what the SDK logs: a reply that it could use, but that is not what AWS sends.
var complaints complaintLog

type complaintLog struct {
	guard sync.Mutex
	lines []string
}

// Logf takes a line of the SDK's log.
func (c *complaintLog) Logf(class logging.Classification, format string, values ...any) {
	c.guard.Lock()
	defer c.guard.Unlock()
	c.lines = append(c.lines, fmt.Sprintf("%s: ", class)+fmt.Sprintf(format, values...))
}

// check is one promise.
type check struct {
	name string
	run  func(context.Context, clients) error
}

func main() {
	settings, err := config.LoadDefaultConfig(context.Background(), config.WithLogger(&complaints))
	if err != nil {
		fmt.Println("not ok settings:", err)
		os.Exit(1)
	}
	with := clients{kinesis.NewFromConfig(settings), dynamodb.NewFromConfig(settings)}
	failures := 0
	for _, check := range checks {
		if len(os.Args) > 1 && !slices.Contains(os.Args[1:], check.name) {
			continue
		}
		if err := runWithin(checkTime, check, with); err != nil {
			failures++
			why := strings.Join(strings.Fields(err.Error()), " ")
			fmt.Printf("not ok %s: %s\n", check.name, why[:min(400, len(why))])
		} else {
			fmt.Println("ok", check.name)
		}
	}
	if failures > 0 {
		os.Exit(1)
	}
}

func runWithin(limit time.Duration, check check, with clients) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- check.run(ctx, with) }()
	select {
	case err := <-done:
		return err
	// A check that does not heed its context is left behind; the program's end ends it.
	case <-time.After(limit + time.Second):
		return fmt.Errorf("not done within %s", limit)
	}
}
