// Package locktest has the helpers that tests of several folders share: Redis servers and
// clients, assertions on locks and on the contents of Redis, faults, processes, and tables
// of the lock types. It knows the public API of package rlock, and not its layers.
//
//	main.go       how a package's tests run: side by side, no leaked goroutines
//	backend.go    miniredis, a server, a cluster; clients of them
//	attempt.go    calls that wait
//	clock.go      a clock that a test puts forward
//	must.go       locks, errors and conditions that a test must get
//	keys.go       what is in Redis, and what is left there
//	types.go      every type of lock, for scenarios that each has to pass
//	queued.go     those that keep their waiters in Redis
//	fair.go       the line of a FairLock; Redisson in it
//	readwrite.go  the keys of a ReadWriteLock; Redisson as a reader
//	permits.go    PermitSemaphores as if they were locks
//	multilock.go  MultiLocks
//	redlock.go    RedLocks
//	crowd.go      a crowd of owners, whose Observers show the same as gauges.go
//	faults.go     scripts, and the ways to lose a reply
//	hooks.go      go-redis hooks that count, lose or delay commands
//	member.go     a client whose looks and events are counted
//	observe.go    records of an Observer and a logger
//	measure.go    commands, latencies, memory
//	child.go      child processes
//	nightly.go    what is left to .ci/run and to make nightly
//
// A helper of one folder belongs in that folder.
package locktest
