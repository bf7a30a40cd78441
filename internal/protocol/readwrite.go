package protocol

// readWrite has what the protocols of both sides of a ReadWriteLock share. The scripts
// build the names of readers' timers, because only the hash has the ids of the readers. Timers are
// in the slot of the lock. Timers that a request depends on are declared as keys, like all other
// keys, so that the request waits while a cluster moves the slot.
type readWrite struct {
	located
	side    string // 'read' or 'write', as in the scripts
	timers  string // prefix of the timers' names
	channel string

	// Keys of the waiters: see scripts/shared/turns.lua. They are empty if readers are preferred,
	// because waiters then leave no trace in Redis.
	writers, readers, admitted string
	boxed                      [2]any // readers and admitted
}

func newReadWrite(site *Site, names *Names, side string, preferReaders bool) readWrite {
	names.keep()
	l := readWrite{
		located: located{site, names},
		side:    side,
		timers:  names.Derived(""),
		channel: prefixed("redisson_rwlock", names.Lock),
	}
	if !preferReaders {
		l.writers, l.readers, l.admitted = l.timers+"rlock:writers", l.timers+"rlock:readers", l.timers+"rlock:admitted"
		l.boxed = [2]any{l.readers, l.admitted}
	}
	return l
}

// turns reports whether readers and writers take turns.
func (l *readWrite) turns() bool { return l.writers != "" }

// leaving returns the keys of a script that ends a write hold: some, and the keys of waiting readers, which go first.
func (l *readWrite) leaving(some ...string) []string {
	if l.turns() {
		some = append(some, l.readers, l.admitted)
	}
	return some
}

// place returns how long a request keeps a place among the waiters, in ms, and had, which is 1 if an earlier
// request may have left a place.
func (l *readWrite) place(e *Acquire) (ms int64, had int) {
	if e.Leads && l.turns() && e.Outer == "" {
		ms = l.site.WaiterLease.Milliseconds()
	}
	return ms, flag(e.Placed)
}

// ForceUnlock implements Protocol.
func (l *readWrite) ForceUnlock(holdID string) Request[bool] {
	return l.site.newForceRequest("rw/force_unlock", holdID, l.leaving(l.names.Lock),
		[]any{holdID, l.side, l.timers, l.channel, l.site.how()})
}

// Inspect implements Protocol. It shows both sides.
func (l *readWrite) Inspect() Request[State] {
	return newListenerCount(l.site, "rw/inspect", []string{l.names.Lock}, l.channel, readState, l.timers)
}

// Probe implements Protocol.
func (l *readWrite) Probe(id string) Request[Probed] {
	return newRequest(l.site, "rw/probe", []string{l.names.Lock}, []any{id, l.side, l.timers}, readProbed)
}

// View implements Protocol.
func (l *readWrite) View() any { return view{"rw/inspect", l.names.Lock, l.channel} }

// Listen implements Protocol.
func (l *readWrite) Listen(_ string, notify func()) (end func()) {
	return l.site.listen(l.channel, notify)
}

// Identify implements Identified.
func (l *readWrite) Identify() (end func()) { return l.site.identify(l.channel) }

// KeepsPlace implements Queue.
func (l *readWrite) KeepsPlace() bool { return l.turns() }

// EachWaits implements Queue: the head of a client's line keeps a place for all of it.
func (l *readWrite) EachWaits() bool { return false }

// Listening implements Queue.
func (l *readWrite) Listening(string) bool { return false }
