package rlock_test

import (
	"context"
	"fmt"
	"log"
	"sync"
)

// Three workers of a load test, in any processes, begin together and end together.
func ExampleDoubleBarrier() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	test := client.NewDoubleBarrier("load-test", 3)

	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			lease, err := test.Enter(ctx) // waits for the others
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("begins")
			if err := test.Leave(ctx, lease); err != nil { // waits until all are done
				log.Fatal(err)
			}
			fmt.Println("goes home")
		})
	}
	workers.Wait()
	// Unordered output:
	// begins
	// begins
	// begins
	// goes home
	// goes home
	// goes home
}
