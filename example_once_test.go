package rlock_test

import (
	"context"
	"fmt"
	"log"
	"time"
)

// A nightly report is made by one of the processes that start at midnight, and all have it.
func ExampleOnce() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	report := client.NewOnce("report:2026-11-22", 24*time.Hour)
	for range 2 {
		result, ran, err := report.Do(ctx, func(ctx context.Context) ([]byte, error) {
			return []byte("42 invoices"), nil // ctx ends if the lease is lost
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, made here: %v\n", result, ran)
	}
	// Output:
	// 42 invoices, made here: true
	// 42 invoices, made here: false
}
