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
// # Locks, leases and owners
//
// A [Lock] is a name. It has no state, and goroutines may share it: they exclude each
// other, and everybody else who uses the name.
//
// A [Lease] is one hold of a lock, and only a lease can be unlocked: a holder that was
// too slow cannot free the lock of its successor. Without [WithLease], Redis keeps a
// hold for [DefaultWatchdogLease], and the watchdog renews it each third of that until
// it is unlocked or lost. If the process dies, the lock is free at the end of the lease.
//
// The context says who the owner is. An acquire enters again only the holds that its
// context descends from, through [Lease.Context] or the context that [Do] gives to its
// function. It enters every other lock as a new owner. So goroutines that share the
// context of one lease exclude each other from every other lock, and a context that
// does not descend from a hold waits for it, even in the same goroutine: a function inside
// that uses the context from outside waits for itself. The error of a bounded wait says then
// that this client holds the lock; it looks the same when goroutines just wait for each other,
// so nothing is logged. [LeaseFrom] returns the lease that a context descends from, with its
// fencing token. [WithoutOwner]
// cuts a context off from all holds. [WithOwner] makes one owner of a whole tree of
// calls, whose goroutines do not exclude each other at all; use it only where contexts
// of leases cannot be handed on.
//
// Three durations are independent. The lease is how long Redis keeps a hold that is not
// renewed (WithLease). The context and [WithWait] bound the wait. [WithCommandTimeout]
// bounds one operation on Redis.
//
// # Types
//
// Every type, or each side of a read-write lock, is a [Locker], an [Inspector] and a
// [ReleaseRequester]: there is what their methods promise; Watch is described below. Every type hands out a
// [Lease] and keeps the promises of this page. The types differ in who gets the lock
// next, and in what a wait costs.
//
//   - [Lock] is the one to begin with: reentrant, without an order among clients.
//   - [FairLock] grants in request order, across processes.
//   - [SpinLock] neither publishes nor subscribes: waiters poll with growing pauses.
//   - [FencedLock] takes its tokens 1, 2, 3 from a counter that it shares with Java
//     processes. They start over if Redis loses the counter.
//   - [ReadWriteLock] has a side for any number of readers and one for a single writer.
//     A writer may read too; a reader that asks to write gets [ErrUpgrade].
//   - [FairReadWriteLock] serves readers and writers in request order.
//   - [PriorityLock] goes to the most urgent waiter.
//   - [RedLock] is held on a majority of independent masters.
//   - [MultiLock] is several locks as one: it holds all of them, or none.
//
// The first five, and a MultiLock of them, have the keys of Redisson's locks, so Java
// processes can take part. FairReadWriteLock, PriorityLock and RedLock have keys of
// their own. Use one type for a name, in Java too: a read-write lock or a group lock of
// Redisson gets in beside a lock of another type. A FairReadWriteLock or PriorityLock
// fails with [ErrForeignKey] while another type holds its name, but the other type does
// not see them: to change the type of a lock in use, change its name. The file
// docs/redisson.md says what was tested with Redisson, and what does not work together.
//
// An [Election] is no Locker: Campaign waits for the leadership, and hands out a Lease. A
// [Once] runs a function once, and lets all processes have the result. The members of a
// [DoubleBarrier] begin and end together.
// A [PermitSemaphore] hands out leases of some of its permits. A [Semaphore], a
// [CountDownLatch] and a [Barrier] have no leases: nobody holds them.
//
// # What is guaranteed
//
// As long as Redis keeps what it has confirmed, and all clocks run at the same speed
// within the drift ([WithDrift]; they need not show the same time):
//
//   - At most one owner has a valid lease; on the read side any number have, and then no
//     other owner has one on the write side. The deadline of a lease is counted on the
//     monotonic clock of this process, from before the request was sent, and comes before
//     Redis can give the lock to another owner.
//   - A lost lease is reported at its deadline at the latest, whether Redis can be
//     reached or not, and earlier if Redis says so. Done closes, the contexts end, Err
//     and Unlock return the cause.
//   - No failure leaves a hold behind that no caller owns. A lost reply, a context that
//     ends, or a command that arrives late neither leaks a hold nor counts it twice. What
//     cannot be undone at once is undone in the background, or runs out with its lease.
//   - The fencing tokens of a lock grow from one exclusive hold to the next
//     ([Lease.Token]).
//   - Waiting does not depend on messages. The first waiter in line looks when it hears
//     that the lock is free, when the holder's lease is over, and every five seconds
//     ([WithLongestPoll]); the others follow it.
//
// # What is not guaranteed
//
//   - A lock cannot stop a process. Code that does not watch its lease continues after a
//     loss, and a process that was stopped between its last check and its effect finds
//     out too late. Only the resource can prevent both, by refusing a fencing token lower
//     than the highest it has seen ([Lease.Token], and [LeaseFrom] in the function of Do).
//   - Redis replicates asynchronously. A failover may promote a replica that has not seen
//     a hold, and give the lock to a second owner while the first has a valid lease; the
//     first learns of it with its next renewal. A flush, an eviction, and a restart
//     without persistence do the same. [WithReplicaAck] and RedLock are against that.
//   - Tokens may repeat if the server loses its data and its clock goes back, both at once,
//     and those of a RedLock if several of its servers come back with old data
//     (docs/failover.md).
//   - Late copies of a request are stopped only if the library knows that there may be
//     some: the request was not answered, or was sent twice. A proxy that repeats an
//     answered acquire after the release can bring back a hold that no caller owns, until
//     its lease is over. So can a copy that runs after the server has lost its data, and
//     with it the tombstone that would have stopped the copy.
//   - The monotonic clock of most systems stands still while the machine is suspended. A
//     lease that ran out meanwhile is found lost only by the next renewal, Extend or Unlock.
//   - Lock, SpinLock, FencedLock and ReadWriteLock keep the order of waiters within a
//     Client, for each side, and not among clients. FairLock, FairReadWriteLock and
//     PriorityLock keep it in Redis, for waiters that report within a waiter lease
//     ([WithWaiterLease]): one that is cut off or stopped for longer may lose its place,
//     and all lose theirs if Redis loses its data.
//   - Writers of a ReadWriteLock starve while there are always readers in Java, or
//     [WithReaderPreference]: those overtake waiters. Otherwise neither side starves the
//     other; with a FairReadWriteLock nobody starves.
//   - While a cluster moves the slot of a lock, acquires wait until all its keys have
//     arrived. A release of a type with a queue in Redis may have to wait too: Unlock then
//     returns ErrRefused, and the release is repeated in the background. Renewals
//     go on.
//   - A reader that waits for another owner which is about to read may wait for a writer
//     between them, if writers are served in order or preferred. Hand on the context: its
//     owner continues to read at once.
//   - Whoever may write to Redis may free or forge any lock.
//
// # Watching
//
// Every type but MultiLock, and each side of a read-write lock, has Watch, which
// delivers the current [State] to a channel, and then a new one whenever the mode, the
// holders, their counts or the token have changed; a change of TTL or Waiters alone is
// not reported. It takes no lock, joins no queue and delays nobody. The channel is
// closed when its context ends or the client shuts down. It keeps only the latest state:
// a slow reader misses earlier ones, but never the latest. A change that is undone
// between two looks is not seen. So a watch suits dashboards, tests and decisions that
// may be wrong for a moment; it proves neither that a lock is free nor that it is held.
//
// A watch looks when it begins, when a release is announced, when the holder's lease is
// over, and by polling, because no client of the protocol announces an acquire: 10 ms
// after each change or message, then after pauses that double up to WithLongestPoll. (A
// SpinLock announces no release; where Redis keeps the queue, only the next waiter hears
// of it.) So it sees most changes within milliseconds and each lasting one within
// WithLongestPoll, for at most a hundred cheap commands a second while the lock is busy
// and one per WithLongestPoll while it is not. All watches of one lock in a client share
// these looks and one goroutine, and all watches of a client its subscribed connection;
// two RedLock values are two locks here.
//
// While Redis cannot be reached or answers with an error, the channel delivers nothing
// and a [RetryObserver] is told. Watch itself fails only with ErrInvalidArgument or
// ErrClosed, at once.
//
// # Asking holders to leave
//
// Whoever wants a lock may ask those who keep it from others, in any process, to release it
// ([ReleaseRequester]). A holder hears that by [Lease.ReleaseRequested], if it listens,
// and decides. A request is for the holds that there are, never for a later one. It is left in
// Redis for ten minutes, and announced by a message: who listens later, or missed the
// message, finds it. Listening costs a subscription and two looks, and one look each third of
// a watchdog lease; a holder who does not listen pays nothing.
//
// # What it costs
//
// The acquire and the release of a free lock are one script call each. A held lock costs
// one command per third of its lease, in pipelines of up to a hundred, and no goroutine:
// one serves all holds of a Client, from the first on. A waiter costs the goroutine that
// called; of all that wait for one lock in a Client, only the first talks to Redis, or
// each where Redis keeps the order. While nothing happens, a Client looks at a hundred
// locks by one command per WithLongestPoll (in a cluster, at those of one slot).
// Subscriptions share one connection (in a cluster with sharded pub/sub, one per node),
// opened by the first wait. A lock stays subscribed for three seconds after its last
// waiter got it: the next one then waits at no further cost, and a release may make it the
// holder before it looks again. After eight such releases in a row, whoever looks first has
// the lock: the chance of a TryLock, of a wait for a lease WithLease, and of a client that has
// not had the lock lately.
//
// In Redis a held lock is one key, which ends with the hold. Fencing tokens need one
// small key, in a cluster one for each hash slot in use. An acquire whose outcome is
// unknown, or that was given up when it was, may have been or could be granted, leaves a
// tombstone for one minute, which stops late copies of it. docs/keys.md lists all keys and channels, docs/acl.md the
// commands of each type as lines of ACL SETUSER.
//
// # Failures
//
// All errors are an [*Error] with the name of the lock, except those of [New],
// [NewRedLock], [NewMultiLock], [Client.BootstrapServer] and [Client.Shutdown], and what
// [Do] joins. That of an acquire matches [ErrNotAcquired] if another has the lock or goes first,
// [ErrUnreachable] if there is no answer, [ErrRefused] if Redis replied with an error, and never two
// of them: so an outage is not taken for a lock that is held. If the context ended first, it matches
// that error too, or alone. A loss matches [ErrLeaseLost] and its cause. Lock
// outlasts an outage of up to a watchdog lease; TryLock does not wait.
//
// # Shutting down
//
// [Client.Shutdown] and [Client.Close] grant nothing more and end all leases and their
// contexts, which asks the holders to leave. They free no lock under its holder: it is
// held and renewed until the holder unlocks it, or until the time of the shutdown is over
// and then the lease.
//
// # Testing
//
// Package rlocktest has an in-memory Redis for unit tests, in which time can be moved and
// locks can be lost on purpose.
package rlock
