package rlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-rlock/rlock"
)

// A nightly report is made by one of the processes that start at midnight, and all have it.
func ExampleOnce() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	var archive store // refuses a run that goes on after it has lost its lease
	report := client.NewOnce("report:2026-11-22", 24*time.Hour)
	for range 2 {
		result, ran, err := report.Do(ctx, func(ctx context.Context) ([]byte, error) { // ctx ends if the lease is lost
			lease, _ := rlock.LeaseFrom(ctx)
			if err := archive.write(lease.Token(), "42 invoices"); err != nil {
				return nil, err // a later run has written it
			}
			return []byte("42 invoices"), nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, made here: %v\n", result, ran)
	}
	// Output:
	// written: 42 invoices
	// 42 invoices, made here: true
	// 42 invoices, made here: false
}
