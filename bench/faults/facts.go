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
	{redissonName, "automatic, each third of `lockWatchdogTimeout` ([documentation](" + redissonDoc + "#lock))",
		"After a crash of the holder, the lock is free when that timeout is over. `RFencedLock` gives tokens; `RedissonRedLock` is deprecated ([documentation](" + redissonDoc + "))"},
}
