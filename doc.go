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
// After a loss that error matches context.Canceled as well, which ended writeInvoices: ask for ErrLeaseLost
// first. Do returns the loss alone.
//
// Package rlocktest has an in-memory Redis for unit tests, in which time can be moved and locks can be lost
// on purpose.
//
// # Locks, leases and owners
//
// A [Lock] is a name without state, which goroutines may share. A [Lease] is one hold of a lock, and only a
// lease can be unlocked: a holder that was too slow cannot free the lock of its successor. Without
// [WithLease], Redis keeps a hold for [DefaultWatchdogLease], and the watchdog renews it each third of that
// until it is unlocked or lost. If the process dies, the lock is free at the end of the lease.
//
// The context says who the owner is. An acquire re-enters only the holds that its context descends from,
// through [Lease.Context] or the context that [Do] gives to its function; every other lock it enters as a
// new owner. So goroutines that share the context of a lease exclude each other from every other lock, and
// a function inside that uses the context from outside waits for itself.
//
// Another process can go on with a hold, under the same fencing token: [Lease.Handle], [Client.Adopt].
//
// Three durations are independent: the lease (WithLease), the wait (the context and [WithWait]), and one
// operation on Redis ([WithCommandTimeout]).
//
// # Types
//
// Every type of lock, or each side of a read-write lock, is a [Locker], an [Inspector] and a
// [ReleaseRequester]. These say what the methods promise.
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
// Use one type for a name. The first five, and a MultiLock of them, share keys with Redisson, so Java can
// take part (docs/redisson.md). Details: docs/locks.md.
//
// An [Election] chooses a leader, a [Once] runs a function once for all processes, a [CronJob] once for
// each tick of a schedule, and the members of a [DoubleBarrier] begin and end together. A
// [PermitSemaphore] hands out leases. Nobody holds a [Semaphore], a [CountDownLatch] or a [Barrier].
// Details: docs/synchronizers.md and docs/cron.md.
//
// # What is guaranteed
//
// As long as Redis keeps what it has confirmed, and all clocks run at the same speed within the drift
// ([WithDrift]; they need not show the same time):
//
//   - At most one owner has a valid lease, or any number on the read side and no other owner on the write
//     side. The deadline of a lease is counted on the monotonic clock of this process, from before the
//     request was sent: it comes before Redis can give the lock to another owner.
//   - A lost lease is reported at its deadline at the latest, whether Redis can be reached or not, and
//     earlier if Redis says so: Done closes, the contexts end, Err and Unlock return the cause.
//   - No failure leaves a hold behind that no caller owns: a lost reply, a context that ends, or a late
//     command neither leaks a hold nor counts it twice. What cannot be undone at once is undone in the
//     background, or runs out with its lease.
//   - The fencing tokens of a lock grow from one exclusive hold to the next ([Lease.Token]).
//   - Waiting does not depend on messages: without one, the first waiter polls when the holder's lease is
//     over, and every five seconds ([WithLongestPoll]).
//
// # What is not guaranteed
//
//   - A lock cannot stop code that does not watch its lease, nor a process that was stopped between a check
//     and its effect. Only the resource can, by refusing a fencing token lower than the highest it has
//     seen.
//   - Redis replicates asynchronously. A failover, a flush, an eviction, or a restart without persistence
//     may give the lock to a second owner while the first has a valid lease, until its next renewal.
//     [WithReplicaAck], [WithFailoverQuarantine] and RedLock are against that: docs/failover.md.
//   - Tokens may repeat if the server loses its data and its clock goes back, both at once, and those of a
//     RedLock if several of its servers come back with old data.
//   - A late copy of an answered request, as by a proxy, or any copy after the server has lost its data,
//     can bring back a released hold until its lease is over.
//   - The monotonic clock of most systems stops while the machine is suspended. The next renewal, Extend or
//     Unlock then reports the loss.
//   - Lock, SpinLock, FencedLock and ReadWriteLock keep the order of waiters within a Client, for each
//     side, and not among clients. The others keep it in Redis, for waiters that report within a waiter
//     lease ([WithWaiterLease]), until Redis loses its data.
//   - Writers of a ReadWriteLock starve while there are always readers in Java, or [WithReaderPreference].
//   - While a cluster moves the slot of a lock, acquires wait. A release of a type with a queue in Redis
//     may return ErrRefused, and is repeated in the background.
//   - A reader that waits for another owner which is about to read may wait for a writer between them. Pass
//     on the context: its owner continues to read at once.
//   - Whoever may write to Redis may free or forge any lock.
//
// # Watching and asking
//
// Every type but MultiLock has Watch, which sends the current [State] to a channel, and a new one after
// each change of the mode, the holders, their counts or the token. It keeps only the latest, misses changes
// between two polls, and sends nothing while Redis cannot be reached. So it does not prove that a lock is
// free or held. The channel is closed when its context ends or the client shuts down; Watch fails only with
// ErrInvalidArgument or ErrClosed. An [Observer] is told what a Client does: docs/observing.md. Whoever
// wants a lock may ask its holders to release it ([ReleaseRequester]). [Client.Locks] finds what is held in
// Redis, [Client.Held] what this client holds. [Client.Check] says what is wrong before the first lock.
//
// # What it costs
//
// An acquire and a release of a free lock are one script call each. A held lock costs one command per third
// of its lease, in pipelines, and no goroutine. Of all waiters for a lock in a Client, only the first talks
// to Redis, or each where Redis keeps the order. In Redis a held lock is one key. Fencing tokens need one
// small key, in a cluster one for each slot in use. An acquire that was given up or whose outcome is
// unknown leaves a tombstone for one minute. A client that holds or waits writes one small key a minute,
// which says who it is ([WithAnonymity]). See docs/keys.md and docs/acl.md.
//
// # Failures
//
// All errors are an [*Error] with the name of the lock, except those of constructors,
// [Client.BootstrapServer] and [Client.Shutdown], and what [Do] joins. That of an acquire matches
// [ErrNotAcquired], [ErrUnreachable] or [ErrRefused], and never two of them: an outage is not taken for a
// lock that is held. It names the process that holds the lock, if that is known ([Process]). A loss
// matches [ErrLeaseLost] and its cause. Lock outlasts an outage of a watchdog lease.
//
// # Shutting down
//
// [Client.Shutdown] and [Client.Close] grant nothing more and end all leases and their contexts, which asks
// the holders to leave. They free no lock under its holder: it is renewed until it is unlocked, or the time
// of the shutdown is over.
package rlock
