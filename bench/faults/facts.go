package main

// fact is what a library's own documentation says about the limits that the faults meet, in short.
type fact struct{ library, renewal, limits string }

const (
	redislockDoc = "https://github.com/bsm/redislock#external-watchdog"
	redsyncDoc   = "https://pkg.go.dev/github.com/go-redsync/redsync/v4"
	rueidisDoc   = "https://github.com/redis/rueidis/tree/main/rueidislock"
	redissonDoc  = "https://redisson.pro/docs/data-and-services/locks-and-synchronizers/"
)

var facts = []fact{
	{"rlock", "automatic, each third of the lease",
		"A single server that loses its data lets a second holder in; a write that was checked before a pause needs a fencing token ([Guarantees](guarantees.md)). `WithRestartQuarantine` is off by default ([RedLock](redlock.md))"},
	{redislockName, "by the program: the README [shows a watchdog](" + redislockDoc + "), which the harness uses",
		"An error of `Refresh` that is `ErrNotObtained` means that the lock is lost ([README](" + redislockDoc + "))"},
	{redsyncName, "by the program, with [`Extend`](" + redsyncDoc + "#Mutex.Extend); the harness calls it as redislock's README calls `Refresh`",
		"[`Until`](" + redsyncDoc + "#Mutex.Until) is the end of the validity. The algorithm was not formally analyzed ([README](https://github.com/go-redsync/redsync#disclaimer))"},
	{rueidisName, "automatic, each half of the validity ([README](" + rueidisDoc + "))",
		"The context is canceled when Redis is down or a majority of the keys is gone; waiters are woken by client-side caching ([README](" + rueidisDoc + "))"},
	{redissonName, "automatic, by a watchdog; `lockWatchdogTimeout` is 30 s by default ([documentation](" + redissonDoc + "#lock))",
		"Locks are advisory, and how safe they are depends on the deployment; a fenced lock guards an external resource ([documentation](" + redissonDoc + "#lock-reliability-and-fencing)). `RedissonRedLock` is deprecated ([documentation](" + redissonDoc + "#redlock))"},
}

// notes explain figures of a scenario, next to its table.
var notes = map[string][]string{
	"pause":    {"A process that was stopped between its check and its write does write when it goes on, whatever the library. The server that it writes to can refuse it, by a fencing token: rlock and `RFencedLock` of Redisson have them."},
	"acquire":  {"rlock: the key that is left refuses a copy of the acquire that may still be on its way ([Keys](keys.md))."},
	"cut":      {"redislock: without a deadline in its context, `Obtain` waits for one lease and then returns an error."},
	"kill":     {"redislock: without a deadline in its context, `Obtain` waits for one lease and then returns an error. redsync: `Lock` tries 32 times."},
	"release":  {"rueidislock: `cancel` returns nothing. A waiter whose attempt took longer than `TryNextAfter`, 20 ms, makes the next one when it is notified that the key has changed. Redisson: the key that is left is `redisson_unlock_latch`."},
	"restart":  {"rueidislock: the attempt that follows the reconnection returns an error if the server is not back yet, and the next attempt is made when the key changes. The key was lost with the data, so it does not change."},
	"two-down": {"`RedLock`: keys are counted on the first of the five servers. The key that is left there is a counter, for an hour ([Keys](keys.md)).", "Redisson and rueidislock are not in the two tables of five servers: `RedissonRedLock` is deprecated, and the keys of rueidislock's majority are in one deployment."},
	"forgets":  {"`WithRestartQuarantine`: the three servers that restarted do not vote for a lease, so the first holder loses its lock too."},
}
