package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// A process checks at its start that the locks it is about to use would work, and logs what it finds.
func ExampleClient_Check() {
	client, stop := exampleClient(rlock.WithPrefix("app:"))
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	orders, reports := client.NewFairLock("orders"), client.NewElection("reports")

	report, err := client.Check(ctx, orders, reports)
	if err != nil {
		log.Fatal(err) // the call was wrong, or ctx ended
	}
	for _, found := range report.Findings {
		log.Println(found) // what is wrong, and the remedy
	}
	unanswered := 0
	for _, found := range report.Findings {
		if found.Code == "unreachable" {
			unanswered++
		}
	}
	fmt.Println("servers that do not answer:", unanswered)
	// Output: servers that do not answer: 0
}

// A readiness probe answers within the command timeout.
func ExampleClient_Ping() {
	rdb, stopRedis := exampleRedis()
	client, err := rlock.New(rdb, rlock.WithCommandTimeout(500*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()

	fmt.Println("ready:", client.Ping(ctx) == nil)
	stopRedis()
	fmt.Println("unreachable:", errors.Is(client.Ping(ctx), rlock.ErrUnreachable))
	// Output:
	// ready: true
	// unreachable: true
}

// An operator lists the locks that are held, in all processes, and who holds them.
func ExampleClient_Locks() {
	here, there, stop := twoProcesses()
	defer stop()
	ctx := context.Background()
	lease, err := there.NewLock("order:7").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Unlock(ctx) }()

	for lock, err := range here.Locks(ctx, "order:*") {
		if err != nil {
			log.Fatal(err)
		}
		held := lock.State.Holders[0] // held.Process says which process
		fmt.Println(lock.Name, lock.State.Mode, held.HoldID == lease.HoldID())
	}
	// Output: order:7 exclusive true
}

// What this process holds, without a request to Redis: for a page for debugging.
func ExampleClient_Held() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	for _, name := range []string{"orders", "invoices"} {
		lease, err := client.NewLock(name).Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = lease.Unlock(ctx) }()
	}

	for _, lease := range client.Held() {
		fmt.Println(lease.Name(), lease.Err() == nil)
	}
	// Output:
	// orders true
	// invoices true
}

// Shutdown ends the contexts of holders, and waits until they have unlocked.
func ExampleClient_Shutdown() {
	rdb, stop := exampleRedis()
	defer stop()
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}

	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- rlock.Do(context.Background(), client.NewLock("import"), func(ctx context.Context) error {
			close(began)
			<-ctx.Done() // work in small steps would end here
			return context.Cause(ctx)
		})
	}()
	<-began

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println("shutdown:", client.Shutdown(ctx))
	fmt.Println("asked to leave:", errors.Is(<-ended, rlock.ErrClosed))
	_, err = client.NewLock("import").TryLock(ctx)
	fmt.Println("no further lock:", errors.Is(err, rlock.ErrClosed))
	// Output:
	// shutdown: <nil>
	// asked to leave: true
	// no further lock: true
}

// waits counts acquires that had to wait, and those that failed. It also implements ContentionObserver.
type waits struct{ failed, contended int }

func (w *waits) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }

func (w *waits) AcquireEnd(_ context.Context, e rlock.AcquireEvent) {
	if e.Err != nil {
		w.failed++ // a program with several goroutines would need a mutex
	}
}

func (w *waits) Contended(context.Context, rlock.ContentionEvent) { w.contended++ }
func (w *waits) Lost(context.Context, rlock.LossEvent)            {}
func (w *waits) Unlocked(context.Context, rlock.UnlockEvent)      {}

// An Observer counts what the client does. rlockotel and rlockprom are Observers that are ready for use.
func ExampleWithObserver() {
	counts := &waits{}
	client, stop := exampleClient(rlock.WithObserver(counts))
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("orders")

	lease, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = lock.Lock(ctx, rlock.WithWait(200*time.Millisecond))
	fmt.Println("not acquired:", errors.Is(err, rlock.ErrNotAcquired))
	_ = lease.Unlock(ctx)
	fmt.Println(counts.contended, "waited,", counts.failed, "failed")
	// Output:
	// not acquired: true
	// 1 waited, 1 failed
}

// A lease counts only once a replica has confirmed it, so the hold survives the loss of the master. It is compiled and
// not run: the Redis of the examples has no replica.
func ExampleWithReplicaAck() {
	rdb := redis.NewClient(&redis.Options{Addr: "redis-1:6379"}) // a master with two replicas
	defer rdb.Close()
	client, err := rlock.New(rdb, rlock.WithReplicaAck(1, 200*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	err = rlock.Do(ctx, client.NewLock("payments"), func(ctx context.Context) error {
		return ctx.Err() // pay
	}, rlock.WithWait(5*time.Second))
	if errors.Is(err, rlock.ErrNotAcquired) {
		log.Print(err) // another owner has the lock, or too few replicas confirmed: the text says which
	}
}

// A process in a hurry asks the holder to release the lock, and then waits for it as usual.
func ExampleInspection_RequestRelease() {
	holder, hurried, stop := twoProcesses()
	defer stop()
	ctx := context.Background()
	lease, err := holder.NewLock("index").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		<-lease.ReleaseRequested() // between two steps of the work
		_ = lease.Unlock(ctx)
	}()

	index := hurried.NewLock("index")
	asked, err := index.RequestRelease(ctx)
	fmt.Println("asked:", asked, err)
	mine, err := index.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("acquired:", mine.Err() == nil)
	_ = mine.Unlock(ctx)
	// Output:
	// asked: true <nil>
	// acquired: true
}

// An operator frees a lock whose holder hangs, by the id of the hold: a newer hold cannot be hit by mistake.
func ExampleInspection_ForceUnlockIf() {
	holder, operator, stop := twoProcesses()
	defer stop()
	ctx := context.Background()
	hanging, err := holder.NewLock("nightly").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	nightly := operator.NewLock("nightly")
	state, err := nightly.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	seen := state.Holders[0].HoldID
	freed, err := nightly.ForceUnlockIf(ctx, seen)
	fmt.Println("freed:", freed, err)
	freed, err = nightly.ForceUnlockIf(ctx, seen)
	fmt.Println("once more:", freed, err)
	fmt.Println("its holder:", errors.Is(hanging.Unlock(ctx), rlock.ErrRemoved))
	// Output:
	// freed: true <nil>
	// once more: false <nil>
	// its holder: true
}

// Code that hangs does not keep a renewed lock forever.
func ExampleWithMaxHold() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("report", rlock.WithMaxHold(100*time.Millisecond)) // an hour, in a program

	err := rlock.Do(ctx, lock, func(ctx context.Context) error {
		<-ctx.Done() // it hangs
		return ctx.Err()
	})
	fmt.Println("lost:", errors.Is(err, rlock.ErrLeaseLost))
	fmt.Println("because of WithMaxHold:", errors.Is(err, rlock.ErrMaxHold))
	// Output:
	// lost: true
	// because of WithMaxHold: true
}
