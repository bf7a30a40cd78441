// Package sim is a small world in which the library can be tried under faults
// that no test bed produces on demand: a request that runs seconds after its
// caller gave up, a reply that never comes, a process that stops between two
// lines. Redis is miniredis, the network is memory, time is the virtual time of
// a testing/synctest bubble. One seed gives one run, the same to the
// nanosecond, on any number of processors, with and without the race detector.
//
// A run inside synctest.Test:
//
//	w := sim.New(seed, sim.Config{Rates: sim.Harsh})
//	h := w.Host("a")
//	rdb := redis.NewClient(h.Options(0))
//	... start everything, and w.Play(w.Schedule(sim.Everything, 12, span)) ...
//	rdb.Close()
//	w.Close()
//	w.Digest() // equal for every run of this seed
//
// # Rules
//
// The bubble moves its clock only while every goroutine in it is durably
// blocked, and it gives no order to goroutines that are ready at the same
// instant. Everything here, and everything that runs in it, follows from that:
//
//  1. Nobody waits for a sync.Mutex whose holder waits for virtual time. Such a
//     wait is not durable, so the clock stands still and the test hangs without
//     an error. A connection therefore never blocks a writer, and pub/sub
//     connections are dialed and greeted in no time, because go-redis does both
//     under PubSub.mu. Code under test holds no mutex across a call to Redis.
//  2. Every random draw comes from a stream named after who draws ([World.Rand]),
//     never from a shared one. Then the draws do not depend on who came first.
//  3. No two goroutines wake at the same instant. Latencies have nanoseconds,
//     and what ends for many together (a pause, a partition, a restart) ends
//     for each of them at its own offset. Goroutines that one event wakes part
//     at the next gate. Times that a test chooses have no common multiples.
//  4. The pool of a client is larger than its concurrency, and
//     MinRetryBackoff equals MaxRetryBackoff: go-redis keeps timers of pool
//     waits in a package variable, where they outlive their bubble, and takes
//     jitter from the global source. [Host.Options] sees to both.
//  5. Everything is closed before [World.Close], which then lets virtual time
//     run on: go-redis dials in the background, for longer than its clients live.
//  6. miniredis is not closed or restarted inside a run, since blocking commands
//     never recover. [World.Restart] is an event on the network.
//  7. What is waited for is made in the bubble: a context of the test outside
//     of it is a fatal error inside.
package sim
