package protocol

// LockID identifies a lock of a client. Types of one family that have the
// same name are one lock: they exclude each other, and an owner of one may
// enter the other.
type LockID struct{ Family, Name string }

const (
	// HashFamily are the types whose state is Redisson's hash of one owner.
	HashFamily     = "lock"
	RWFamily       = "rwlock"
	FairRWFamily   = "fairrw"
	PriorityFamily = "priority"
	ElectionFamily = "election"
	OnceFamily     = "once"
	CronFamily     = "cron" // of a tick: with the tick after it
	DoubleFamily   = "double barrier"

	PermitsFamily     = "permits"
	FairPermitsFamily = "fairpermits"
	SemaphoreFamily   = "semaphore"
	LatchFamily       = "latch"
	BarrierFamily     = "barrier"
)

// TypeName is the name of the types of a family, for observers. HashFamily has several, and each set
// of servers of a RedLock is a family: "".
func TypeName(family string) string { return typeNames[family] }

var typeNames = map[string]string{
	HashFamily:        "Lock",
	RWFamily:          "ReadWriteLock",
	FairRWFamily:      "FairReadWriteLock",
	PriorityFamily:    "PriorityLock",
	ElectionFamily:    "Election",
	OnceFamily:        "Once",
	CronFamily:        "CronJob",
	DoubleFamily:      "DoubleBarrier",
	PermitsFamily:     "PermitSemaphore",
	FairPermitsFamily: "PermitSemaphore",
	SemaphoreFamily:   "Semaphore",
	LatchFamily:       "CountDownLatch",
	BarrierFamily:     "Barrier",
}

// Side is the side of a read-write lock. All other locks have one.
type Side int

const (
	Exclusive Side = iota
	Shared
)

func (s Side) Other() Side { return 1 - s }
