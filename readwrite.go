package rlock

// ReadLock is the side of a read-write lock that several owners can hold.
type ReadLock struct{ *core }

// WriteLock is the side of a read-write lock that one owner holds alone.
type WriteLock struct{ *core }
