// Package soak uses all types of locks for a long time in one process, while servers and connections fail, and checks that
// nothing grows: goroutines, the heap, keys and subscriptions in Redis, connections.
//
//	soak_test.go     the runs, and what is too little
//	house_test.go    servers, clients, workers
//	uses_test.go     what a worker does with each type
//	faults_test.go   the faults
//	sample_test.go   what is measured at a quiet point
//	judge_test.go    what samples must have in common
//	planted_test.go  leaks that the judge has to notice
package soak
