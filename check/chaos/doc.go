// Package chaos plays random faults on real servers, and on the processes that lock there: kills, stops, cuts, restarts
// with and without data, failovers, slots that move, clocks that jump. Each topology says what it promises while that goes
// on. A judge compares the promises with what the processes claim, on the one monotonic clock of the machine.
//
//	topology_test.go  the topologies: servers, options, faults, promises
//	nemesis_test.go   the faults
//	worker_test.go    the processes that lock
//	judge_test.go     what a history says
//	failover_test.go  a primary and its replica, Sentinel, the cluster, and their faults
//	planted_test.go   wrongs that the judge has to find
//	chaos_test.go     the runs
package chaos
