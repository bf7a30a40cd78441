package rlock

// lockID identifies a lock of a client. Types of one family that have the
// same name are one lock: they exclude each other, and an owner of one may
// enter the other.
type lockID struct{ family, name string }

const (
	// hashFamily are the types whose state is Redisson's hash of one owner.
	hashFamily     = "lock"
	rwFamily       = "rwlock"
	fairRWFamily   = "fairrw"
	priorityFamily = "priority"
	electionFamily = "election"
	onceFamily     = "once"
	cronFamily     = "cron" // of a tick: with the tick after it
	doubleFamily   = "double barrier"

	permitsFamily     = "permits"
	fairPermitsFamily = "fairpermits"
	semaphoreFamily   = "semaphore"
	latchFamily       = "latch"
	barrierFamily     = "barrier"
)

// typeName is the name of the types of a family, for observers. hashFamily has several, and each set
// of servers of a RedLock is a family: "".
func typeName(family string) string { return typeNames[family] }

var typeNames = map[string]string{
	hashFamily:        "Lock",
	rwFamily:          "ReadWriteLock",
	fairRWFamily:      "FairReadWriteLock",
	priorityFamily:    "PriorityLock",
	electionFamily:    "Election",
	onceFamily:        "Once",
	cronFamily:        "CronJob",
	doubleFamily:      "DoubleBarrier",
	permitsFamily:     "PermitSemaphore",
	fairPermitsFamily: "PermitSemaphore",
	semaphoreFamily:   "Semaphore",
	latchFamily:       "CountDownLatch",
	barrierFamily:     "Barrier",
}

// side is the side of a read-write lock. All other locks have one.
type side int

const (
	exclusive side = iota
	shared
)

func (s side) other() side { return 1 - s }
