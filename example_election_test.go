package rlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-rlock/rlock"
)

// One process leads, the others know where it can be reached.
func ExampleElection() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	scheduler := client.NewElection("scheduler")

	leaders, err := scheduler.Observe(ctx) // in any process
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("at first %q\n", (<-leaders).Value)

	lease, err := scheduler.Campaign(ctx, "10.0.0.7:9000") // waits until it leads
	if err != nil {
		log.Fatal(err)
	}
	leader := <-leaders
	fmt.Printf("then %q, with the token of the lease: %v\n", leader.Value, leader.Token == lease.Token())

	if err := scheduler.Proclaim(ctx, lease, "10.0.0.7:9001"); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("then %q\n", (<-leaders).Value)

	_ = lease.Unlock(ctx) // resigns
	fmt.Printf("in the end %q\n", (<-leaders).Value)
	// Output:
	// at first ""
	// then "10.0.0.7:9000", with the token of the lease: true
	// then "10.0.0.7:9001"
	// in the end ""
}

func ExampleElection_Run() {
	client, stop := exampleClient()
	defer stop()

	scheduler := client.NewElection("scheduler")
	var jobs store // refuses who was the leader before
	err := scheduler.Run(context.Background(), "10.0.0.7:9000", func(ctx context.Context) error {
		fmt.Println("leads:", ctx.Err() == nil) // ctx ends if the leadership is lost; Run campaigns again then
		lease, _ := rlock.LeaseFrom(ctx)
		if err := jobs.write(lease.Token(), "clean up at noon"); err != nil {
			return err
		}
		return scheduler.Proclaim(ctx, lease, "10.0.0.7:9001")
	})
	fmt.Println(err)
	// Output:
	// leads: true
	// written: clean up at noon
	// <nil>
}
