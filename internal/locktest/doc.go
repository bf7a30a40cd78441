// Package locktest is what the tests of more than one folder use: Redis servers and
// clients of them, what a test must get or wait for, what has to stand in Redis, faults,
// processes, and the types of locks as tables.
//
//	main.go       how a package's tests run: side by side, no leaked goroutines
//	backend.go    miniredis, a server, a cluster; clients of them
//	must.go       what fails the test if it does not come: locks, errors, conditions
//	keys.go       what stands in Redis, and what is left
//	types.go      every type of lock, for scenarios that each has to pass
//	queued.go     those that keep their waiters in Redis
//	fair.go       the line of a FairLock; Redisson in it
//	readwrite.go  the keys of a ReadWriteLock; Redisson as a reader
//	multilock.go  MultiLocks
//	redlock.go    RedLocks
//	faults.go     scripts, and the ways to lose a reply
//	hooks.go      what stands between a client and its connections
//	member.go     a client whose looks and events are counted
//	observe.go    what an Observer and a logger are told
//	measure.go    commands, latencies, memory
//	child.go      processes of their own
//
// What one folder needs alone belongs in that folder.
package locktest
