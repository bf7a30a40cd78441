// Package rlock provides distributed locks on Redis, on the wire of Redisson.
//
//	client, err := rlock.New(rdb) // rdb is a go-redis client; one Client for a process
//	...
//	lock := client.NewLock("invoices")
//	err = rlock.Do(ctx, lock, func(ctx context.Context) error {
//		return writeInvoices(ctx) // ctx ends if the lock is lost
//	})
//
//	// err matches ErrLeaseLost if the lock was lost before writeInvoices returned
//
// Or, to have the hold in hand:
//
//	lease, err := lock.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	err = writeInvoices(lease.Context(ctx))
//	return errors.Join(err, lease.Unlock(ctx)) // Unlock tells ErrLeaseLost too
//
// # Locks, leases and owners
//
// A [Lock] is a name. It has no state, and any number of goroutines may share
// it: they exclude each other, and everybody else who uses the name.
//
// A [Lease] is one hold of a lock, and only a lease can be unlocked: a holder
// that was too slow cannot free the lock under its successor. Without
// [WithLease], Redis keeps a hold for [DefaultWatchdogLease], and it is renewed
// each third of that until it is unlocked or lost. If the process dies, the
// lock is free when the rest of the lease is over.
//
// Who the owner is, the context says. An acquire enters again only the holds that its
// context descends from: through [Lease.Context], or the context that [Do] gives to its
// function. Every other lock it enters as a new owner. So goroutines started below one
// lease exclude each other from every other lock, and a context that does not descend
// from a hold waits for it, in the same goroutine too. [WithoutOwner] cuts a context
// off from all holds.
//
// [WithOwner] makes one owner of a whole tree of calls. Use it only where contexts of
// leases cannot be handed on: goroutines below it do not exclude each other at all.
//
// Three durations are independent. The lease is how long Redis keeps a hold that is
// not renewed (WithLease). The wait is bounded by the context and [WithWait].
// One operation on Redis is bounded by [WithCommandTimeout].
//
// # Types
//
// All types have the methods of [Locker], give out a [Lease], and keep what this
// page says; of the two read-write types, that is each of their sides, Reader and
// Writer. They differ in who gets in, and in what a wait costs.
//
//   - [Lock] is the one to begin with: reentrant, without an order among clients.
//   - [FairLock] grants in request order, across processes.
//   - [SpinLock] sends no messages and listens to none: waiters look again and
//     again, after growing pauses.
//   - [FencedLock] takes its tokens from a counter that Java processes share: 1,
//     2, 3. They begin again if Redis loses the counter.
//   - [ReadWriteLock] has a side that any number may hold and one that excludes
//     all. A writer may read too; a reader that asks to write gets [ErrUpgrade].
//   - [FairReadWriteLock] serves readers and writers in the order of their asking.
//   - [PriorityLock] lets the most urgent in first.
//   - [RedLock] is kept by a majority of masters that know nothing of each other.
//   - [MultiLock] is several locks as one: it has all of them, or none.
//
// The first five stand in Redis as Redisson keeps them, so that Java processes can
// take part; so does a MultiLock of such. FairReadWriteLock, PriorityLock and RedLock
// have keys of their own. Use one type for a name, in Java too: a read-write lock or
// a group lock of Redisson comes in beside a lock of another type. A FairReadWriteLock
// or PriorityLock fails with [ErrForeignKey] while another type holds its name, but the
// other type does not see them: to change the type of a lock in use, change its name
// too. The file
// docs/redisson.md says what was tested with Redisson, and what does not work
// together.
//
// Each type, or side, has State, IsLocked, HeldBy, ForceUnlock, ForceUnlockIf, and
// Watch, which tells the state of a lock as it changes without contending for it; it is
// no proof that a lock is free. A MultiLock asks its members; it has no
// Watch: watch the members.
//
// # What is guaranteed
//
// As long as Redis keeps what it has confirmed, and clocks run at the same speed
// within the drift ([WithDrift]):
//
//   - At most one owner has a lease that is valid; of the read side, any number,
//     and then no other owner of the write side. A lease's deadline is
//     counted on the monotonic clock of this process, from before the request
//     was sent, and ends before Redis can give the lock to another.
//   - A lost lease is reported: at its deadline at the latest, whether Redis
//     can be reached or not, and earlier if Redis says so. Done closes, the
//     contexts end, Err and Unlock tell the cause.
//   - No failure leaves a hold behind that nobody has. A reply that is lost, a
//     context that ends, or a command that arrives late neither leaks a hold
//     nor counts it twice. What cannot be undone at once is undone in the
//     background, or runs out with its lease.
//   - The fencing tokens of a lock grow from one exclusive hold to the next:
//     [Lease.Token].
//   - Waiting depends on no message. The first in line looks again when it
//     hears that the lock is free, when the holder's lease is over, and every
//     five seconds ([WithLongestPoll]); the others follow it.
//
// # What is not
//
//   - A lock cannot stop a process. Code that does not watch its lease goes on
//     after a loss; a process that was stopped between its last check and its
//     effect finds out too late. Against both only the resource can help, by
//     refusing a fencing token lower than the highest it has seen.
//   - Redis replicates asynchronously. A failover may promote a replica that has
//     not seen a hold, and give the lock to a second owner while the first one
//     has a valid lease; that one is told with its next renewal. A flush, an
//     eviction, and a restart without persistence do the same. [WithReplicaAck] says
//     what can be done about it; RedLock says what it survives.
//   - Tokens may repeat if the server loses its data and its clock goes back,
//     both at once.
//   - Late copies are stopped if the library knows that there may be some: of
//     requests that were not answered, or sent twice. A proxy that repeats by
//     itself, after the release, an acquire that was answered can bring a hold
//     back that nobody has, until its lease is over.
//   - The monotonic clock of most systems stands still while the machine is
//     suspended. A lease that ran out meanwhile is found lost only with the next
//     renewal, Extend or Unlock.
//   - Lock, SpinLock, FencedLock and ReadWriteLock keep the order of waiters
//     within a Client, for each side, not among clients. FairLock,
//     FairReadWriteLock and PriorityLock keep it in Redis, for waiters that
//     give a sign of life within a waiter lease ([WithWaiterLease]): one that is cut
//     off or stopped for longer may lose its place, and all do if Redis loses its
//     data.
//   - Writers of a ReadWriteLock starve while there are always readers in Java, or
//     [WithReaderPreference]: those pass by who waits. Otherwise neither side starves
//     the other; with a FairReadWriteLock nobody starves.
//   - While a cluster moves the slot of a lock, acquires wait until all its keys
//     have arrived, and so may a release of a type that has a queue in Redis: Unlock
//     then returns ErrUnreachable, and the release is repeated in the background.
//     Renewals go on.
//   - A reader that waits for another that wants to begin to read may wait for a
//     writer that stands between them, if writers are served in order or preferred.
//     Hand on the context: who has it reads on at once.
//   - Whoever may write to Redis may free or forge any lock.
//
// # What it costs
//
// An acquire and a release of a free lock are one script call each. A held lock
// costs one command per third of its lease, sent in pipelines of up to a
// hundred, and no goroutine: one watches over all holds of a Client. A waiter
// is the goroutine that called; of all that wait for one lock in a Client only
// the first talks to Redis. Where Redis keeps the order, each waiter does: it has a
// place in the queue, and looks each third of a waiter lease. Subscriptions share one connection (in a cluster
// with sharded pub/sub: one for each node), opened when somebody first waits.
//
// In Redis a held lock is one key, which goes with the hold. Fencing tokens keep
// one small key for each hash slot in use. A stay whose acquire had an unknown
// outcome, or was given up when it was or may have been granted, leaves a
// tombstone for one minute, which stops late copies of the acquire.
//
// # Keys and channels
//
// What an operator has to permit, for a lock called name (with its prefix):
//
//   - name: the lock, a hash. It has the TTL of the lease.
//   - {name}:rlock:gone:<id>: a tombstone, for a minute. As a pattern
//     {name}:rlock:gone:*.
//   - rlock:clock:{<number>}: the fencing clock of a cluster slot, at most
//     16,384 of them, without prefix, never deleted. As a pattern rlock:clock:*.
//   - redisson_lock__channel:{name}: the channel on which a release is
//     published.
//
// The types differ from that in
//
//   - FairLock: redisson_lock_queue:{name} and redisson_lock_timeout:{name}, the
//     queue as Redisson keeps it; {name}:rlock:waiters and {name}:rlock:line, who of it
//     is alive; and a channel for each waiter, redisson_lock__channel:{name}:<id>.
//   - FencedLock: redisson_lock_token:{name}, the counter, never deleted.
//   - SpinLock: no channel.
//   - ReadWriteLock: {name}:<id>:rwlock_timeout:<n>, the timers of readers; the channel
//     redisson_rwlock:{name}; without WithReaderPreference {name}:rlock:writers,
//     {name}:rlock:readers and {name}:rlock:admitted: who waits.
//   - FairReadWriteLock and PriorityLock: {name}:rlock:fairrw and
//     {name}:rlock:priority in the place of name, and keys and channels that begin with
//     these and a colon. As patterns {name}:rlock:fairrw* and {name}:rlock:priority*.
//     Each reads the other's, and name, to see whether another type holds the name.
//   - RedLock, on each node: {name}:rlock:red in the place of name, and
//     {name}:rlock:red:counter, for a month; rlock:red:highest, and with
//     WithRestartQuarantine rlock:red:admitted and rlock:red:since, never deleted;
//     the channel {name}:rlock:red:free.
//   - MultiLock: those of its members.
//   - With WithFailoverQuarantine: rlock:served, never deleted.
//
// If the name contains an opening brace, no braces are added around it:
// name:rlock:gone:<id> and redisson_lock__channel:name.
//
// The commands that each type sends, as lines of ACL SETUSER, are in docs/acl.md.
//
// # Failures
//
// All errors are an [*Error] with the name of the lock, except those of [New]
// and [Client.Shutdown], and what [Do] joins. They match one of the sentinels
// such as [ErrNotAcquired], [ErrLeaseLost] and [ErrUnreachable], or the error of
// a context that ended, or are an error of Redis. Lock outlasts an outage for as
// long as a watchdog lease; TryLock does not wait.
//
// # Ending
//
// [Client.Shutdown] and [Client.Close] give out nothing more and end all leases and
// their contexts, which asks the holders to leave. They free no lock under its
// holder: a lock stays held, and is renewed, until its holder unlocks, or until the
// shutdown's time is over and then the lease.
//
// # Testing
//
// Package rlocktest has an in-memory Redis for unit tests, in which time can be
// moved and locks can be lost on purpose.
package rlock
