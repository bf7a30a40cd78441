// Package redistest runs real redis-server processes for tests: a single
// server, independent masters, a master with replicas, Sentinel and Cluster.
//
// Every process belongs to one test at a time. It listens on loopback only,
// keeps its files in a directory of its own, and is dead, and waited for, when
// the test and its cleanups are over; in packages whose TestMain runs a [Run] a
// later test may have it first, as new. Clients handed out here are closed
// before their servers are killed, so that a test ends without a burst of
// reconnects.
//
// Redis 6.2 or newer is needed. A test is skipped when redis-server is not installed, see [Need].
//
// What fails, fails the test: no function returns an error, each ends the test
// with [testing.TB.Fatal] and says what it waited for and what it last saw.
// Therefore call them from the test's own goroutine. Pause, Resume and Kill of a
// [Server] may be called from others: there they fail only when misused.
package redistest
