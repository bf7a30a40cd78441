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
	CronFamily     = "cron" // followed by the tick
	DoubleFamily   = "double barrier"

	PermitsFamily     = "permits"
	FairPermitsFamily = "fairpermits"
	SemaphoreFamily   = "semaphore"
	LatchFamily       = "latch"
	BarrierFamily     = "barrier"
)

// Side is the side of a read-write lock. All other locks have only Exclusive.
type Side int

const (
	Exclusive Side = iota
	Shared
)

func (s Side) Other() Side { return 1 - s }
