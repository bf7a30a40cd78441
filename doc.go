// Package rlock provides distributed locks on Redis, on the wire of Redisson.
//
//	client, err := rlock.New(rdb) // rdb is a go-redis client; one Client for a process
//	...
//	lock := client.NewLock("invoices")
//	err = rlock.Do(ctx, lock, func(ctx context.Context) error {
//		return writeInvoices(ctx) // ctx ends if the lock is lost
//	})
//	// err matches ErrLeaseLost if the lock was lost before writeInvoices returned
//
// Or, with the lease in hand:
//
//	lease, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	err = writeInvoices(lease.Context(ctx))
//	return errors.Join(err, lease.Unlock(ctx)) // Unlock reports ErrLeaseLost too
//
// After a loss that error matches context.Canceled as well: ask for ErrLeaseLost first. Do returns the loss
// alone. Package rlocktest has an in-memory Redis for unit tests.
//
// # Locks, leases and owners
//
// A [Lock] is a name, which goroutines may share. A [Lease] is one hold of a lock, and only a lease can be
// unlocked: a holder that was too slow cannot free the lock of its successor. Without [WithLease], the
// watchdog renews a hold of [DefaultWatchdogLease] until it is unlocked or lost. If the process dies, the
// lock is free at the end of the lease.
//
// The context says who the owner is. An acquire re-enters only the holds that its context descends from,
// through [Lease.Context] or the context that [Do] gives to its function; every other lock it enters as a
// new owner: a function inside that uses the context from outside waits for itself.
//
// # Types
//
//   - [Lock] is the one to begin with: reentrant, without an order among clients.
//   - [FairLock] grants in request order, across processes.
//   - [SpinLock] neither publishes nor subscribes: its waiters poll.
//   - [FencedLock] shares a counter of tokens, 1, 2, 3, with Java processes.
//   - [ReadWriteLock] has any number of readers, or one writer.
//   - [FairReadWriteLock] serves readers and writers in request order.
//   - [PriorityLock] goes to the most urgent waiter.
//   - [RedLock] is held on a majority of independent masters.
//   - [MultiLock] is several locks as one: it holds all of them, or none.
//
// Use one type for a name. The first five, and a MultiLock of them, share keys with Redisson. What the
// methods of all promise is at [Locker] and [Inspection]. There are also [Election], [Once], [CronJob],
// [DoubleBarrier], [PermitSemaphore], [Semaphore], [CountDownLatch] and [Barrier]. An [Observer] is called
// for what a [Client] does.
//
// # What is guaranteed
//
// As long as Redis keeps what it has confirmed, and all clocks run at the same speed ([WithDrift]), at most
// one owner has a valid lease. A lost lease is reported at its deadline at the latest, whether Redis can be
// reached or not. No failure leaves a hold behind that no caller owns. Fencing tokens grow from one
// exclusive hold to the next ([Lease.Token]).
//
// A lock cannot stop code that does not watch its lease, nor a process that was stopped between a check and
// its effect: only a resource that checks tokens can. Redis replicates asynchronously: without
// [WithReplicaAck], [WithFailoverQuarantine] or RedLock, a failover, a flush, an eviction or a restart
// without persistence may give the lock to a second owner. All promises, and what is not promised:
// https://go-rlock.github.io/rlock/latest/guarantees/
//
// # Failures
//
// All errors are an [*Error], except from constructors, [Client.BootstrapServer] and
// [Client.Shutdown], and what [Do] joins. An acquire's matches at most one of [ErrNotAcquired],
// [ErrUnreachable] and [ErrRefused]. The last reply decides: another owner has the lock, there was no
// answer, or Redis replied with an error. A loss matches [ErrLeaseLost] and its cause. Lock outlasts an
// outage of a watchdog lease.
package rlock
